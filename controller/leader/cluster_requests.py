"""Answers requests about daemons and shards: transfers, maintenance, the feature level, and what the cluster is like.

Commands of operators:

1. A transfer that succeeds is answered by the new leader, to which the client repeats its request. A daemon that is
   asked for a shard which it leads keeps it: the spread moves others instead.
2. A refusal waits for no barrier: it speaks of daemons, and not of what the ledger holds.
3. At most `MAX_PENDING` requests wait. Further ones are ``unavailable``, so clients repeat them.
4. A repeated token gets the outcome of the first copy, and executes nothing. A transfer is for one term, because it
   ends the term: a copy that arrives in a later one is refused for its envelope. Maintenance outlasts terms, so what
   stores it remembers the tokens as well. A feature level that is reached stays. More shards are stored in place of the
   number that the command names.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from controller.context.leader_context import MakeOverview, Operations
from headgate.process.background import cancel_and_wait
from headgate.protocol.codec import cut_page
from headgate.protocol.replies import ClusterReply, Done
from headgate.protocol.request_fields import Command
from headgate.protocol.requests import DescribeCluster, RaiseLevel, SetMaintenance, SetShards, TransferShard
from headgate.views.cluster import (
    MAX_DESCRIBED_DAEMONS,
    MAX_REASON_CHARACTERS,
    ClusterInfo,
    DaemonInfo,
    SubscriptionSummary,
)
from shard.requests.handlers import Deferred, Outcome, Registration, handler
from shard.subscriptions.refusal import Refusal
from web.api.overview import Overview

MAX_PENDING: Final = 64
MAX_REMEMBERED: Final = 256
"""Commands of one term whose outcome is remembered, the latest ones."""

Answer = Done | Refusal | None
"""None: the leader that follows replies."""


class OperatorCommands:
    def __init__(self, shard: int, instance: str, operations: Operations) -> None:
        self._shard = shard
        self._instance = instance
        self._operations = operations
        self._tasks: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        """Token of a command → what executes it, or has executed it. The oldest is first."""

    def handlers(self) -> list[Registration]:
        kinds = TransferShard, RaiseLevel, SetShards, SetMaintenance
        return [handler(kind, lambda request, _: self._defer(request)) for kind in kinds]

    async def close(self) -> None:
        """Drop what waits: clients repeat their requests to the next leader."""
        await cancel_and_wait(*self._tasks.values())

    def _defer(self, request: Command) -> Outcome:
        return Deferred(partial(self._execute_once, request), "operator_commands", MAX_PENDING)

    async def _execute_once(self, request: Command) -> Answer:
        token = request.token
        if token not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._execute(request), name=f"operator-{self._shard}")
            self._tasks[token] = task
            if len(self._tasks) > MAX_REMEMBERED and next(iter(self._tasks.values())).done():
                self._tasks.popitem(last=False)
        return await asyncio.shield(self._tasks[token])

    async def _execute(self, request: Command) -> Answer:
        operations = self._operations
        match request:
            case TransferShard():
                problem = await operations.transfer(self._shard, request.daemon, request.token)
                if problem is None and request.daemon != self._instance:
                    return None
            case RaiseLevel():
                problem = await operations.raise_level(request.level)
            case SetShards():
                problem = await operations.set_shards(request.shards, request.before)
            case SetMaintenance():
                problem = await operations.set_maintenance(request.daemon, on=request.on, token=request.token)
            case _:
                raise AssertionError(request)
        return Done() if problem is None else Refusal("invalid", problem)


NO_CHUNK: Final = 0
"""Older than every chunk, so it is always durable."""


def describe_cluster(overview: MakeOverview, request: DescribeCluster) -> Outcome:
    """Answer `DescribeCluster` while the leader handles other requests: daemons are asked.

    1. The overview is that of the HTTP API: all who ask within a second share one, see controller.cluster.status.
    2. At most `MAX_PENDING` replies wait. Further requests are refused as ``unavailable``: clients repeat them.
    3. A reply waits for no chunk: what it says is not in the ledger, and people ask most urgently while the store is
       away.
    4. The overview is on the first page only. It describes at most `MAX_DESCRIBED_DAEMONS` daemons and counts all.
    5. Subscriptions are in pages, by topic and name. A page may come from a later overview than the one before.
    """
    return Deferred(partial(_answer, overview, request), "cluster_overviews", MAX_PENDING, NO_CHUNK)


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
