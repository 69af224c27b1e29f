"""Merges backlogs that Spark has counted with those that the leader knows. Pure.

1. Spark's counts have ages and rates. The leader's have neither, but are always current.
   ``counted_by`` names the origin.
2. A subscription that is newer than Spark's count, or was moved since, has the leader's.
3. The leader knows only those segments of an external topic that are drained or acknowledged to their end: 0, also if
   their tables were counted before. Other values come from its tables. Counts from before a seek are not used. Where
   there is none, a holder says when the oldest record arrived that it has not handled. The rest is unknown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from drain.protocol import Backlog, BacklogResponse, ExternalBacklogQuery, ExternalBacklogResponse
from drain.table_mapping import ExternalView
from headgate.model.external_topic import ExternalTopic
from headgate.model.layout import SegmentState
from headgate.protocol.backlog import TRACKED, estimate_size_bytes, summarize_backlog
from headgate.views.subscriptions import BacklogInfo, CountedBy, SegmentBacklogInfo
from shard.reporting.progress import unacknowledged
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic, TopicSnapshot, TopicView
from shard.steps import COST_PER_ITEM, Steps, encoding_cost, parts


def external_view(topic: Topic, external: ExternalTopic) -> ExternalView:
    """Return the names of ``topic``, whose records are stored elsewhere."""
    return ExternalView(
        topic=topic.name,
        labels={number: segment.label or "" for number, segment in sorted(topic.layout.segments.items())},
        opaque=external.positions == "opaque",
    )


def external_queries(state: ShardState) -> list[ExternalBacklogQuery]:
    queries: list[ExternalBacklogQuery] = []
    for topic in state.topics.values():
        if topic.external is not None:
            checkpoints = {
                each.subscription_id: {segment: known.text for segment, known in each.progress.checkpoints.items()}
                for each in topic.subscriptions.values()
                if each.progress.checkpoints
            }
            view = replace(external_view(topic, topic.external), checkpoints=checkpoints)
            queries.append(ExternalBacklogQuery(state.shard, topic.topic_id, view))
    return queries


OUTDATED: Final = "its tables were counted before its last seek or import: ask again"


def backlogs(
    state: ShardState,
    response: BacklogResponse | None,
    now_ms: int,
    oldest_unhandled_ms: Callable[[int], Mapping[int, int | None]],
    wanted: Callable[[str, str], bool] | None = None,
    *,
    is_last: Callable[[BacklogInfo], bool] = lambda _: False,
    totals: bool = False,
) -> Steps[dict[int, BacklogInfo]]:
    """Return subscription id → its backlog, in the order of topics and names, each as of its own moment.

    ``response``: Spark's last count, if any. ``oldest_unhandled_ms`` gets the id of a subscription of an external
    topic, see `Membership.oldest_unhandled_ms`. ``wanted`` (topic, name): leave out the others. ``is_last``
    is called with each, and says whether no further one is wanted. ``totals``: without segments, of which all
    subscriptions together may have a hundred thousand.
    """
    found: dict[int, BacklogInfo] = {}
    rows: dict[int, list[Backlog]] = defaultdict(list)
    external: dict[int, ExternalBacklogResponse] = {}
    if response is not None:
        external = {each.topic_id: each for each in response.external}
        for row in response.rows:
            rows[row.subscription_id].append(row)
    for topic_name, topic in sorted(state.topics.items()):
        for name, subscription in sorted(topic.subscriptions.items()):
            if wanted is not None and not wanted(topic_name, name):
                continue
            number = subscription.subscription_id
            if topic.external is not None:
                counted = external.get(topic.topic_id)
                said = oldest_unhandled_ms(number)
                found[number] = yield from _external_backlog(subscription, topic, counted, said, now_ms)
            elif response is not None and (counts := _of_last_seek(rows, subscription)):
                yield len(counts) * COST_PER_ITEM
                segments = map(_spark_segment_backlog, counts)
                found[number] = _summary(subscription, segments, "spark", response.as_of_ms)
            else:
                found[number] = yield from leader_backlog(subscription, topic, now_ms)
            if is_last(found[number]):
                return found
            if totals:
                found[number] = replace(found[number], segments=())
    yield encoding_cost(found)
    return found


def _of_last_seek(rows: Mapping[int, list[Backlog]], subscription: Subscription) -> list[Backlog]:
    counts, generation = rows.get(subscription.subscription_id, []), subscription.seek_generation
    return [row for row in counts if row.seek_generation == generation]


def leader_backlog(subscription: Subscription, topic: TopicView, now_ms: int) -> Steps[BacklogInfo]:
    """Return the backlog according to the leader's own state."""
    subscription, topic = subscription.snapshot(), TopicSnapshot.of(topic)
    segments: list[SegmentBacklogInfo] = []
    for cost, some_segments in parts(sorted(topic.layout.segments)):
        yield cost
        segments += (_leader_segment_backlog(subscription, topic, segment) for segment in some_segments)
    yield len(segments)
    return _summary(subscription, segments, "leader", now_ms)


