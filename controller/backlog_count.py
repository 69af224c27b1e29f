"""What the subscriptions of a shard have not acknowledged: as Spark has counted it, or else as the leader knows it.

Spark's count has ages and rates; the leader's own has neither, but is exact at this moment and always there. Which of
the two stands in an answer is said in it (``counted_by``), subscription by subscription: one that was created since
Spark has counted is the leader's.

Pure: state and rows in, values out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from controller.state import ShardState, Topic
from coordinator.subscription import Subscription
from drain.protocol import BacklogRow, BacklogTold
from headgate.backlog import SegmentBacklog, SubscriptionBacklog, backlog_of
from headgate.layout import SegmentState

TRACKED = ("STREAM", "QUEUE")
"""Types that acknowledge."""


def backlogs(state: ShardState, told: BacklogTold | None, now_ms: int) -> tuple[SubscriptionBacklog, ...]:
    """Return every subscription's backlog, by topic and name; ``told``: what Spark has counted, if it has."""
    rows: dict[int, list[BacklogRow]] = defaultdict(list)
    as_of_ms = None if told is None else told.as_of_ms.get(state.shard)
    if told is not None and as_of_ms is not None:
        for row in told.rows:
            if row.shard == state.shard:
                rows[row.subscription_id].append(row)
    return tuple(
        _by_spark(subscription, rows[subscription.subscription_id], as_of_ms)
        if as_of_ms is not None and subscription.subscription_id in rows
        else by_leader(subscription, topic, now_ms)
        for _, topic in sorted(state.topics.items())
        for _, subscription in sorted(topic.subscriptions.items())
    )


def by_leader(subscription: Subscription, topic: Topic, now_ms: int) -> SubscriptionBacklog:
    """Return the backlog as the leader's own state has it."""
    return backlog_of(
        topic=topic.name,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by="leader",
        as_of_ms=now_ms,
        segments=[_segment_by_leader(subscription, topic, segment) for segment in topic.layout.segments],
    )


def _segment_by_leader(subscription: Subscription, topic: Topic, segment: int) -> SegmentBacklog:
    tail = topic.tails[segment]
    sealed = topic.layout.segments[segment].state is SegmentState.SEALED
    if subscription.type not in TRACKED:
        return SegmentBacklog(segment=segment, sealed=sealed)
    above = sum(end - first for first, end in subscription.above.get(segment, ()))
    records = max(0, tail.next_offset - subscription.position(segment) - above)
    return SegmentBacklog(
        segment=segment,
        sealed=sealed,
        records=records,
        size_bytes=tail.size_bytes * records // tail.next_offset if tail.next_offset else 0,
    )


def _by_spark(subscription: Subscription, rows: Iterable[BacklogRow], as_of_ms: int) -> SubscriptionBacklog:
    return backlog_of(
        topic=subscription.topic,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by="spark",
        as_of_ms=as_of_ms,
        segments=[
            SegmentBacklog(
                segment=row.segment,
                sealed=row.sealed,
                records=row.records,
                size_bytes=row.size_bytes,
                oldest_ms=row.oldest_ms,
                stored_per_second=row.stored_per_second,
                acknowledged_per_second=row.acknowledged_per_second,
            )
            for row in rows
        ],
    )
