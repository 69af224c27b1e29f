"""`headgate explain` and `headgate plan`: why segments are assigned as they are, and what a change would move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import complete_consumer, of_subscription
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table
from headgate.model.identifiers import SegmentId
from headgate.model.layout import slice_of
from headgate.model.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate import Explanation, Plan, ProposedMove


@command(
    "headgate explain orders billing",
    "headgate explain orders billing --segment 3",
    "headgate explain orders billing --consumer c1 --json",
)
@of_subscription
@click.option("--segment", type=click.IntRange(min=0), help="Explain only this segment.")
@click.option("--consumer", metavar="NAME", shell_complete=complete_consumer, help="Explain only this consumer.")
def explain(context: CommandContext, topic: str, name: str, segment: SegmentId | None, consumer: str | None) -> None:
    """Explain why consumers of TOPIC have their segments, or have none.

    For a blocked segment: the ancestors that block it, their remaining records and the estimated time. For a segment in
    handover: the consumer that has not confirmed yet. For an idle consumer: the reason.
    """
    context.show(lambda admin: admin.explain(topic, name, segment=segment, consumer=consumer), _print_explanation)


def _print_explanation(explained: Explanation) -> None:
    for line in explained.summary:
        click.echo(line)
    for heading, parts in (("Segments", explained.segments), ("Consumers", explained.consumers)):
        if parts:
            click.echo(f"\n{heading}")
        for part in parts:
            for index, sentence in enumerate(part.sentences):
                click.echo(f"{'    ' if index else '  '}{sentence}")


@command(
    "headgate plan orders billing --split 3",
    "headgate plan orders billing --merge 4,5 --add-consumer c9",
    "headgate plan orders billing --remove-consumer c1 --json",
)
@of_subscription
@click.option(
    "--split", "splits", type=click.IntRange(min=0), multiple=True, metavar="SEGMENT", help="Split this segment."
)
@click.option("--merge", "merges", multiple=True, metavar="A,B", help="Merge these two segments.")
@click.option("--add-consumer", "add_consumers", multiple=True, metavar="NAME", help="Add this consumer.")
@click.option("--remove-consumer", "remove_consumers", multiple=True, metavar="NAME", help="Remove this consumer.")
def plan(context: CommandContext, topic: str, name: str, merges: tuple[str, ...], **given: Any) -> None:
    """Show which segments a change to TOPIC or its consumers would move. Changes nothing.

    Each option can be repeated. Splits apply first, then merges, added consumers and removed consumers.
    """
    pairs = [_pair(text) for text in merges]
    context.show(lambda admin: admin.plan(topic, name, merges=pairs, **given), _print_plan)


def _print_plan(planned: Plan) -> None:
    if planned.created:
        click.echo("Segments that would be created:")
        rows = [
            (each.segment, f"{each.first_hash:04x}-{each.last_hash:04x}", listed(each.parents), listed(each.blocked_by))
            for each in planned.created
        ]
        print_table(("segment", "hashes", "parents", "blocked by"), rows)
    _print_moves("Moves at once:", planned.after_rebalance)
    _print_moves("Moves when every sealed segment is drained:", planned.after_drain)
    if not (planned.after_rebalance or planned.after_drain):
        click.echo("no segment would move")
    if planned.consumers:
        print_table(
            ("consumer", "segments now", "at once", "when drained"),
            [(each.consumer, each.before, each.after_rebalance, each.after_drain) for each in planned.consumers],
        )
    click.echo("dry run: nothing was changed", err=True)


def _pair(text: str) -> tuple[SegmentId, SegmentId]:
    first, _, second = text.partition(",")
    if not (first.strip().isdecimal() and second.strip().isdecimal()):
        raise click.BadParameter(f"{text!r} is not a pair of segments; write for example 4,5", param_hint="--merge")
    return SegmentId(int(first)), SegmentId(int(second))


def _print_moves(heading: str, moves: Sequence[ProposedMove]) -> None:
    if not moves:
        return
    click.echo(heading)
    rows = [(slice_of(move.segment, move.first_bucket, move.end_bucket), move.before, move.after) for move in moves]
    print_table(("segment", "from", "to"), rows, numbers=("segment",))
