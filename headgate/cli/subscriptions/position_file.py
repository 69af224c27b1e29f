"""The file of `headgate subscription export`: positions, and what they belong to; and whether they fit. Pure.

It may be imported to any subscription of its topic. Its positions fit by the rules of headgate.reading.topic_position,
with one difference: the leader compares the history. The id of the ledger is another one after a move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.errors import HeadgateError, PositionOutOfRangeError
from headgate.model.identifiers import Offset, SegmentId
from headgate.model.unreadable_json import UNREADABLE_JSON
from headgate.protocol.request_fields import Natural
from headgate.reading.topic_position import continued, require_topic, unfinished

if TYPE_CHECKING:
    from headgate.views.subscriptions import SubscriptionInfo
    from headgate.views.topics import TopicInfo

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
