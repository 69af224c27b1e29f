"""The memory of one daemon for the states of shards that it follows.

`controller.leadership.standby` decides which states stay. This module remembers their sizes, asks at most once a
second, and lets only some states be read at a time: their sizes are not known before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from controller.leadership.election import Elections
from controller.leadership.standby import FollowedShard, warm_shards

DECISION_SECONDS: Final = 1.0
READERS: Final = 4
"""States that are read from snapshots at a time. They may exceed the limit until their size is known."""


class StandbyMemory:
    """Shared by the shards of a daemon."""

    def __init__(self, instance: str, elections: Elections, limit_bytes: Callable[[], int]) -> None:
        self.reading = asyncio.Semaphore(READERS)
        """Held while a state is read from its snapshot."""
        self._instance = instance
        self._elections = elections
        self._limit_bytes = limit_bytes
        self._sizes: dict[int, int] = {}
        self._warm: set[int] = set()
        self._chosen: frozenset[int] = frozenset()
        self._decided_at: float | None = None

    def keeps(self, shard: int, size_bytes: int) -> bool:
        """Return whether the state of a followed shard is to be in memory. ``size_bytes``: 0 if it is not."""
        if size_bytes:
            self._sizes[shard] = size_bytes
            self._warm.add(shard)
        else:
            self._sizes.setdefault(shard, 0)
            self._warm.discard(shard)
        now = asyncio.get_running_loop().time()
        if self._decided_at is None or now - self._decided_at >= DECISION_SECONDS or shard not in self._chosen:
            self._decided_at = now
            self._chosen = warm_shards(map(self._followed, self._sizes), self._limit_bytes())
        return shard in self._chosen

    def stop_following(self, shard: int) -> None:
        """Leave the shard out: this daemon leads it, and its state must be in memory."""
        self._sizes.pop(shard, None)
        self._warm.discard(shard)

    def _followed(self, shard: int) -> FollowedShard:
        queue = self._elections.queue(shard)
        is_next = queue is not None and queue.next == self._instance
        return FollowedShard(shard, self._sizes[shard], next_in_queue=is_next, warm=shard in self._warm)
