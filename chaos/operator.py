"""The operator of a run: splits and merges the topic of the orders, and asks who leads.

A command that fails during a fault is recorded and not repeated here: the client library repeats it until its deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final, TypeVar

from chaos.cluster import ORDERS
from chaos.timeline import Operation
from headgate import Admin, SegmentId, TopicInfo
from headgate.errors import HeadgateError

MOST_SEGMENTS: Final = 6
FEWEST_SEGMENTS: Final = 2
CHANGE_INTERVAL_SECONDS: Final = 12.0
"""Between two splits or merges: several within each fault and its rest."""

Answer = TypeVar("Answer")


class Operator:
    """Commands to the cluster, on one connection that no fault cuts."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._growing = True
        self._changing = asyncio.Lock()
        self.operations: list[Operation] = []

    async def run(self, interval_seconds: float = CHANGE_INTERVAL_SECONDS) -> None:
        """Change the layout again and again until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            await self.change_layout()

    async def leader_of(self, topic: str) -> str:
        """Return the daemon that leads the shard of ``topic``. Raises HeadgateError if none does in time."""
        return await self._admin.leader_of(topic)

    async def describe(self, topic: str) -> TopicInfo:
        """Return the segments of ``topic``. Raises HeadgateError if no leader answers in time."""
        return await self._admin.describe_topic(topic)

    async def unacknowledged(self, topic: str, subscription: str) -> int:
        """Return how many records of ``topic`` a subscription still has to acknowledge. Raises HeadgateError."""
        found = await self._admin.describe_subscription(topic, subscription)
        return sum(part.next_offset - part.acknowledged_offset for part in found.segments)

    async def change_layout(self) -> None:
        """Split the largest segment, or merge the two smallest neighbors: in turn from few segments to many."""
        async with self._changing:
            topic = await self._recorded("describe", lambda: self._admin.describe_topic(ORDERS))
            if topic is None:
                return
            active = sorted(
                (each for each in topic.segments if each.state == "active"), key=lambda each: each.first_hash
            )
            if len(active) >= MOST_SEGMENTS:
                self._growing = False
            elif len(active) <= FEWEST_SEGMENTS:
                self._growing = True
            if self._growing:
                largest = max(active, key=lambda each: each.last_hash - each.first_hash).segment
                await self._recorded("split", lambda: self._admin.split(ORDERS, largest))
            else:
                low, high = min(pairwise(active), key=lambda pair: pair[0].next_offset + pair[1].next_offset)
                await self._recorded("merge", lambda: self._merge(low.segment, high.segment))

    async def _merge(self, low: SegmentId, high: SegmentId) -> TopicInfo:
        return await self._admin.merge(ORDERS, low, high)

    async def _recorded(self, name: str, command: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Run a command and record its outcome; return None if it failed."""
        began_ns, error, answer = time.monotonic_ns(), "", None
        try:
            answer = await command()
        except HeadgateError as failure:
            error = str(failure) or type(failure).__name__
        self.operations.append(Operation(name, began_ns, time.monotonic_ns(), error))
        return answer
