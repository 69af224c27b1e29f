"""Decides the status and the backlog of one segment, as every report shows them. Pure.

The backlog is None if it is not tracked (CHECKPOINT), or if only the source of an external topic
knows it: offsets there may have gaps, so they count no records.
"""

from headgate.model.bucket_ranges import SegmentSlice, segment_of
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
        return subscription.unacknowledged_records(segment_slice, topic.tails[segment].next_offset)
    end_offset = topic.external.max_end_offset(topic.layout.segments[segment])
    return RecordCount(0) if end_offset is not None and subscription.position(segment) >= end_offset else None
