"""Decides the status and the backlog of one segment, as every report shows them. Pure.

The backlog is None if it is not tracked (CHECKPOINT), or if only the source of an external topic
knows it: offsets there may have gaps, so they count no records.
"""

from collections import Counter
from collections.abc import Iterable

from headgate.model.hashing import KEY_BUCKETS, SegmentSlice, buckets_of, segment_of
from headgate.protocol.backlog import RecordCount
from headgate.views.subscriptions import AssignmentStatus
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.gate import Gate, tracks_acknowledgements


def segment_status(subscription: Subscription, gate: Gate, segment: int, *, shared: bool) -> AssignmentStatus:
    """Return the status as in `SegmentAssignment`; ``shared``: consumers hold bucket ranges of it."""
    if segment in gate.retired:
        return "drained"
    holding = subscription.holdings.get(segment)
    if holding is not None:
        return "granted" if holding.revoked_at_ms is None else "revoking"
    if shared:
        return "shared"
    return "blocked" if segment in gate.blocked else "waiting"


def unacknowledged(subscription: Subscription, topic: TopicView, segment_slice: SegmentSlice) -> RecordCount | None:
    """Return the backlog of ``segment_slice`` by the leader's own count."""
    if not tracks_acknowledgements(subscription.type):
        return None
    segment = segment_of(segment_slice)
    if segment in subscription.drained:
        return RecordCount(0)
    if topic.external is None:
        return subscription.progress.unacknowledged_records(segment_slice, topic.tails[segment].next_offset)
    end_offset = topic.external.max_end_offset(topic.layout.segments[segment])
    return RecordCount(0) if end_offset is not None and subscription.position(segment) >= end_offset else None


def unread_segments(
    subscription: Subscription, topic: TopicView, consumer: str, known: Iterable[tuple[int, int]]
) -> int:
    """Return how many segments nothing reads at present, although they have unacknowledged records.

    A consumer that reads a subscription to its end asks for it. A segment counts as read if each of its key
    buckets is held without a revocation by

    1. the asking consumer, which knows the grant: it is in its list, or
    2. another consumer that is connected: it delivers the records itself.

    So a segment counts while it is blocked, is handed over, has no holder, or is held by a consumer in its grace
    period. A grant that is on its way counts as well.

    ``known``: (segment, generation) of the grants that the asking ``consumer`` knows.
    """
    known = set(known)
    read_buckets: Counter[int] = Counter()
    for held, holding in subscription.holdings.items():
        segment, holder = segment_of(held), subscription.consumers[holding.consumer]
        is_read = (
            (segment, holding.generation) in known
            if holding.consumer == consumer
            else holder.disconnected_at_ms is None
        )
        if is_read and holding.revoked_at_ms is None:
            read_buckets[segment] += len(buckets_of(held))
    return sum(
        tail.next_offset > subscription.position(segment) and read_buckets[segment] < KEY_BUCKETS
        for segment, tail in topic.tails.items()
    )
