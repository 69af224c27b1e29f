"""`headgate backlog`: show unacknowledged records, their age and the time to drain; verify the count."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import NO_SUBSCRIPTIONS, of_any_subscription, optional_topic_argument
from headgate.cli.commands import daemon_is_installed, installation_hint
from headgate.cli.context import CommandContext, command
from headgate.cli.subscriptions import backlog_table as table
from headgate.cli.terminal.output import print_table
from headgate.cli.terminal.place_types import Url
from headgate.errors import ConfigError, HeadgateError
from headgate.model.short_list import listed
from headgate.process.child_command import python_module

if TYPE_CHECKING:
    from headgate import Admin, BacklogInfo
    from headgate.settings.config import ClientConfig


class _ShowByDefault(click.Group):
    """``headgate backlog orders`` is ``headgate backlog show orders``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "--help", "-h"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[TOPIC [SUBSCRIPTION]] [--watch] [--segments] [--json]")
        formatter.write_usage(ctx.command_path, "verify [TOPIC] [--ledger URL] [--json]")


@click.group(cls=_ShowByDefault)
def backlog() -> None:
    """Show the records that subscriptions have not acknowledged.

    Spark counts them incrementally. `headgate backlog verify` counts the whole ledger again and compares.
    """


@command("headgate backlog orders", "headgate backlog show orders --watch", "headgate backlog --json", group=backlog)
@of_any_subscription
@click.option("--segments", "by_segment", is_flag=True, help="Add a row for each segment.")
@click.option("--watch", is_flag=True, help="Update every 2 seconds until Ctrl-C.")
def show(context: CommandContext, topic: str | None, name: str | None, by_segment: bool, watch: bool) -> None:
    """Show the backlog of SUBSCRIPTION of TOPIC, of all its subscriptions, or of all topics.

    "oldest" is the age of the oldest unacknowledged record. Rates are averages over about one minute. "drained in" is
    backlog ÷ (acked/s - in/s), or "never" if the backlog does not shrink. "?" marks values that are not known yet, "~"
    an estimate: consumers that share a segment have different positions in it. With --watch and --json, each update is
    one line of JSON.

    The backlog of an external topic comes from its tables (setting drain.external), as of their last count: a table is
    read as a whole, so not for every request. Values that no table provides are "-" (null in JSON), with the reason.
    """
    show = partial(_print, by_segment=by_segment)
    if watch:
        context.watch(lambda admin: admin.backlog(topic, name), show, context.watch_interval_seconds)
        return
    context.show(lambda admin: admin.backlog(topic, name), show, empty=NO_SUBSCRIPTIONS)


def _print(found: list[BacklogInfo], *, by_segment: bool) -> None:
    rows = []
    for each in found:
        rows.append([*table.subscription_row(each), table.trend(each)])
        if by_segment:
            rows += [[*table.segment_row(part, each), table.trend(part)] for part in each.segments]
    print_table((*table.COLUMNS, ""), rows, numbers=table.NUMBERS, drop=table.DROP)
    for line in table.counted_lines(found, time.time_ns() // 1_000_000):
        click.echo(line, err=True)


@command(
    "headgate backlog verify",
    "headgate backlog verify orders",
    "headgate backlog verify --ledger file:///var/lib/headgate/ledger --json",
    group=backlog,
)
@optional_topic_argument
@click.option(
    "--ledger", type=Url(), metavar="URL", help="Ledger to count. [default: ledger_url of the client configuration]"
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="Spark setting; can be repeated.")
def verify(context: CommandContext, topic: str | None, ledger: str | None, master: str, conf: tuple[str, ...]) -> None:
    """Count the whole ledger again, and compare the result with the incremental count.

    Compares records, bytes, positions, acknowledgements above them, ages and generations. Rates are not compared,
    because they depend on when a count ran. Exit code 1 if anything differs. The command starts its own Spark, which
    takes about 20 seconds, plus one second per few thousand chunks.

    For external topics, only the ledger's data is compared: segments, end offsets and acknowledgements to headgate.
    Their tables are not read: every count of a table is a full count.
    """
    if not daemon_is_installed():
        raise HeadgateError(f"the count needs Spark; {installation_hint('drain')}")
    command = python_module("headgate", "drain", "verify", "--master", master)
    command += [part for pair in conf for part in ("--conf", pair)]
    counted = ledger or context.client_config().ledger_url
    if ledger is None or topic is not None:
        announced, shard, topic_id, external = context.ask(lambda admin: _locate_topic(admin, topic))
        if ledger is None:
            _refuse_another_ledger(context.client_config(), announced)
        if external:
            click.echo(f"external topics, whose tables are not read: {listed(external)}", err=True)
        if topic_id is not None:
            command += ["--shard", str(shard), "--topic-id", str(topic_id)]
    command += ["--ledger", counted, *(["--json"] if context.as_json else [])]
    sys.stdout.flush()
    code, jvm_output = context.run_recount(command)
    if code not in {0, 1}:
        click.echo(jvm_output, err=True, nl=False)
        raise HeadgateError(f"the recount failed with exit code {code}; the lines above show why")
    if code:
        raise click.exceptions.Exit(code)


def _refuse_another_ledger(config: ClientConfig, announced: str) -> None:
    """Raise ConfigError if the cluster announces a ledger other than the configured one.

    An announcement alone is not enough: any client of the broker can publish one, and Spark reads with the rights of
    this user.
    """
    if announced != config.ledger_url:
        raise ConfigError(
            f"ledger_url is {config.ledger_url!r} in {config.file or 'the client configuration'}, but the cluster "
            f"announces {announced!r}: correct it, or name the ledger to count with --ledger"
        )


async def _locate_topic(admin: Admin, topic: str | None) -> tuple[str, int | None, int | None, list[str]]:
    """Return the announced ledger, shard and id of ``topic``, and the external ones among the topics in question."""
    url = await admin.ledger_url()
    if topic is None:
        external = [each.topic for each in await admin.list_topics() if each.external is not None]
        return url, None, None, sorted(external)
    described = await admin.describe_topic(topic)
    return url, described.shard, described.topic_id, [topic] * (described.external is not None)
