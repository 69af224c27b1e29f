"""Answers `describe_cluster` of one leader term: the leader handles other requests while the daemons are asked.

1. The overview is that of the HTTP API: all who ask within a second share one, see controller.cluster.status.
2. At most `MAX_PENDING_ANSWERS` replies wait. Further requests are refused as ``unavailable``, so clients repeat them.
3. A reply waits for no chunk: what it says is not in the ledger, and people ask most urgently while the store is away.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from controller.context.leader_context import MakeOverview
from controller.leader.cluster_reply import cluster_reply
from headgate.process.background import cancel_and_wait
from headgate.protocol import messages as m
from metrics import events
from shard.requests.handlers import Deferred, Outcome
from shard.subscriptions.refusal import Refusal

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

    def _start(
        self,
        overview: MakeOverview,
        request: m.DescribeCluster,
        reply: Callable[[m.AnyReplyBody], None],
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(overview, request, reply), name="cluster-answer")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _answer(
        self,
        overview: MakeOverview,
        request: m.DescribeCluster,
        reply: Callable[[m.AnyReplyBody], None],
    ) -> None:
        found = await overview()
        reply(await asyncio.to_thread(cluster_reply, request, found))
