"""The consumers of one subscription, those that may not come back, and which segments each holds. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

from headgate.model import entries as e
from headgate.model.layout import BucketRange, SegmentSlice, segment_of, slice_of

MAX_REMOVED_CONSUMERS = 1000


@dataclass(frozen=True, slots=True)
class RegisteredConsumer:
    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Start of its grace period; None while it is connected."""
    supports_bucket_ranges: bool = False
    """Whether it can read a bucket range of a segment. Clients of the first version cannot."""
    capacity: int = 100
    """Capacity in percent of a standard consumer. Used when balancing by load."""
    host: str = ""
    """Where it runs, as it says."""
    version: str = ""
    """Version of its library, as it says."""
    registered_at_ms: int | None = None
    """When this instance joined."""
    stalled_at_ms: int | None = None
    """When it lost a segment because it made no progress; None: it has made some since, or asked for records."""


@dataclass(frozen=True, slots=True)
class RemovedConsumer:
    """A consumer instance that left, was replaced or evicted by a command, or whose subscription was deleted."""

    consumer: str
    incarnation: int
    client_id: str
    at_ms: int
    evicted: bool = False
    """A command has removed it."""


def find_removed(
    consumers: Iterable[RemovedConsumer], consumer: str, incarnation: int, client_id: str
) -> RemovedConsumer | None:
    """Return exactly this consumer instance, if ``consumers`` include it."""
    wanted = (consumer, incarnation, client_id)
    return next((each for each in consumers if (each.consumer, each.incarnation, each.client_id) == wanted), None)


class Consumers(dict[str, RegisteredConsumer]):
    """Name → the consumer that is registered under it."""

    removed: list[RemovedConsumer]
    """The latest last. A delayed copy of a registration must not bring a removed consumer back."""
    unused_since_ms: int | None
    """Since when there has been no consumer; None while there is one."""

    def __init__(
        self,
        registered: Mapping[str, RegisteredConsumer] = MappingProxyType({}),
        removed: Iterable[RemovedConsumer] = (),
        unused_since_ms: int | None = None,
    ) -> None:
        super().__init__(registered)
        self.removed = list(removed)
        self.unused_since_ms = unused_since_ms

    def snapshot(self) -> Consumers:
        return Consumers(self, self.removed, self.unused_since_ms)

    def find_removed(self, consumer: str, incarnation: int, client_id: str) -> RemovedConsumer | None:
        """Return exactly this consumer instance, if it left, was replaced or was evicted by a command recently."""
        return find_removed(self.removed, consumer, incarnation, client_id)

    def known(self, at_ms: int) -> list[RemovedConsumer]:
        """Return all removed and registered consumers: none may come back if this is deleted at ``at_ms``."""
        registered = [
            RemovedConsumer(known.consumer, known.incarnation, known.client_id, at_ms) for known in self.values()
        ]
        return self.removed + registered

    def forget_removed(self, until_ms: int) -> None:
        self.removed = [each for each in self.removed if each.at_ms > until_ms]

    def register(self, entry: e.ConsumerRegistered, at_ms: int) -> None:
        known = self.get(entry.consumer)
        same = known is not None and (known.incarnation, known.client_id) == (entry.incarnation, entry.client_id)
        self[entry.consumer] = RegisteredConsumer(
            entry.consumer,
            entry.incarnation,
            entry.client_id,
            supports_bucket_ranges=entry.supports_bucket_ranges,
            capacity=entry.capacity,
            host=entry.host,
            version=entry.version,
            registered_at_ms=known.registered_at_ms if known is not None and same else at_ms,
        )
        self.unused_since_ms = None

    def set_disconnected(self, consumer: str, at_ms: int | None) -> None:
        self[consumer] = replace(self[consumer], disconnected_at_ms=at_ms, stalled_at_ms=None)

    def set_stalled(self, consumer: str, at_ms: int | None) -> None:
        if self[consumer].stalled_at_ms != at_ms:
            self[consumer] = replace(self[consumer], stalled_at_ms=at_ms)

    def remove(self, entry: e.ConsumerRemoved, at_ms: int) -> None:
        gone = self.pop(entry.consumer)
        by_command = bool(entry.token)
        if by_command or entry.reason in ("left", "failed", "replaced"):
            removed = RemovedConsumer(gone.consumer, gone.incarnation, gone.client_id, at_ms, evicted=by_command)
            self.removed = [*self.removed, removed][-MAX_REMOVED_CONSUMERS:]
        self.unused_since_ms = None if self else at_ms


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
