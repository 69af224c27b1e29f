"""The memory of one daemon for the states of shards that it follows.

`controller.leadership.policy.standby` decides which states stay. This module remembers their sizes and of which shards
this daemon is a successor, asks about once a second while shards are busy, and ends the pauses of idle ones that the
decision concerns. It lets only some states be read at a time: their sizes are not known before.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final

from controller.leadership.election import Elections
from controller.leadership.policy.standby import LINGER_SECONDS, FollowedShard, Successors, Use, warm_shards

DECISION_SECONDS: Final = 1.0
READERS: Final = 4
"""States that are read from snapshots at a time. They may exceed the limit until their size is known."""
WAKE_SECONDS: Final = 1.0
"""From a new chunk to its reading: a busy leader announces many, and a forger any number."""
TURN_SECONDS: Final = 30.0
"""Another state may be read as well after this time: a request to the store may hang for one shard only."""


class StandbyMemory:
    """Shared by the shards of a daemon."""

    def __init__(self, instance: str, elections: Elections, limit_bytes: Callable[[], int]) -> None:
        self._turns = asyncio.Semaphore(READERS)
        self._instance = instance
        self._elections = elections
        self._limit_bytes = limit_bytes
        self._ranks: Mapping[int, int] = {}
        """Shard → the place of this daemon among its successors."""
        self._nominated_at: dict[int, float] = {}
        self._used_at: dict[int, float] = {}
        """When this daemon was last seen to be a successor of a shard."""
        self._sizes: dict[int, int] = {}
        self._warm: set[int] = set()
        self._pauses: dict[int, asyncio.Event] = {}
        """Shard → ends the pause of its follower."""
        self._chosen: frozenset[int] = frozenset()
        self._decided_at: float | None = None

    def assign(self, successors: Successors) -> None:
        self._ranks = {
            shard: names.index(self._instance) for shard, names in successors.items() if self._instance in names
        }
        self._decide(asyncio.get_running_loop().time())

    def nominated(self, shard: int) -> None:
        """Note that a leader intends to transfer the shard to this daemon: if it gives up, it may try again."""
        self._nominated_at[shard] = asyncio.get_running_loop().time()

    def keeps(self, shard: int, size_bytes: int) -> bool:
        """Return whether the state of a followed shard is to be in memory. ``size_bytes``: 0 if it is not."""
        changed = shard not in self._sizes or (shard in self._warm) != (size_bytes > 0)
        self._sizes[shard] = size_bytes or self._sizes.get(shard, 0)
        (self._warm.add if size_bytes else self._warm.discard)(shard)
        now = asyncio.get_running_loop().time()
        if self._decided_at is None or now - self._decided_at >= DECISION_SECONDS or changed:
            self._decide(now)
        return shard in self._chosen

    async def pause(self, shard: int, seconds: float) -> None:
        """Wait for so long, or until the state of the shard is to be read, or to be released for that of another."""
        self._pauses[shard] = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pauses[shard].wait()

    def wake(self, shard: int) -> None:
        """Let the follower of ``shard``, which has paused before, read in a moment."""
        # The pause of then: a chunk that is announced during a read may come too late for it.
        asyncio.get_running_loop().call_later(WAKE_SECONDS, self._end_pause, shard)

    @asynccontextmanager
    async def turn_to_read(self) -> AsyncIterator[None]:
        """Wait for a turn to read a state from its snapshot. A read that takes too long loses it, and continues."""
        await self._turns.acquire()
        with ExitStack() as held:
            held.callback(self._turns.release)
            held.callback(asyncio.get_running_loop().call_later(TURN_SECONDS, held.close).cancel)
            yield

    def stop_following(self, shard: int) -> None:
        """Leave the shard out: this daemon leads it, and its state must be in memory."""
        for known in (self._sizes, self._nominated_at, self._used_at):
            known.pop(shard, None)
        self._warm.discard(shard)
        self._end_pause(shard)

    def _decide(self, now: float) -> None:
        before, self._decided_at = self._chosen, now
        self._chosen = warm_shards([self._followed(each, now) for each in self._sizes], self._limit_bytes())
        for shard in before ^ self._chosen:
            self._end_pause(shard)

    def _end_pause(self, shard: int) -> None:
        if shard in self._pauses:
            self._pauses[shard].set()

    def _followed(self, shard: int, now: float) -> FollowedShard:
        use = self._use(shard, now)
        if use < Use.FORMER:
            self._used_at[shard] = now
        return FollowedShard(shard, self._sizes[shard], use, warm=shard in self._warm)

    def _use(self, shard: int, now: float) -> Use:
        queue = self._elections.queue(shard)
        rank = self._ranks.get(shard)
        if (queue is not None and queue.next == self._instance) or rank == 0 or _recent(self._nominated_at, shard, now):
            return Use.NEXT
        if rank is not None:
            return Use.SUCCESSOR
        return Use.FORMER if _recent(self._used_at, shard, now) else Use.NONE


def _recent(times: Mapping[int, float], shard: int, now: float) -> bool:
    return shard in times and now - times[shard] < LINGER_SECONDS
