"""Builds the reply to `describe_cluster` from the overview that daemons make for the HTTP API. Pure.

1. The overview is on the first page only. It describes at most `MAX_DESCRIBED_DAEMONS` daemons and counts all.
2. Subscriptions are in pages, by topic and name. A page may come from a later overview than the one before.
"""

from bisect import bisect_right
from collections.abc import Iterator

from msgspec import convert
from msgspec.structs import replace

from headgate.protocol import messages as m
from headgate.protocol.paging import cut_page
from headgate.views.cluster import (
    MAX_DESCRIBED_DAEMONS,
    MAX_REASON_CHARACTERS,
    ClusterInfo,
    DaemonInfo,
    SubscriptionSummary,
)
from web.api.overview import Overview


def cluster_reply(request: m.DescribeCluster, overview: Overview) -> m.ClusterReply:
    found, following = cut_page(_described(request, overview))
    return m.ClusterReply(
        overview=_overview(overview) if request.after is None else None, subscriptions=found, next=following
    )


def _described(request: m.DescribeCluster, overview: Overview) -> Iterator[tuple[tuple[str, str], SubscriptionSummary]]:
    """Yield what may be on the page; the page takes as many as fit."""
    rows = overview.subscriptions
    first = 0
    if request.after is not None:
        first = bisect_right(rows, tuple(request.after.split("/")), key=lambda each: (each.topic, each.subscription))
    for index in range(first, len(rows)):
        each = rows[index]
        if each.blocked_segments or not request.blocked:
            yield (each.topic, each.subscription), each


def _overview(overview: Overview) -> ClusterInfo:
    """Return the part of the overview that replies carry: without what only the HTTP API has."""
    daemons = tuple(_shortened(each) for each in overview.daemons[:MAX_DESCRIBED_DAEMONS])
    return replace(convert(overview.cluster, ClusterInfo, from_attributes=True), daemons=daemons)


def _shortened(daemon: DaemonInfo) -> DaemonInfo:
    components = tuple(replace(each, reason=_cut(each.reason)) for each in daemon.components)
    found = convert(daemon, DaemonInfo, from_attributes=True)
    return replace(found, components=components, problem=_cut(daemon.problem))


def _cut(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[: MAX_REASON_CHARACTERS - 1]}…"
