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
from headgate.process.background import cancel_and_wait
from headgate.protocol import messages as m
from headgate.protocol.paging import cut_page
from headgate.views.cluster import (
    MAX_DESCRIBED_DAEMONS,
    MAX_REASON_CHARACTERS,
    ClusterInfo,
    DaemonInfo,
    SubscriptionSummary,
)
from metrics import events
from shard.requests.handlers import Deferred, Outcome, Reply
from shard.subscriptions.refusal import Refusal
from web.api.overview import Overview

MAX_PENDING_ANSWERS: Final = 64
NO_CHUNK: Final = 0
"""Older than every chunk, so it is always durable."""


class ClusterAnswers:
    def __init__(self, overview: MakeOverview | None, observer: events.Observer) -> None:
        """``overview`` None: this leader is in no daemon that could ask others."""
        self._overview = overview
        self._observer = observer
        self._pending: set[asyncio.Task[None]] = set()

    def describe(self, request: m.DescribeCluster, _: str) -> Outcome:
        if self._overview is None or len(self._pending) >= MAX_PENDING_ANSWERS:
            self._observer.observe(events.RequestLimitReached(limit="cluster_overviews"))
            return Refusal("unavailable", f"{len(self._pending)} requests wait for an overview of the cluster")
        return Deferred(partial(self._start, self._overview, request), NO_CHUNK)

    async def close(self) -> None:
        """Drop what waits: clients repeat their requests to the next leader."""
        await cancel_and_wait(*self._pending)

    def _start(self, overview: MakeOverview, request: m.DescribeCluster, reply: Reply) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(overview, request, reply), name="cluster-answer")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _answer(self, overview: MakeOverview, request: m.DescribeCluster, reply: Reply) -> None:
        found = await overview()
        reply(await asyncio.to_thread(cluster_reply, request, found))


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
