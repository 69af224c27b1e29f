"""How many bytes a producer can buffer, and how the shards share them.

Each shard has a guaranteed minimum. Beyond it, shards draw on a common pool, first come first
served, so a shard without a leader cannot starve the others. A record larger than both waits until
its shard holds nothing else.
"""

import asyncio
import contextlib
from collections import deque


class ByteBudget:
    def __init__(self, total_bytes: int, guaranteed_bytes: int) -> None:
        """``guaranteed_bytes`` is per shard. The pool is ``total_bytes`` less one shard's minimum."""
        self._guaranteed = guaranteed_bytes
        self._pool = max(0, total_bytes - guaranteed_bytes)
        self._pool_used = 0
        self._used: dict[int, int] = {}
        self._waiters: dict[int, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that all shards hold."""
        return sum(list(self._used.values()))

    def used_by(self, shard: int) -> int:
        return self._used.get(shard, 0)

    def try_reserve(self, shard: int, size_bytes: int) -> bool:
        """Reserve bytes for one record; False if there are too few, or other callers wait already."""
        return not self._waiters.get(shard) and self._admit(shard, size_bytes)

    async def reserve(self, shard: int, size_bytes: int) -> None:
        """Wait for bytes, first come first served per shard. A cancelled call reserves nothing."""
        if self.try_reserve(shard, size_bytes):
            return
        waiters = self._waiters.setdefault(shard, deque())
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, ready)
        waiters.append(entry)
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self.release(shard, size_bytes)
            else:
                with contextlib.suppress(ValueError):  # removed already
                    waiters.remove(entry)
                self._wake()
            raise

    def release(self, shard: int, size_bytes: int) -> None:
        before = self._used[shard]
        self._used[shard] = before - size_bytes
        self._pool_used -= self._above_guarantee(before) - self._above_guarantee(before - size_bytes)
        self._wake()

    def _admit(self, shard: int, size_bytes: int) -> bool:
        used = self._used.get(shard, 0)
        more = used + size_bytes - max(self._guaranteed, used)
        if more > 0:
            oversized_alone = used == 0 and size_bytes > self._guaranteed + self._pool
            if self._pool_used + more > self._pool and not oversized_alone:
                return False
            self._pool_used += more
        self._used[shard] = used + size_bytes
        return True

    def _above_guarantee(self, used: int) -> int:
        return max(0, used - self._guaranteed)

    def _wake(self) -> None:
        for shard, waiters in self._waiters.items():
            while waiters:
                size_bytes, ready = waiters[0]
                if not ready.done():
                    if not self._admit(shard, size_bytes):
                        break
                    ready.set_result(None)
                waiters.popleft()
