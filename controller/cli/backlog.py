"""`headgate backlog`: what is not acknowledged, how old it is, and when it will be over; and whether that is true."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import click
import msgspec

from controller.cli import backlog_table as table
from controller.cli import context as session
from controller.cli.output import examples, json_option, print_json, print_table
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from rich.table import Table

    from headgate import Admin, BacklogInfo

WATCH_INTERVAL_SECONDS: Final = 2.0
MAX_NAMES_SHOWN: Final = 10


class _ShowByDefault(click.Group):
    """``headgate backlog orders`` is ``headgate backlog show orders``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "--help", "-h"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[TOPIC] [--subscription NAME] [--watch] [--segments] [--json]")
        formatter.write_usage(ctx.command_path, "verify [TOPIC] [--ledger URL] [--json]")


@click.group(
    cls=_ShowByDefault,
    epilog=examples(
        "headgate backlog",
        "headgate backlog orders --segments",
        "headgate backlog orders --subscription billing --watch",
        "headgate backlog verify",
    ),
)
def backlog() -> None:
    """Show what subscriptions have not acknowledged.

    Spark counts it, incrementally; `headgate backlog verify` counts everything once more and compares.
    """


@backlog.command(
    epilog=examples("headgate backlog orders", "headgate backlog show orders --watch", "headgate backlog --json"),
)
@click.argument("topic", required=False)
@click.option("--subscription", "-s", metavar="NAME", help="Only this subscription (of TOPIC).")
@click.option("--segments", "by_segment", is_flag=True, help="A row for each segment as well.")
@click.option("--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@json_option
@session.config_option
def show(topic: str | None, subscription: str | None, by_segment: bool, watch: bool, as_json: bool) -> None:
    """Show the backlogs of TOPIC, or of all topics.

    "oldest" is the age of the first record not acknowledged; rates are over about the last minute; "drained in" is
    the backlog ÷ (acked/s less in/s), "never" if that does not shrink it, "?" while that is not known yet.
    With --watch and --json, one JSON document a line.

    Of an external topic is shown what its tables tell (drain.external), as of the time when they were last counted:
    they are read as a whole, so not at every look. What no table tells is "-", null in JSON, and it is said why.
    """
    if subscription is not None and topic is None:
        raise click.UsageError("--subscription needs a TOPIC")

    async def once() -> list[BacklogInfo]:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.backlog(topic, subscription)

    if watch:
        session.run(_watch(topic, subscription, by_segment=by_segment, as_json=as_json))
        return
    found = session.run(once())
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no subscriptions yet; the first consumer of one creates it: headgate consume --help", err=True)
        return
    print_table((*table.COLUMNS, ""), _rows(found, by_segment=by_segment), numbers=table.NUMBERS)
    for line in table.counted_lines(found, _now_ms()):
        click.echo(line, err=True)


def _rows(found: list[BacklogInfo], *, by_segment: bool) -> list[list[str]]:
    rows = []
    for each in found:
        rows.append([*table.subscription_row(each), table.outlook_trend(each)])
        if by_segment:
            rows += [[*table.segment_row(part, each), table.outlook_trend(part)] for part in each.segments]
    return rows


async def _watch(topic: str | None, subscription: str | None, *, by_segment: bool, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    history: dict[tuple[str, str], list[int]] = defaultdict(list)
    async with session.open_admin(session.client_config()) as admin:
        if as_json:
            while True:
                found = await admin.backlog(topic, subscription)
                click.echo(msgspec.json.encode(found).decode())
                await asyncio.sleep(WATCH_INTERVAL_SECONDS)
        # Nothing is drawn into a pipe but what changes: one table a look.
        with Live(console=Console(highlight=False), auto_refresh=False, screen=False) as live:
            while True:
                live.update(
                    await _render_table(admin, topic, subscription, history, by_segment=by_segment), refresh=True
                )
                await asyncio.sleep(WATCH_INTERVAL_SECONDS)


async def _render_table(
    admin: Admin,
    topic: str | None,
    subscription: str | None,
    history: dict[tuple[str, str], list[int]],
    *,
    by_segment: bool,
) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    found = await admin.backlog(topic, subscription)
    # Text, so that a path with brackets in it is not taken for markup.
    caption = Text("\n".join(table.counted_lines(found, _now_ms())))
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, caption=caption)
    for column in (*table.COLUMNS, "", "trend"):
        shown.add_column(column, justify="right" if column in table.NUMBERS else "left", no_wrap=True)
    for each in found:
        seen = history[each.topic, each.subscription]
        if each.records is not None:
            seen.append(each.records)
            del seen[: -table.SPARKS]
        before = seen[-2] if len(seen) > 1 else None
        cells = [*table.subscription_row(each), table.trend(before, each.records), table.sparkline(seen)]
        shown.add_row(*map(Text, cells))
        if by_segment:
            for part in each.segments:
                shown.add_row(*map(Text, [*table.segment_row(part, each), table.outlook_trend(part), ""]))
    return shown


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@backlog.command(
    epilog=examples(
        "headgate backlog verify",
        "headgate backlog verify orders",
        "headgate backlog verify --ledger file:///var/lib/headgate/ledger --json",
    ),
)
@click.argument("topic", required=False)
@click.option("--ledger", metavar="URL", help="The ledger to count. [default: the cluster's own]")
@click.option("--master", default="local[*]", show_default=True, help="Spark master that counts.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting for Spark; may be repeated.")
@click.option(
    "--reader",
    type=click.Choice(["auto", "spark"]),
    default="auto",
    show_default=True,
    help="Who reads a ledger in a bucket: Spark's workers through obstore, or Spark's own file systems.",
)
@json_option
@session.config_option
def verify(
    topic: str | None, ledger: str | None, master: str, conf: tuple[str, ...], reader: str, as_json: bool
) -> None:
    """Count the whole ledger anew, and compare with what was counted by increments.

    Everything is compared: records, bytes, positions, what is acknowledged above them, ages, generations. Rates are
    not, because they follow from when somebody counted. Exit code 1 if anything differs. It starts a Spark of its own
    and takes about 20 seconds, and 1 more for each few thousand chunks.

    Of external topics only what the ledger holds is compared: segments, ends, what was acknowledged to headgate. Their
    tables are not read: each count of them is a full one, so there are no increments to compare it to.
    """
    command = [sys.executable, "-m", "drain.backlog.verify", "--master", master, "--reader", reader]
    command += [part for pair in conf for part in ("--conf", pair)]
    if ledger is None or topic is not None:
        url, shard, topic_id, external = session.run(_locate_topic(topic))
        ledger = ledger or url
        if external:
            names = ", ".join(external[:MAX_NAMES_SHOWN]) + (", …" if len(external) > MAX_NAMES_SHOWN else "")
            click.echo(f"external, their tables are not read here: {names}", err=True)
        if topic_id is not None:
            command += ["--shard", str(shard), "--topic-id", str(topic_id)]
    command += ["--ledger", ledger, *(["--json"] if as_json else [])]
    sys.stdout.flush()
    code, jvm_output = _run(command)
    if code not in {0, 1}:
        click.echo(jvm_output, err=True, nl=False)
        raise HeadgateError(f"the recount could not be carried out (code {code}); the lines above say why")
    if code:
        raise click.exceptions.Exit(code)


def _run(command: list[str]) -> tuple[int, str]:
    """Run ``command``; return its exit code, and what a JVM says while it starts, which nobody wants to read."""
    jvm_output = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None, "asked for"
        for line in process.stderr:
            if line.startswith("headgate:") or line.endswith("…\n"):
                click.echo(line, err=True, nl=False)
            else:
                jvm_output.append(line)
    return process.returncode, "".join(jvm_output)


async def _locate_topic(topic: str | None) -> tuple[str, int | None, int | None, list[str]]:
    """Return the cluster's ledger, shard and id of ``topic``, and which of the topics that are meant are external."""
    async with session.open_admin(session.client_config()) as admin:
        url = await admin.ledger_url()
        if topic is None:
            external = [each.topic for each in await admin.list_topics() if each.external is not None]
            return url, None, None, sorted(external)
        described = await admin.describe_topic(topic)
        return url, described.shard, described.topic_id, [topic] * (described.external is not None)
