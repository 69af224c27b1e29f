"""`headgate status`: the whole cluster on one screen."""

from __future__ import annotations

import click

from headgate.cli.context import CommandContext, with_context
from headgate.cli.terminal.output import examples, json_option, print_json, print_table

TIMEOUT_SECONDS = 4.0
"""A person who looks because something is broken must not wait: with its start, the command ends within 5 seconds."""


@click.command(epilog=examples("headgate status", "headgate status --json", "headgate status --timeout 30"))
@json_option
@with_context
def status(context: CommandContext, as_json: bool) -> None:
    """Show daemons, leaders, what is degraded and what is blocked.

    One daemon answers for the cluster and asks the others; "unreachable" are those that do not answer it. "since" is
    how long the present leader has seen a segment blocked, so it starts again with a change of leader. Spark counts the
    acknowledged records/s, leaders the other numbers.

    Waits 4 seconds for an answer, unless --timeout says otherwise. Exit code 1 if no leader answers: the error says
    which shards have none.
    """
    context.reply_timeout_seconds = TIMEOUT_SECONDS
    found = context.ask(lambda admin: admin.describe_cluster(blocked=not as_json))
    if as_json:
        print_json(found)
        return
    # Only here: it needs the values of the client, and `headgate --help` nothing.
    from headgate.cli.cluster import status_report as report  # noqa: PLC0415

    for line in report.report_lines(found):
        click.echo(line)
    if found.subscriptions:
        click.echo("")
        print_table(report.BLOCKED_COLUMNS, report.blocked_rows(found.subscriptions, found.as_of_ms))
        if len(found.subscriptions) > report.MAX_BLOCKED:
            click.echo(f"and {len(found.subscriptions) - report.MAX_BLOCKED} more; see --json")
