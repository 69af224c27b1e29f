"""Answers `describe_cluster` of one leader term: the leader handles other requests while the daemons are asked.

1. The overview is that of the HTTP API: all who ask within a second share one, see controller.cluster.status.
2. At most `MAX_PENDING_ANSWERS` replies wait. Further requests are refused as ``unavailable``, so clients repeat them.
3. A reply waits for no chunk: what it says is not in the ledger, and people ask most urgently while the store is away.
4. The overview is on the first page only. It describes at most `MAX_DESCRIBED_DAEMONS` daemons and counts all.
5. Subscriptions are in pages, by topic and name. A page may come from a later overview than the one before.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from controller.context.leader_context import MakeOverview
from headgate.protocol.codec import cut_page
from headgate.protocol.replies import ClusterReply
from headgate.protocol.requests import DescribeCluster
from headgate.views.cluster import (
    MAX_DESCRIBED_DAEMONS,
    MAX_REASON_CHARACTERS,
    ClusterInfo,
    DaemonInfo,
    SubscriptionSummary,
)
from shard.requests.handlers import Deferred, Outcome
from shard.subscriptions.refusal import Refusal
from web.api.overview import Overview

MAX_PENDING_ANSWERS: Final = 64
NO_CHUNK: Final = 0
"""Older than every chunk, so it is always durable."""


def describe(overview: MakeOverview | None, request: DescribeCluster) -> Outcome:
    if overview is None:
        return Refusal("unavailable", "this leader is in no daemon that could ask others")
    return Deferred(partial(_answer, overview, request), "cluster_overviews", MAX_PENDING_ANSWERS, NO_CHUNK)


async def _answer(overview: MakeOverview, request: DescribeCluster) -> ClusterReply:
    return await asyncio.to_thread(cluster_reply, request, await overview())


def cluster_reply(request: DescribeCluster, overview: Overview) -> ClusterReply:
    found, following = cut_page(_described(request, overview))
    return ClusterReply(
        overview=_overview(overview) if request.after is None else None, subscriptions=found, next=following
    )


def _described(request: DescribeCluster, overview: Overview) -> Iterator[tuple[tuple[str, str], SubscriptionSummary]]:
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
