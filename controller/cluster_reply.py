"""Builds the reply to `describe_cluster` from the overview that daemons make for the HTTP API. Pure.

1. The overview is on the first page only. It describes at most `MAX_DESCRIBED_DAEMONS` daemons and counts all.
2. Subscriptions are in pages, by topic and name. A page may come from a later overview than the one before.
3. The rate of arriving records is the leader's, of the last half minute, where it has one: Spark's is older.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from headgate.protocol import messages as m
from headgate.protocol.paging import cut_page
from metrics.api.documents import ClusterDocument, DaemonDocument, SubscriptionSummary
from metrics.api.overview import Overview


def cluster_reply(request: m.DescribeCluster, overview: Overview) -> m.ClusterReply:
    """Return the page of ``overview`` that ``request`` asks for."""
    found, following = cut_page(_described(request, overview))
    return m.ClusterReply(
        overview=_overview(overview) if request.after is None else None, subscriptions=found, next=following
    )


def _described(
    request: m.DescribeCluster, overview: Overview
) -> Iterator[tuple[tuple[str, str], m.SubscriptionSummaryDescription]]:
    """Yield what may be on the page; the page takes as many as fit."""
    rows = overview.subscriptions
    first = 0
    if request.after is not None:
        first = bisect_right(rows, tuple(request.after.split("/")), key=lambda each: (each.topic, each.subscription))
    times = {each.daemon: each.as_of_ms for each in overview.daemons}
    rates = {each.topic: each.stored_per_second for each in overview.topics}
    for index in range(first, len(rows)):
        each = rows[index]
        if each.blocked_segments or not request.blocked:
            yield (each.topic, each.subscription), _summary(each, times.get(each.daemon), rates.get(each.topic))


def _summary(
    row: SubscriptionSummary, as_of_ms: int | None, stored_per_second: float | None
) -> m.SubscriptionSummaryDescription:
    since_ms = None
    if row.blocked_segments and as_of_ms is not None:
        since_ms = as_of_ms - round(row.longest_blocked_seconds * 1000)
    return m.SubscriptionSummaryDescription(
        topic=row.topic,
        subscription=row.subscription,
        type=row.type,
        daemon=row.daemon,
        connected_consumers=row.connected_consumers,
        disconnected_consumers=row.disconnected_consumers,
        blocked_segments=row.blocked_segments,
        draining_segments=row.draining_segments,
        outlook=row.outlook,
        blocked_since_ms=since_ms,
        blocking_segments=list(row.blocking_segments),
        backlog_records=row.backlog_records,
        stored_per_second=row.stored_per_second if stored_per_second is None else stored_per_second,
        acknowledged_per_second=row.acknowledged_per_second,
        drained_in_seconds=row.drained_in_seconds,
    )


def _overview(overview: Overview) -> m.ClusterOverview:
    document = overview.cluster
    return m.ClusterOverview(
        cluster=document.cluster,
        daemon=document.daemon,
        as_of_ms=document.as_of_ms,
        complete=document.complete,
        daemons=[_daemon(each) for each in overview.daemons[: m.MAX_DESCRIBED_DAEMONS]],
        shards=[
            m.ShardDescription(shard=each.shard, leader_epoch=each.leader_epoch, daemon=each.daemon)
            for each in document.shards
        ],
        totals=_totals(document),
    )


def _daemon(document: DaemonDocument) -> m.DaemonDescription:
    return m.DaemonDescription(
        daemon=document.daemon,
        state=document.state,
        url=document.url,
        version=document.version,
        started_at_ms=document.started_at_ms,
        spread=document.spread,
        as_of_ms=document.as_of_ms,
        components=[
            m.ComponentDescription(component=each.component, state=each.state, reason=_cut(each.reason))
            for each in document.components
        ],
        problem=_cut(document.problem),
    )


def _totals(document: ClusterDocument) -> m.ClusterTotals:
    return m.ClusterTotals(
        daemons=document.daemons,
        topics=document.topics,
        subscriptions=document.subscriptions,
        active_segments=document.active_segments,
        sealed_segments=document.sealed_segments,
        blocked_segments=document.blocked_segments,
        connected_consumers=document.connected_consumers,
        disconnected_consumers=document.disconnected_consumers,
        stored_per_second=document.stored_per_second,
        acknowledged_per_second=document.acknowledged_per_second,
        backlog_records=document.backlog_records,
    )


def _cut(reason: str) -> str:
    return reason if len(reason) <= m.MAX_REASON_CHARACTERS else f"{reason[: m.MAX_REASON_CHARACTERS - 1]}…"
