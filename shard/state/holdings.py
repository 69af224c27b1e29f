"""Which consumer holds which segment, or bucket range of one, of a subscription. Part of the fold."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

from headgate.model import entries as e
from headgate.model.hashing import BucketRange, SegmentSlice, segment_of, slice_of


@dataclass(frozen=True, slots=True)
class Holding:
    """The holder of a segment, or of a bucket range of one."""

    consumer: str
    generation: int
    revoked_at_ms: int | None = None
    """When the grant was revoked; None while it is valid."""
    progressed_at_ms: int = 0
    """When it was granted; with ``max_processing_ms``, when its holder last acknowledged or began a record."""


@dataclass(slots=True)
class _Index:
    """Finds holdings without a scan."""

    by_generation: dict[int, SegmentSlice]
    ranges: set[BucketRange]


class Holdings(dict[SegmentSlice, Holding]):
    """Segment or bucket range → its holder. No two of them overlap. Only the methods here change it."""

    def __init__(
        self,
        holdings: Mapping[SegmentSlice, Holding] = MappingProxyType({}),
        next_generation: int = 1,
        index: _Index | None = None,
    ) -> None:
        super().__init__(holdings)
        self.next_generation = next_generation
        self._index = index or _Index(
            {holding.generation: held for held, holding in holdings.items()},
            {held for held in holdings if isinstance(held, BucketRange)},
        )

    def snapshot(self) -> Holdings:
        """Return a copy of the mapping. What it finds by generation or range follows the original."""
        return Holdings(self, self.next_generation, self._index)

    def held_by(self, consumer: str) -> list[SegmentSlice]:
        """Return the sorted slices that ``consumer`` holds, revoked ones included."""
        return sorted(held for held, holding in self.items() if holding.consumer == consumer)

    def held_in(self, segments: AbstractSet[int]) -> list[SegmentSlice]:
        whole: AbstractSet[SegmentSlice] = self.keys() & segments
        return [*whole, *(held for held in self._index.ranges if held.segment in segments)]

    def held_at(self, segment: int, generation: int) -> SegmentSlice | None:
        held = self._index.by_generation.get(generation)
        return None if held is None or segment_of(held) != segment else held

    def grant(self, entry: e.SegmentGranted, at_ms: int) -> None:
        granted = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        self[granted] = Holding(entry.consumer, entry.generation, progressed_at_ms=at_ms)
        self._index.by_generation[entry.generation] = granted
        if isinstance(granted, BucketRange):
            self._index.ranges.add(granted)
        self.next_generation = max(self.next_generation, entry.generation + 1)

    def revoke(self, entry: e.SegmentRevoked, at_ms: int) -> None:
        revoked = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        self[revoked] = Holding(self[revoked].consumer, self[revoked].generation, at_ms)

    def release(self, held: SegmentSlice) -> int:
        """Remove a holding; return its generation."""
        generation = self.pop(held).generation
        del self._index.by_generation[generation]
        if isinstance(held, BucketRange):
            self._index.ranges.remove(held)
        return generation

    def clear(self) -> None:
        """Remove all holdings."""
        super().clear()
        self._index.by_generation.clear()
        self._index.ranges.clear()

    def set_progressed(self, held: SegmentSlice, at_ms: int) -> str | None:
        """Let the time limit of a holder begin again; return its name. None: there is none, or it has begun already."""
        holding = self.get(held)
        if holding is None or holding.progressed_at_ms == at_ms:
            return None
        self[held] = replace(holding, progressed_at_ms=at_ms)
        return holding.consumer
