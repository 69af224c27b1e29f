"""Spreads work over turns of the event loop, so that one event with many effects does not stall it.

Work runs at once while this turn has done little, in most shards all of it. The rest waits in
order, and later turns do a part each. Between two parts the loop serves clients and other shards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

MAX_COST_PER_TURN: Final = 4096
"""Most cost of the work in one turn, except that each turn does at least one piece. One unit is a segment or a
consumer to look at, about 2 µs."""


class SpreadWork:
    """The waiting work of one leader term."""

    def __init__(self, max_cost_per_turn: int = MAX_COST_PER_TURN) -> None:
        """Create it in a running loop. Nothing that waits is done before `run`."""
        self._max_cost = max_cost_per_turn
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._wake = asyncio.Event()
        self._spent = 0

    def do(self, cost: int, work: Callable[[], None]) -> None:
        """Do ``work`` now if nothing waits and this turn has capacity; otherwise later, in order."""
        if not self._waiting and self._has_capacity(cost):
            self._spend(cost)
            work()
        else:
            self.do_later(cost, work)

    def do_later(self, cost: int, work: Callable[[], None]) -> None:
        """Do ``work`` in a later turn."""
        self._waiting.append((cost, work))
        self._wake.set()

    async def run(self) -> None:
        """Do what waits, a part per turn, until cancelled; raises what a bug in the work raised."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)
            await self.do_all(self._taken())

    def _taken(self) -> Iterable[tuple[int, Callable[[], None]]]:
        while self._waiting:
            yield self._waiting.popleft()

    async def do_all(self, works: Iterable[tuple[int, Callable[[], None]]]) -> None:
        """Do (cost, work) one after the other, as much per turn as its limit allows."""
        for cost, work in works:
            if not self._has_capacity(cost):
                await asyncio.sleep(0)
            self._spend(cost)
            work()

    def _has_capacity(self, cost: int) -> bool:
        return self._spent == 0 or self._spent + cost <= self._max_cost

    def _spend(self, cost: int) -> None:
        if self._spent == 0:
            self._loop.call_soon(self._begin_turn)
        self._spent += max(cost, 1)

    def _begin_turn(self) -> None:
        self._spent = 0
