"""`headgate subscription`: `seek`, `export`, `import` and `set-order`. Consumers may run meanwhile.

An exported file may be imported to any subscription of its topic. Its positions fit by the rules of
headgate.reading.topic_position, with one difference: the leader compares the history. The id of the ledger is another
one after a move.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import msgspec

from headgate.cli import arguments
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_json, print_table
from headgate.errors import HeadgateError, PositionOutOfRangeError
from headgate.model.identifiers import Offset, SegmentId
from headgate.model.text import UNREADABLE_JSON
from headgate.protocol.request_fields import Natural
from headgate.reading.topic_position import continued, require_topic, unfinished, unread

if TYPE_CHECKING:
    from headgate import Admin, SeekResult, SegmentSeek, SubscriptionInfo, TopicInfo
    from headgate.model.entries import Order

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A position takes 20 bytes, and a topic has some thousand segments at most."""


class SavedPositions(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="headgate-positions-2"):
    topic: str
    topic_id: int
    subscription: str
    exported_at_ms: int
    point: tuple[Natural, Natural]
    """A chunk of the topic's shard that has these positions, and the term that wrote it."""
    newest: int
    """The newest segment; -1: there was none."""
    offsets: dict[Natural, Natural]
    """Segments that were not read to their final end → the first record that was not acknowledged."""


def saved_positions(topic: TopicInfo, subscription: SubscriptionInfo, now_ms: int) -> SavedPositions:
    """Return the positions of ``subscription``, which was described before ``topic``."""
    assert subscription.point is not None, "a leader states it with each description"
    reached = {each.segment: each.acknowledged_offset for each in subscription.segments}
    return SavedPositions(
        topic=topic.topic,
        topic_id=topic.topic_id,
        subscription=subscription.subscription,
        exported_at_ms=now_ms,
        point=subscription.point,
        newest=max(reached, default=-1),
        offsets=unfinished(topic, reached),
    )


def decode_positions(data: bytes) -> SavedPositions:
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes, so it holds no positions")
    try:
        return msgspec.json.decode(data, type=SavedPositions)
    except UNREADABLE_JSON as error:
        raise ValueError(f"it holds no positions of 'headgate subscription export': {error}") from None


def positions_to_restore(
    saved: SavedPositions, topic: TopicInfo, pruned_ends: Mapping[int, int]
) -> dict[SegmentId, Offset]:
    """Return the position of every segment of ``topic``; raises HeadgateError. ``pruned_ends``: as far as known."""
    try:
        require_topic(topic, saved.topic, saved.topic_id)
        starts = continued(topic, saved.newest, saved.offsets, pruned_ends=pruned_ends)
    except PositionOutOfRangeError as error:
        raise HeadgateError(f"{error}; 'headgate subscription seek' moves without the file") from None
    return {each.segment: Offset(starts.get(each.segment, each.next_offset)) for each in topic.segments}


def require_positions(topic: TopicInfo, subscription: SubscriptionInfo) -> None:
    """Raise HeadgateError for a subscription that cannot be moved to positions."""
    name = f"subscription {subscription.subscription!r} of topic {topic.topic!r}"
    if topic.external is not None:
        raise HeadgateError(f"{name} reads an external topic: only its source can say what its positions mean")
    if subscription.type == "CHECKPOINT":
        raise HeadgateError(f"{name} is of type CHECKPOINT: its consumers keep their own positions")


@command(
    "headgate subscription seek orders billing --to earliest",
    "headgate subscription seek orders billing --to 2026-01-31T18:00:00Z --dry-run",
    "headgate subscription seek orders billing --position 3=1200 --position 4=0 --yes",
)
@arguments.of_subscription
@click.option(
    "--to",
    type=arguments.Place(elsewhere="; one segment: --position 3=1200"),
    help=f"Where to move every segment. {arguments.PLACE_HELP}",
)
@click.option(
    "--position",
    "pairs",
    type=arguments.Position(),
    multiple=True,
    help="Move one segment to an offset; can be repeated.",
)
@arguments.consent_options("move")
def seek(
    context: CommandContext,
    topic: str,
    name: str,
    to: arguments.PlaceOption | None,
    pairs: tuple[tuple[SegmentId, Offset], ...],
) -> None:
    """Move SUBSCRIPTION of TOPIC. Records after the new positions are delivered in order, again if necessary.

    Consumers keep running and continue at the new positions. Acknowledgements of earlier deliveries are ignored. With
    strict order, the children of a segment that is not at its end start at 0 again and wait for it. Segments that are
    not named with --position do not move, unless they descend from one that does.

    The previous positions are lost. On a terminal, the command shows what would move and asks first. Elsewhere it
    needs --yes.
    """
    if (to is None) != bool(pairs):
        raise click.UsageError("give either --to or --position")
    positions = dict(pairs)
    if len(positions) < len(pairs):
        raise click.UsageError("--position names a segment twice")

    arguments.require_consent(context)
    target = {"positions": positions} if to is None else arguments.place_arguments(to, "to")
    move_subscription(context, topic, name, target)


