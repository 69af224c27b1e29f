"""What the subscriptions of a shard have not acknowledged: as Spark has counted it, or else as the leader knows it.

Spark's count has ages and rates; the leader's own has neither, but is exact at this moment and always there. Which of
the two stands in an answer is said in it (``counted_by``), subscription by subscription: one that was created since
Spark has counted is the leader's.

Of an external topic the leader knows one thing by itself: what was acknowledged to its end has nothing left. How much
is left of anything else is for its source and its tables; here it is not known. What was counted there before a seek is
not told after it.

Pure: state and rows in, values out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from controller.state.shard_state import ShardState, Topic
from coordinator.state.subscription import Subscription
from drain.protocol import BacklogResponse, BacklogRow, ExternalBacklogResponse
from headgate.model.external_topic import ExternalTopic
from headgate.model.layout import Segment, SegmentState
from headgate.model.offset_ranges import OffsetRanges
from headgate.protocol.backlog import TRACKED, SegmentBacklog, SubscriptionBacklog, summarize_backlog

OUTDATED = "its tables were counted before its last seek, or before its last import: ask again"


def backlogs(state: ShardState, response: BacklogResponse | None, now_ms: int) -> tuple[SubscriptionBacklog, ...]:
    """Return every subscription's backlog, by topic and name; ``response``: what Spark has counted, if it has."""
    rows: dict[int, list[BacklogRow]] = defaultdict(list)
    external: dict[int, ExternalBacklogResponse] = {}
    as_of_ms = None if response is None else response.as_of_ms.get(state.shard)
    if response is not None and as_of_ms is not None:
        external = {each.topic_id: each for each in response.external if each.shard == state.shard}
        for row in response.rows:
            if row.shard == state.shard:
                rows[row.subscription_id].append(row)
    found: list[SubscriptionBacklog] = []
    for _, topic in sorted(state.topics.items()):
        for _, subscription in sorted(topic.subscriptions.items()):
            if topic.external is not None:
                found.append(_external_backlog(subscription, topic, external.get(topic.topic_id), now_ms))
            elif as_of_ms is not None and subscription.subscription_id in rows:
                found.append(_spark_backlog(subscription, rows[subscription.subscription_id], as_of_ms))
            else:
                found.append(leader_backlog(subscription, topic, now_ms))
    return tuple(found)


def leader_backlog(subscription: Subscription, topic: Topic, now_ms: int) -> SubscriptionBacklog:
    """Return the backlog as the leader's own state has it."""
    return summarize_backlog(
        topic=topic.name,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by="leader",
        as_of_ms=now_ms,
        segments=[_leader_segment_backlog(subscription, topic, segment) for segment in topic.layout.segments],
    )


def _external_backlog(
    subscription: Subscription, topic: Topic, response: ExternalBacklogResponse | None, now_ms: int
) -> SubscriptionBacklog:
    leaders = leader_backlog(subscription, topic, now_ms)
    if response is None or subscription.type not in TRACKED:
        return leaders
    segments = {part.segment: part for part in leaders.segments}
    mine = subscription.subscription_id, subscription.seek_generation
    rows = [
        row for row in response.rows if (row.subscription_id, row.seek_generation) == mine and row.segment in segments
    ]
    # What was not counted is as the leader knows it: segments that are newer, and marks that nobody can place.
    segments |= {
        row.segment: _spark_segment_backlog(row, segments[row.segment].label) for row in rows if row.records is not None
    }
    reason = response.reason or OUTDATED
    unknown = any(part.records is None for part in segments.values())
    return summarize_backlog(
        topic=topic.name,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by="spark" if rows else "leader",
        as_of_ms=now_ms if response.as_of_ms is None else response.as_of_ms,
        segments=segments.values(),
        unknown_reason=reason if unknown or response.failing else "",
        failing=response.failing,
    )


def _leader_segment_backlog(subscription: Subscription, topic: Topic, segment: int) -> SegmentBacklog:
    tail, known = topic.tails[segment], topic.layout.segments[segment]
    sealed = known.state is SegmentState.SEALED
    if subscription.type not in TRACKED:
        return SegmentBacklog(segment=segment, sealed=sealed, label=known.label)
    if topic.external is not None:
        nothing = 0 if _is_fully_acknowledged(subscription, topic.external, known) else None
        return SegmentBacklog(segment=segment, sealed=sealed, records=nothing, size_bytes=nothing, label=known.label)
    above = subscription.acknowledged_ranges.get(segment, OffsetRanges()).count()
    records = max(0, tail.next_offset - subscription.position(segment) - above)
    return SegmentBacklog(
        segment=segment,
        sealed=sealed,
        records=records,
        size_bytes=tail.size_bytes * records // tail.next_offset if tail.next_offset else 0,
    )


def _is_fully_acknowledged(subscription: Subscription, external: ExternalTopic, segment: Segment) -> bool:
    end = external.max_end_offset(segment)
    return end is not None and subscription.position(segment.segment_id) >= end


def _spark_backlog(subscription: Subscription, rows: Iterable[BacklogRow], as_of_ms: int) -> SubscriptionBacklog:
    return summarize_backlog(
        topic=subscription.topic,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by="spark",
        as_of_ms=as_of_ms,
        segments=[_spark_segment_backlog(row) for row in rows],
    )


def _spark_segment_backlog(row: BacklogRow, label: str | None = None) -> SegmentBacklog:
    return SegmentBacklog(
        segment=row.segment,
        sealed=row.sealed,
        records=row.records,
        size_bytes=row.size_bytes,
        oldest_ms=row.oldest_ms,
        stored_per_second=row.stored_per_second,
        acknowledged_per_second=row.acknowledged_per_second,
        label=label,
    )
