"""Roll up when there is enough of it, in the Spark process, beside the counting.

Every half minute, more or less, so that the processes of several daemons do not do the same work at once; if they do,
one of them has worked for nothing. What fails is told, and tried again after a pause that grows: no promise waits for
it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from drain.backlog.counting import JvmGoneError
from drain.compaction.job import RollUp, line_about
from headgate.errors import HeadgateError

LOOK_SECONDS: Final = 30.0
SWEEP_LOOKS: Final = 10
LONGEST_PAUSE_SECONDS: Final = 1800.0


class RollUpSchedule:
    """Looks at every shard of a ledger, for as long as it runs."""

    def __init__(
        self,
        roll_up: RollUp,
        *,
        shards: Callable[[], Awaitable[list[int]]],
        count: Callable[[int], Awaitable[object]],
        rng: random.Random,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """``shards`` names the shards; ``count`` brings a shard's published result up to date."""
        self._roll_up = roll_up
        self._shards = shards
        self._count = count
        self._rng = rng
        self._look_seconds = look_seconds
        self._failures = 0

    async def run(self) -> None:
        """Look until cancelled; returns when the JVM is gone, which others tell."""
        looks = 0
        while True:
            pause = min(self._look_seconds * 2**self._failures, max(LONGEST_PAUSE_SECONDS, self._look_seconds))
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
            try:
                failed = await self.look(sweeping=looks % SWEEP_LOOKS == 0)
            except JvmGoneError:
                return
            self._failures = min(self._failures + 1, 10) if failed else 0
            looks += 1

    async def look(self, *, sweeping: bool) -> bool:
        """Roll up what is due, once; return whether something failed. Raises JvmGoneError."""
        try:
            shards = await self._shards()
        except HeadgateError:
            return False  # There is no ledger yet.
        failed = False
        for shard in shards:
            try:
                if await self._roll_up.is_due(shard):
                    await self._count(shard)
                    for manifest in await self._roll_up.run(shard):
                        print(line_about(manifest), flush=True)  # noqa: T201 - the process's log
                if sweeping:
                    await self._roll_up.sweep(shard)
            except JvmGoneError:
                raise
            except HeadgateError as error:
                print(f"error: roll-up of shard {shard}: {error}", file=sys.stderr)  # noqa: T201
                failed = True
        return failed