def move_subscription(context: CommandContext, topic: str, name: str, target: Mapping[str, Any]) -> None:
    """Seek to ``target``, arguments of `Admin.seek`; without consent, show what would move and ask first."""
    what, seen = f"subscription {name} of {topic}", arguments.seen_before(context, topic, name)

    def request(*, dry_run: bool) -> SeekResult:
        return context.ask(lambda admin: admin.bound_to(seen).seek(topic, name, **target, dry_run=dry_run))

    if context.asks_first:
        proposed = request(dry_run=True)
        _print_moves(proposed, err=True)
        # Also if no position differs: what was acknowledged behind them is delivered again.
        arguments.ask_first(f"Move {what}?", f"{what} was not moved")
    answer = request(dry_run=context.dry_run)
    if context.printed_as_json({"seek_generation": answer.seek_generation, "moves": answer.moves}):
        return
    _print_moves(answer)
    if context.dry_run:
        click.echo(f"dry run: {what} was not moved", err=True)
    else:
        click.echo(f"{what} moved (seek generation {answer.seek_generation})", err=True)


def _print_moves(answer: SeekResult, *, err: bool = False) -> None:
    rows = [
        (each.segment, each.from_offset, each.to_offset, each.end_offset, describe_move(each)) for each in answer.moves
    ]
    print_table(("segment", "from", "to", "end", "effect"), rows, err=err)


def describe_move(move: SegmentSeek) -> str:
    if move.to_offset > move.from_offset:
        return f"{move.to_offset - move.from_offset} skipped"
    return f"{move.from_offset - move.to_offset} delivered again" if move.to_offset < move.from_offset else "unchanged"


@command(
    "headgate subscription set-order orders billing none",
    "headgate subscription set-order orders billing strict",
    name="set-order",
)
@arguments.of_subscription
@click.argument("order", type=click.Choice(["strict", "none"]))
def set_order(context: CommandContext, topic: str, name: str, order: Order) -> None:
    """Set whether the children of a split wait for their ancestors in SUBSCRIPTION of TOPIC.

    strict (the default of STREAM): a child is read only when every ancestor is drained, so each key stays in order.
    none: children do not wait. The order can be changed at any time, while consumers run.
    """
    described = context.ask(lambda admin: admin.set_order(topic, name, order))
    blocked = sum(segment.status == "blocked" for segment in described.segments)
    waiting = f"; {blocked} of {len(described.segments)} segments wait for their ancestors" if blocked else ""
    context.report(described, f"order of subscription {name} of {topic} set to {described.order}{waiting}")


async def _described(admin: Admin, topic: str, name: str) -> tuple[TopicInfo, SubscriptionInfo]:
    """Raise HeadgateError for a subscription that cannot be moved to positions."""
    before = await admin.describe_topic(topic)
    subscription = await admin.describe_subscription(topic, name)
    described = await admin.describe_topic(topic)
    require_topic(described, topic, before.topic_id)  # Positions of a deleted one would skip records in it.
    require_positions(described, subscription)
    return described, subscription


async def _to_restore(admin: Admin, topic: str, name: str, saved: SavedPositions) -> dict[SegmentId, Offset]:
    described, _ = await _described(admin, topic, name)
    pruned = unread(described, saved.newest, saved.offsets).keys() - {each.segment for each in described.segments}
    return positions_to_restore(saved, described, await admin.pruned_ends(topic, pruned) if pruned else {})


@command("headgate subscription export orders billing > billing.json", prints_json=False)
@arguments.of_subscription
def export(context: CommandContext, topic: str, name: str) -> None:
    """Print the positions of SUBSCRIPTION of TOPIC.

    The output is one JSON document, for `headgate subscription import`. A position is the first record of a segment
    that is not acknowledged. Records above it that a QUEUE, or one of several consumers of a segment, has acknowledged
    are not saved: after an import they are delivered again.
    """
    described, subscription = context.ask(lambda admin: _described(admin, topic, name))
    print_json(saved_positions(described, subscription, time.time_ns() // 1_000_000))


@command(
    "headgate subscription import orders billing billing.json --dry-run",
    "headgate subscription import orders billing billing.json --yes",
    "headgate subscription import orders audit billing.json",
    name="import",
)
@arguments.of_subscription
@click.argument("file", type=click.File("rb"), default="-")
@arguments.consent_options("move")
def import_(context: CommandContext, topic: str, name: str, file: BinaryIO) -> None:
    """Move SUBSCRIPTION of TOPIC to exported positions.

    It moves as with `seek`, while its consumers run. FILE (standard input by default) is the output of `headgate
    subscription export` for any subscription of the same topic. Segments that were created since then start at their
    first record. If a position does not fit, or unread records were pruned since, nothing is moved.

    The previous positions are lost. On a terminal, the command shows what would move and asks first. Elsewhere it
    needs --yes.
    """
    arguments.require_consent(context)
    try:
        saved = decode_positions(file.read(MAX_FILE_BYTES + 1))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    positions = context.ask(lambda admin: _to_restore(admin, topic, name, saved))
    move_subscription(context, topic, name, {"positions": positions, "point": saved.point, "topic_id": saved.topic_id})
