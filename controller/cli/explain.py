"""`headgate explain` and `headgate plan`: why a segment is where it is, and what a change would move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from controller.cli import context as session
from controller.cli.output import examples, json_option, print_json, print_table
from headgate.model.bucket_ranges import slice_of
from headgate.model.identifiers import SegmentId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate import Explanation, Plan, ProposedMove


@click.command(
    epilog=examples(
        "headgate explain orders --subscription billing",
        "headgate explain orders --subscription billing --segment 3",
        "headgate explain orders --subscription billing --consumer c1 --json",
    ),
)
@click.argument("topic")
@click.option("--subscription", "-s", required=True, metavar="NAME", help="The subscription to explain.")
@click.option("--segment", type=click.IntRange(min=0), help="Only this segment.")
@click.option("--consumer", metavar="NAME", help="Only this consumer.")
@json_option
@session.config_option
def explain(topic: str, subscription: str, segment: SegmentId | None, consumer: str | None, as_json: bool) -> None:
    """Say why segments of TOPIC are, or are not, with a consumer.

    A segment that waits names the ancestors that block it, with what is left there and how long that takes; one on its
    way names whose confirmation is missing; a consumer without work is told why.
    """

    async def ask() -> Explanation:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.explain(topic, subscription, segment=segment, consumer=consumer)

    explained = session.run(ask())
    if as_json:
        print_json(explained)
        return
    for line in explained.summary:
        click.echo(line)
    for heading, parts in (("Segments", explained.segments), ("Consumers", explained.consumers)):
        if parts:
            click.echo(f"\n{heading}")
        for part in parts:
            for index, sentence in enumerate(part.sentences):
                click.echo(f"{'    ' if index else '  '}{sentence}")


@click.command(
    epilog=examples(
        "headgate plan orders --subscription billing --split 3",
        "headgate plan orders --subscription billing --merge 4,5 --add-consumer c9",
        "headgate plan orders --subscription billing --remove-consumer c1 --json",
    ),
)
@click.argument("topic")
@click.option("--subscription", "-s", required=True, metavar="NAME", help="The subscription that would follow.")
@click.option("--split", "splits", type=click.IntRange(min=0), multiple=True, help="Suppose that it is split.")
@click.option("--merge", "merges", multiple=True, metavar="A,B", help="Suppose that these two are merged.")
@click.option("--add-consumer", "joins", multiple=True, metavar="NAME", help="Suppose that it joins.")
@click.option("--remove-consumer", "leaves", multiple=True, metavar="NAME", help="Suppose that it leaves.")
@json_option
@session.config_option
def plan(
    topic: str,
    subscription: str,
    splits: tuple[SegmentId, ...],
    merges: tuple[str, ...],
    joins: tuple[str, ...],
    leaves: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what changes to TOPIC or its consumers would move, without doing anything.

    Each option can be given several times: splits come first, then merges, then who joins and who leaves.
    """
    pairs = [_pair(text) for text in merges]

    async def ask() -> Plan:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.plan(
                topic, subscription, splits=splits, merges=pairs, add_consumers=joins, remove_consumers=leaves
            )

    planned = session.run(ask())
    if as_json:
        print_json(planned)
        return
    if planned.created:
        click.echo("would be created:")
        print_table(
            ("segment", "hashes", "parents", "waits for"),
            [
                (
                    str(each.segment),
                    f"{each.first_hash:04x}-{each.last_hash:04x}",
                    ", ".join(map(str, each.parents)),
                    ", ".join(map(str, each.blocked_by)),
                )
                for each in planned.created
            ],
            numbers=("segment",),
        )
    _print_moves("would move at once:", planned.after_rebalance)
    _print_moves("would move once every sealed segment is drained:", planned.after_drain)
    if not (planned.after_rebalance or planned.after_drain):
        click.echo("nothing would move")
    if planned.consumers:
        print_table(
            ("consumer", "segments now", "at once", "when drained"),
            [
                (each.consumer, *("-" if count is None else str(count) for count in counts))
                for each in planned.consumers
                for counts in [(each.before, each.after_rebalance, each.after_drain)]
            ],
            numbers=("segments now", "at once", "when drained"),
        )
    click.echo("nothing was changed", err=True)


def _pair(text: str) -> tuple[SegmentId, SegmentId]:
    first, _, second = text.partition(",")
    if not (first.strip().isdecimal() and second.strip().isdecimal()):
        raise click.BadParameter(f"{text!r}: give two segments, e.g. 4,5", param_hint="--merge")
    return SegmentId(int(first)), SegmentId(int(second))


def _print_moves(heading: str, moves: Sequence[ProposedMove]) -> None:
    if not moves:
        return
    click.echo(heading)
    print_table(
        ("segment", "from", "to"),
        [
            (
                str(slice_of(move.segment, move.first_bucket, move.end_bucket)),
                move.before or "nobody",
                move.after or "nobody",
            )
            for move in moves
        ],
        numbers=("segment",),
    )
