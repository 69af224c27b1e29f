"""The operator of a run: splits and merges the topic of the orders, transfers shards, and drains daemons.

A command that fails during a fault is recorded and not repeated here: the client library repeats it until its deadline.
Only the end of a drain is repeated, because a forgotten one would keep a daemon without shards.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from typing import Final, TypeVar

from chaos.cluster import DAEMONS, ORDERS, SHARDS, TOPICS
from chaos.judge import Operation
from headgate import Admin, SegmentInfo, TopicInfo
from headgate.errors import HeadgateError
from headgate.model.layout import shard_of

MOST_SEGMENTS: Final = 6
FEWEST_SEGMENTS: Final = 2
CHANGE_INTERVAL_SECONDS: Final = 12.0
"""Between two splits or merges: several within each fault and its rest."""
MOVE_INTERVAL_SECONDS: Final = 9.0
"""Between two transfers or drains, in turn. Not a divisor of the above, so that all combinations occur."""
DRAIN_SECONDS: Final = 4.0
"""How long a drained daemon stays in maintenance."""

Answer = TypeVar("Answer")


class Operator:
    """Commands to the cluster, on one connection that no fault cuts."""

    def __init__(self, admin: Admin, *, changes_layout: bool = True) -> None:
        """``changes_layout``: split and merge; without Spark, children could never open."""
        self._admin = admin
        self._changes_layout = changes_layout
        self._growing = True
        self._changing = asyncio.Lock()
        self._drained: str | None = None
        """The daemon that is in maintenance, as far as this operator knows."""
        self.operations: list[Operation] = []
        self.children: dict[int, int] = {}
        """Segment of the orders → when the command that created it succeeded."""

    async def run(self) -> None:
        """Change the layout, and move shards, again and again until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._move_again_and_again(), name="moves")
            while self._changes_layout:
                await asyncio.sleep(CHANGE_INTERVAL_SECONDS)
                await self.change_layout()

    async def _move_again_and_again(self) -> None:
        for turn in count():
            await asyncio.sleep(MOVE_INTERVAL_SECONDS)
            if turn % 2:
                await self.drain(DAEMONS[turn // 2 % len(DAEMONS)])
            else:
                await self.transfer(TOPICS[turn // 2 % len(TOPICS)])

    async def transfer(self, topic: str) -> None:
        await self._recorded("shard transfer", lambda: self._transfer(topic))

    async def _transfer(self, topic: str) -> None:
        leader = await self._admin.leader_of(topic)
        successor = DAEMONS[(DAEMONS.index(leader) + 1) % len(DAEMONS)]
        await self._admin.transfer_shard(shard_of(topic, SHARDS), successor)

    async def drain(self, daemon: str) -> None:
        """Empty a daemon for maintenance, and end the maintenance after some seconds."""
        if not await self._end_drain():
            return
        self._drained = daemon
        await self._recorded("daemon drain", lambda: self._admin.set_maintenance(daemon, on=True))
        await asyncio.sleep(DRAIN_SECONDS)
        await self._end_drain()

    async def _end_drain(self) -> bool:
        """End the maintenance of the daemon that is in it, if any; return whether none is."""
        if (daemon := self._drained) is None:
            return True
        await self._recorded("daemon drain --off", lambda: self._end_maintenance(daemon))
        return self._drained is None

    async def _end_maintenance(self, daemon: str) -> None:
        await self._admin.set_maintenance(daemon, on=False)
        self._drained = None

    async def leader_of(self, topic: str) -> str:
        """Return the daemon that leads the shard of ``topic``. Raises HeadgateError if none does in time."""
        return await self._admin.leader_of(topic)

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
            active = _active(topic)
            if len(active) >= MOST_SEGMENTS:
                self._growing = False
            elif len(active) <= FEWEST_SEGMENTS:
                self._growing = True
            if self._growing:
                largest = max(active, key=lambda each: each.last_hash - each.first_hash).segment
                changed = await self._recorded("split", lambda: self._admin.split(ORDERS, largest))
            else:
                low, high = min(pairwise(active), key=lambda pair: pair[0].next_offset + pair[1].next_offset)
                changed = await self._recorded("merge", lambda: self._admin.merge(ORDERS, low.segment, high.segment))
            if changed is not None:
                children = {each.segment for each in _active(changed)} - {each.segment for each in active}
                self.children.update(dict.fromkeys(children, time.monotonic_ns()))

    async def _recorded(self, name: str, command: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Run a command and record its outcome; return None if it failed."""
        began_ns, error, answer = time.monotonic_ns(), "", None
        try:
            answer = await command()
        except HeadgateError as failure:
            error = str(failure) or type(failure).__name__
        self.operations.append(Operation(name, began_ns, time.monotonic_ns(), error))
        return answer


def _active(topic: TopicInfo) -> list[SegmentInfo]:
    return sorted((each for each in topic.segments if each.state == "active"), key=lambda each: each.first_hash)
