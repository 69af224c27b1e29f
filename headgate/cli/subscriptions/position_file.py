"""The file of `headgate subscription export`: positions, and what they belong to; and whether they fit. Pure.

Rules:

1. A file belongs to one topic, known by its name and id: a topic that was created again has other records. It may be
   imported to any subscription of that topic. It names a chunk and its term, which the leader compares: in an older
   ledger that was put back, offsets are of other records.
2. Each position is of a segment, known by its number and the time of its creation, because another cluster has the same
   ids. It lies within its records. Anything else is refused with the segment and the reason, and nothing is moved.
3. A segment that was pruned since must have been read to its end: its records are gone.
4. A segment that the file does not name was created after the export, so nothing of it had been read: it starts at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headgate.model.identifiers import Offset, SegmentId
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate.views.subscriptions import SubscriptionInfo
    from headgate.views.topics import TopicInfo

VERSION: Final = 1
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A position takes 200 bytes, and a topic has some thousand segments at most."""

_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PositionFileError(ValueError):
    """The positions cannot be exported or imported. The text says why, and what to do."""


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True):
    segment: _Natural
    created_at_ms: _Natural
    position: _Natural
    """Every record below it was acknowledged."""
    end_offset: _Natural
    """The end of the segment at the time of the export."""
    sealed: bool


class SavedPositions(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["headgate-positions"] = "headgate-positions"
    version: int = VERSION
    topic: str
    topic_id: int
    subscription: str
    exported_at_ms: int
    point: tuple[_Natural, _Natural]
    """A chunk of the topic's shard that has these positions, and the term that wrote it."""
    segments: list[SavedPosition]


def saved_positions(topic: TopicInfo, subscription: SubscriptionInfo, now_ms: int) -> SavedPositions:
    """Return the positions of ``subscription``, which was described before ``topic``; raises PositionFileError."""
    _require_positions(topic, subscription)
    described = {each.segment: each for each in topic.segments}
    assert subscription.point is not None, "a leader states it with each description"
    return SavedPositions(
        topic=topic.topic,
        topic_id=topic.topic_id,
        subscription=subscription.subscription,
        exported_at_ms=now_ms,
        point=subscription.point,
        segments=[
            SavedPosition(
                segment=each.segment,
                created_at_ms=described[each.segment].created_at_ms,
                position=each.acknowledged_offset,
                end_offset=each.next_offset,
                sealed=described[each.segment].state == "sealed",
            )
            for each in subscription.segments
            if each.segment in described  # Otherwise it was pruned between the two descriptions.
        ],
    )


def decode_positions(data: bytes) -> SavedPositions:
    if len(data) > MAX_FILE_BYTES:
        raise PositionFileError(f"it is larger than {MAX_FILE_BYTES} bytes, so it holds no positions")
    try:
        saved = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PositionFileError(f"it holds no positions of 'headgate subscription export': {error}") from None
    if saved.version != VERSION:
        raise PositionFileError(f"it has version {saved.version}, and this command reads version {VERSION}")
    return saved


def positions_to_restore(
    saved: SavedPositions, topic: TopicInfo, subscription: SubscriptionInfo
) -> dict[SegmentId, Offset]:
    """Return the position of every segment of ``topic``; raises PositionFileError by the rules above."""
    _require_positions(topic, subscription)
    if saved.topic != topic.topic:
        raise PositionFileError(f"its positions are of topic {saved.topic!r}, not of {topic.topic!r}")
    if saved.topic_id != topic.topic_id:
        raise PositionFileError(
            f"its positions are of topic {topic.topic!r} with id {saved.topic_id}, which was deleted: the present one "
            f"has id {topic.topic_id} and other records"
        )
    described = {each.segment: each for each in topic.segments}
    positions = {each.segment: Offset(0) for each in topic.segments}
    named: set[int] = set()
    for each in saved.segments:
        if each.segment in named:
            raise PositionFileError(f"it names segment {each.segment} twice")
        named.add(each.segment)
        segment = described.get(SegmentId(each.segment))
        if segment is None:
            if each.position < each.end_offset or not each.sealed:
                raise PositionFileError(
                    f"segment {each.segment} at position {each.position} of {each.end_offset} was not read to its end, "
                    f"and topic {topic.topic!r} has pruned it with its records; remove it from the file to skip them"
                )
            continue
        if each.created_at_ms != segment.created_at_ms:
            at = (utc_minute(each.created_at_ms), utc_minute(segment.created_at_ms))
            raise PositionFileError(
                f"segment {each.segment} was created at {at[0]}, and that of topic {topic.topic!r} at {at[1]}: its "
                "positions are of another cluster, or an older ledger was put back"
            )
        if each.position > segment.next_offset:
            raise PositionFileError(
                f"segment {each.segment} at position {each.position} is beyond its end {segment.next_offset}: was the "
                "ledger restored from an older copy?"
            )
        positions[segment.segment] = Offset(each.position)
    return positions


def _require_positions(topic: TopicInfo, subscription: SubscriptionInfo) -> None:
    """Raise PositionFileError for a subscription that cannot be moved to positions."""
    name = f"subscription {subscription.subscription!r} of topic {topic.topic!r}"
    if topic.external is not None:
        raise PositionFileError(f"{name} reads an external topic: only its source can say what its positions mean")
    if subscription.type == "CHECKPOINT":
        raise PositionFileError(f"{name} is of type CHECKPOINT: its consumers keep their own positions")


_DECODER = msgspec.json.Decoder(SavedPositions)
