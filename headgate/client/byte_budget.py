"""How many bytes a producer may hold, and how they are shared between shards.

The rule: every shard has a guaranteed minimum that no other shard can take, and beyond it takes from a common rest,
first come first served. So a shard without a leader fills its minimum and the rest, and starves nobody. A record that
is larger than everything it could ever get takes what there is and goes alone.

It counts and lets wait; it holds no data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class ByteBudget:
    """The bytes of one producer."""

    def __init__(self, total_bytes: int, guaranteed_bytes: int) -> None:
        """``guaranteed_bytes`` per shard; the common rest is what ``total_bytes`` leaves beyond one shard's minimum."""
        self._guaranteed = guaranteed_bytes
        self._common = max(0, total_bytes - guaranteed_bytes)
        self._common_used = 0
        self._used: dict[int, int] = {}
        self._waiters: dict[int, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def used_bytes(self) -> int:
        """How much is held by all shards."""
        return sum(self._used.values())

    def used_by(self, shard: int) -> int:
        """Return how much ``shard`` holds."""
        return self._used.get(shard, 0)

    def try_reserve(self, shard: int, size_bytes: int) -> bool:
        """Take room for one record; False if there is none, or somebody waits before us."""
        return not self._waiters.get(shard) and self._admit(shard, size_bytes)

    async def reserve(self, shard: int, size_bytes: int) -> None:
        """Wait for room, in order within a shard. Cancelling gives up the place in the line."""
        if self.try_reserve(shard, size_bytes):
            return
        line = self._waiters.setdefault(shard, deque())
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, ready)
        line.append(entry)
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self.release(shard, size_bytes)
            else:
                with contextlib.suppress(ValueError):  # passed over already
                    line.remove(entry)
                self._wake()
            raise

    def release(self, shard: int, size_bytes: int) -> None:
        """Return what was taken."""
        before = self._used[shard]
        self._used[shard] = before - size_bytes
        self._common_used -= self._above_guarantee(before) - self._above_guarantee(before - size_bytes)
        self._wake()

    def _admit(self, shard: int, size_bytes: int) -> bool:
        used = self._used.get(shard, 0)
        more = self._above_guarantee(used + size_bytes) - self._above_guarantee(used)
        goes_alone = used == 0 and size_bytes > self._guaranteed + self._common
        if more and self._common_used + more > self._common and not goes_alone:
            return False
        self._common_used += more
        self._used[shard] = used + size_bytes
        return True

    def _above_guarantee(self, used: int) -> int:
        return used - self._guaranteed if used > self._guaranteed else 0

    def _wake(self) -> None:
        for shard, line in self._waiters.items():
            while line:
                size_bytes, ready = line[0]
                if not ready.done():
                    if not self._admit(shard, size_bytes):
                        break
                    ready.set_result(None)
                line.popleft()
