"""`headgate subscription seek` and `set-order`: move a subscription, or change its order, while consumers run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from controller.cli import context as session
from controller.cli.output import examples, json_option, print_json, print_table
from headgate.model.identifiers import Offset, SegmentId

if TYPE_CHECKING:
    from headgate import SeekResult, SegmentSeek, SubscriptionInfo
    from headgate.model.entries import Order
    from headgate.protocol.messages import Start

_MAX_INT64 = 2**63 - 1


class Timestamp(click.ParamType[int]):
    """A moment in ISO 8601 with its offset from UTC; becomes milliseconds since 1970."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the milliseconds; fails with an example for anything that is not one moment."""
        if isinstance(value, int):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write it like 2026-01-31T18:00:00Z", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} does not say where: add Z for UTC, or an offset like +01:00", param, ctx)
        at_ms = round(moment.timestamp() * 1000)
        if at_ms < 0:
            self.fail(f"{value!r} is before 1970", param, ctx)
        return at_ms


class Position(click.ParamType[tuple[SegmentId, Offset]]):
    """``SEGMENT=OFFSET``."""

    name = "segment=offset"

    def convert(
        self, value: str | tuple[SegmentId, Offset], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[SegmentId, Offset]:
        """Return the pair; fails with an example for anything else."""
        if isinstance(value, tuple):
            return value
        segment, _, offset = value.partition("=")
        if not (segment.isascii() and segment.isdigit() and offset.isascii() and offset.isdigit()):
            self.fail(f"{value!r} is not a position; write it like 3=1200", param, ctx)
        if max(int(segment), int(offset)) > _MAX_INT64:
            self.fail(f"{value!r}: no segment or offset is beyond {_MAX_INT64}", param, ctx)
        return SegmentId(int(segment)), Offset(int(offset))


@click.command(
    epilog=examples(
        "headgate subscription seek orders billing --to earliest",
        "headgate subscription seek orders billing --timestamp 2026-01-31T18:00:00Z --dry-run",
        "headgate subscription seek orders billing --position 3=1200 --position 4=0",
    ),
)
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@click.option("--to", type=click.Choice(["earliest", "latest"]), help="The first record there is, or the present end.")
@click.option("--timestamp", "timestamp_ms", type=Timestamp(), help="The first record stored then or later.")
@click.option(
    "--position", "pairs", type=Position(), multiple=True, help="An offset of one segment; may be given several times."
)
@click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing.")
@json_option
@session.config_option
def seek(
    topic: str,
    name: str,
    to: Start | None,
    timestamp_ms: int | None,
    pairs: tuple[tuple[SegmentId, Offset], ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move SUBSCRIPTION of TOPIC; what comes after its new positions is delivered again, in order.

    Consumers run on: each starts anew at the new positions, and acknowledgements of what it was given before do not
    count any more. In strict order the children of a segment that is not at its end begin again at 0 and wait. Segments
    that are not named with --position stay where they are, unless they come after one that is.
    """
    if sum((to is not None, timestamp_ms is not None, bool(pairs))) != 1:
        raise click.UsageError("Give exactly one of --to, --timestamp and --position.")
    positions = dict(pairs)
    if len(positions) < len(pairs):
        raise click.UsageError("A segment is named twice with --position.")

    async def carry_out() -> SeekResult:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.seek(
                topic, name, to=to, timestamp_ms=timestamp_ms, positions=positions or None, dry_run=dry_run
            )

    answer = session.run(carry_out())
    if as_json:
        print_json({"seek_generation": answer.seek_generation, "moves": answer.moves})
        return
    print_table(
        ("segment", "from", "to", "end", "what follows"),
        [
            (str(move.segment), str(move.from_offset), str(move.to_offset), str(move.end_offset), describe_move(move))
            for move in answer.moves
        ],
        numbers=("segment", "from", "to", "end"),
    )
    if dry_run:
        click.echo(f"subscription {name} of {topic} would move so; nothing was moved", err=True)
    else:
        click.echo(f"subscription {name} of {topic} is moved (seek {answer.seek_generation})", err=True)


def describe_move(move: SegmentSeek) -> str:
    """Return what ``move`` means for the consumers, in a few words."""
    if move.to_offset > move.from_offset:
        return f"{move.to_offset - move.from_offset} passed over"
    if move.to_offset < move.from_offset:
        return f"{move.from_offset - move.to_offset} delivered again"
    return "stays"


@click.command(
    "set-order",
    epilog=examples(
        "headgate subscription set-order orders billing none",
        "headgate subscription set-order orders billing strict",
    ),
)
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@click.argument("order", type=click.Choice(["strict", "none"]))
@json_option
@session.config_option
def set_order(topic: str, name: str, order: Order, as_json: bool) -> None:
    """Let the children of a split wait for their ancestors in SUBSCRIPTION of TOPIC, or not.

    With "strict" (the default of STREAM) a child is read only when every ancestor is drained, so that each key comes in
    order. With "none" nothing waits. Either may be set at any time; consumers run on.
    """

    async def carry_out() -> SubscriptionInfo:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.set_order(topic, name, order)

    described = session.run(carry_out())
    if as_json:
        print_json(described)
        return
    blocked = sum(segment.status == "blocked" for segment in described.segments)
    waiting = f"; {blocked} of {len(described.segments)} segments wait for their ancestors" if blocked else ""
    click.echo(f"order of subscription {name} of {topic} is {described.order}{waiting}", err=True)
