"""The ids of topics and subscriptions. One counter, so that a shard never uses an id twice. Part of the fold."""

from dataclasses import dataclass
from typing import Final

IDS_PER_SHARD_COUNT: Final = 1 << 40
"""A name has another shard for each number of shards, which counts its own ids: each number has a range of its own."""


@dataclass(slots=True)
class IdRange:
    shard_counts: tuple[int, ...] = ()
    """All numbers of shards that the cluster has had, rising; empty: it has had only one."""
    next_id: int = 1

    def use(self, used: int) -> None:
        self.next_id = max(self.next_id, used + 1)

    def grow(self, counts: tuple[int, ...]) -> None:
        """Set the numbers of shards, and begin with the ids of topics that are created by the last one."""
        self.shard_counts = counts
        self.next_id = max(self.next_id, (len(counts) - 1) * IDS_PER_SHARD_COUNT)
