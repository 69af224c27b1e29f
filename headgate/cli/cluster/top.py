"""`headgate top`: the subscriptions of the whole cluster, live in a terminal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from headgate.cli.context import CommandContext, with_context
from headgate.cli.terminal.output import examples
from headgate.cli.terminal.seconds_type import Seconds

if TYPE_CHECKING:
    from headgate.cli.cluster.activity import Order

ORDERS = ("lag", "in", "out", "blocked", "name")
SHORTEST_INTERVAL_SECONDS = 0.5
"""A daemon collects at most once a second."""
KEYS = """\b
Keys:
  l i o b n  sort by backlog, in/s, acked/s, blocked, name; again: reverse
  /          show only topics and subscriptions that contain what you type
  Escape     show all
  q, Ctrl-C  quit"""
TIMEOUT_SECONDS = 4.0
"""Longest wait for one answer; then the data are marked as stale."""


@click.command(
    epilog=f"{KEYS}\n\n{examples('headgate top', 'headgate top --sort blocked --interval 10')}",
)
@click.option("--sort", "order", type=click.Choice(ORDERS), default="lag", show_default=True, help="What comes first.")
@click.option(
    "--interval",
    "interval_seconds",
    type=Seconds(SHORTEST_INTERVAL_SECONDS),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="Pause between two questions.",
)
@with_context
def top(context: CommandContext, order: Order, interval_seconds: float) -> None:
    """Show the rates and the backlog of each subscription, live.

    "in/s" is what arrives in the topic, the mean of half a minute. "acked/s" is counted by Spark; until it has counted,
    it follows from two answers and begins with "~". "ETA" is backlog ÷ (acked/s - in/s), or "never" if the backlog does
    not shrink. The second line says STALE if the cluster does not answer, or shows nothing newer.

    Needs a terminal. Programs use: headgate status --json
    """
    if not context.can_draw():
        raise click.UsageError("top needs a terminal; for a program there is: headgate status --json")
    context.reply_timeout_seconds = TIMEOUT_SECONDS
    context.run(_show(context, order, interval_seconds))


async def _show(context: CommandContext, order: Order, interval_seconds: float) -> None:
    from headgate.cli.cluster.top_screen import TopScreen  # noqa: PLC0415 - textual takes a quarter of a second

    async with context.open_admin() as admin:
        if not context.debug:
            # A log line would be written across the screen. The second line of the screen says what is wrong.
            logging.getLogger("headgate").setLevel(logging.CRITICAL + 1)
        screen = TopScreen(admin.describe_cluster, order=order, interval_seconds=interval_seconds)
        await screen.run_async()
        if screen.failure is not None:
            raise screen.failure
