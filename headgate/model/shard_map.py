"""Which shards can have a topic: one for each number of shards that the cluster has had. Pure.

A cluster's number of shards only grows, and topics stay where they are: docs/decisions/shard-counts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.hashing import shard_of

MAX_SHARDS: Final = 1024


@dataclass(frozen=True, slots=True)
class ShardMap:
    counts: tuple[int, ...]
    """Rising; the last one is the present number."""

    @classmethod
    def read(cls, value: object) -> ShardMap | None:
        """Return the map that a number, or a list of rising numbers, describes; None: it does not."""
        counts = value if isinstance(value, list) else [value]
        usable = bool(counts) and all(type(each) is int and 1 <= each <= MAX_SHARDS for each in counts)
        return cls(tuple(counts)) if usable and sorted(set(counts)) == counts else None

    @property
    def shards(self) -> int:
        return self.counts[-1]

    def grown(self, shards: int) -> ShardMap | None:
        return self.read([*self.counts, shards])

    def candidates(self, topic: str) -> tuple[int, ...]:
        """Return the shards that can have ``topic``, each once. The first is the one on which it is created."""
        return tuple(dict.fromkeys(shard_of(topic, count) for count in reversed(self.counts)))

    def extends(self, other: Sequence[int]) -> bool:
        """Return whether this is a later list than ``other``. A cluster on a copy may begin with the last number."""
        return len(self.counts) > len(other) and (not other or self.shards >= other[-1])
