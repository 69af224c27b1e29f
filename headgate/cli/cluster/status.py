"""`headgate status`: the whole cluster on one screen, once or again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table
from headgate.cli.terminal.seconds_type import Seconds
from headgate.model.time_text import time_of_day

if TYPE_CHECKING:
    from headgate.views.cluster import ClusterInfo

TIMEOUT_SECONDS: Final = 4.0
"""A person who looks because something is broken must not wait: with its start, the command ends within 5 seconds."""
SHORTEST_INTERVAL_SECONDS: Final = 0.5
"""A daemon collects at most once a second."""


@command("headgate status", "headgate status --watch", "headgate status --json", "headgate status --timeout 30")
@click.option(
    "--watch",
    "interval_seconds",
    type=Seconds(SHORTEST_INTERVAL_SECONDS),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Show it again after each pause of SECONDS (2) until Ctrl-C.",
)
def status(context: CommandContext, interval_seconds: float | None) -> None:
    """Show daemons, leaders, what is degraded, and the subscriptions.

    One daemon answers for the cluster and asks the others; "unreachable" are those that do not answer it.
    Subscriptions that have been blocked longest come first, then those with the largest backlog. Spark counts the
    acknowledged records/s, leaders the other numbers. "drained in" is backlog ÷ (acked/s - in/s), or "never" if the
    backlog does not shrink.

    With --watch, a terminal is drawn again in place, and each answer has its time. With --json too, each answer is one
    line. While no leader answers, --watch says so on standard error.

    Waits 4 seconds for an answer, unless --timeout says otherwise. Exit code 1 if no leader answers: the error says
    which shards have none.
    """
    context.reply_timeout_seconds = TIMEOUT_SECONDS
    if interval_seconds is not None:
        context.watch(lambda admin: admin.describe_cluster(), _print_with_time, interval_seconds)
        return
    context.show(lambda admin: admin.describe_cluster(), _print)


def _print_with_time(found: ClusterInfo) -> None:
    click.echo(f"{time_of_day(found.as_of_ms)}, by {found.daemon}")
    _print(found)


def _print(found: ClusterInfo) -> None:
    # Only here: it needs the values of the client, and `headgate --help` nothing.
    from headgate.cli.cluster import status_report as report  # noqa: PLC0415

    for line in report.report_lines(found):
        click.echo(line)
    if found.subscriptions:
        click.echo("")
        rows = report.subscription_rows(found.subscriptions, found.as_of_ms)
        print_table(report.COLUMNS, rows, numbers=report.NUMBERS, drop=report.DROP)
        if len(found.subscriptions) > len(rows):
            click.echo(f"and {len(found.subscriptions) - len(rows)} more; see --json")