def _external_backlog(
    subscription: Subscription,
    topic: TopicView,
    response: ExternalBacklogResponse | None,
    said: Mapping[int, int | None],
    now_ms: int,
) -> Steps[BacklogInfo]:
    leaders = yield from leader_backlog(subscription, topic, now_ms)
    if (response is None and not said) or subscription.type not in TRACKED:
        return leaders
    segments = {each.segment: each for each in leaders.segments}
    if response is None:
        response = ExternalBacklogResponse(shard=0, topic_id=topic.topic_id, reason="no count of Spark has arrived")
    mine = subscription.subscription_id, subscription.seek_generation
    rows = [
        row for row in response.rows if (row.subscription_id, row.seek_generation) == mine and row.segment in segments
    ]
    # The leader's values remain where it knows that nothing is left, for segments that are newer than
    # the count, and where the count is unknown.
    segments |= {
        row.segment: _spark_segment_backlog(row, segments[row.segment].label)
        for row in rows
        if row.records is not None and segments[row.segment].records is None
    }
    for segment, oldest_ms in said.items():
        if segment in segments and segments[segment].records is None:
            known = {"records": 0, "estimated": True} if oldest_ms is None else {"oldest_ms": oldest_ms}
            segments[segment] = replace(segments[segment], **known)
    reason = response.reason or OUTDATED
    unknown = any(each.records is None for each in segments.values())
    summary = _summary(
        subscription,
        segments.values(),
        "spark" if rows else "leader",
        now_ms if response.as_of_ms is None else response.as_of_ms,
    )
    return replace(summary, unknown_reason=reason if unknown or response.failing else "", failing=response.failing)


def _leader_segment_backlog(subscription: Subscription, topic: TopicView, segment: int) -> SegmentBacklogInfo:
    tail, known = topic.tails[segment], topic.layout.segments[segment]
    sealed = known.state is SegmentState.SEALED
    count = unacknowledged(subscription, topic, segment)
    if count is None:
        return SegmentBacklogInfo(segment=segment, sealed=sealed, label=known.label)
    return SegmentBacklogInfo(
        segment=segment,
        sealed=sealed,
        records=count.records,
        size_bytes=estimate_size_bytes(count.records, tail.next_offset, tail.size_bytes),
        label=known.label,
        estimated=count.estimated,
    )


def _summary(
    subscription: Subscription, segments: Iterable[SegmentBacklogInfo], counted_by: CountedBy, as_of_ms: int
) -> BacklogInfo:
    return summarize_backlog(
        topic=subscription.topic,
        subscription=subscription.name,
        subscription_type=subscription.type,
        counted_by=counted_by,
        as_of_ms=as_of_ms,
        segments=segments,
    )


def _spark_segment_backlog(row: Backlog, label: str | None = None) -> SegmentBacklogInfo:
    return replace(convert(row, SegmentBacklogInfo, from_attributes=True), label=label)
