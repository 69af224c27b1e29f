"""The segments of a topic, how they split and merge, and which of them has a key; what a consumer reads; shards. Pure.

One 32-bit hash maps a key: the high 16 bits choose the segment, the low 16 the bucket, so a key keeps its bucket across
splits and merges. MurmurHash3 x86 32-bit, seed 0, unsigned, as in Pulsar's scalable topics (PIP-486).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import mmh3
import msgspec
from msgspec.structs import replace

from headgate.errors import LayoutError
from headgate.model.text import listed

SEGMENT_HASHES = 1 << 16
"""Size of the ring that segments divide: hashes 0x0000 to 0xffff."""
KEY_BUCKETS = 16
"""Key buckets of a segment, and therefore the maximum number of consumers that share one."""


key_hash = mmh3.mmh3_32_uintdigest
MAX_SHARDS: Final = 1024


def segment_hash(key: bytes) -> int:
    return key_hash(key) >> 16


def key_bucket(key: bytes, buckets: int) -> int:
    """Return the bucket of ``key`` inside its segment, 0 to ``buckets`` - 1."""
    return (key_hash(key) & 0xFFFF) * buckets >> 16


def shard_of(topic: str, shards: int) -> int:
    """Return the shard of ``topic``: the hash of its name modulo a number of shards that the cluster has had."""
    return key_hash(topic.encode()) % shards


class BucketRange(msgspec.Struct, frozen=True, gc=False):
    """The keys of one segment whose bucket is ``first_bucket`` up to, not including, ``end_bucket``."""

    segment: int
    first_bucket: int
    end_bucket: int

    def __lt__(self, other: SegmentSlice) -> bool:
        """Compare with a bucket range or a whole segment."""
        return sort_key(self) < sort_key(other)

    def __gt__(self, other: SegmentSlice) -> bool:
        """Compare for a whole segment, an int, which cannot compare itself with a bucket range."""
        return sort_key(self) > sort_key(other)

    def __str__(self) -> str:
        """Return the range for display, with its last bucket, e.g. ``3[0-7]``."""
        return f"{self.segment}[{self.buckets}]"

    @property
    def buckets(self) -> str:
        """The buckets for display, with the last one: ``0-7``, or ``3`` for a single one."""
        last = self.end_bucket - 1
        return str(last) if last == self.first_bucket else f"{self.first_bucket}-{last}"


SegmentSlice = int | BucketRange
"""A whole segment, which is its number, or a range of its key buckets.

Slices sort by segment, the whole segment first, then by bucket. Entries and messages write a slice as (segment,
first_bucket, end_bucket); 0, 0 means all buckets.
"""


def slice_of(segment: int, first_bucket: int, end_bucket: int) -> SegmentSlice:
    """Return the slice that an entry or a message names; all buckets are the whole segment."""
    if end_bucket == 0 or (first_bucket, end_bucket) == (0, KEY_BUCKETS):
        return segment
    return BucketRange(segment, first_bucket, end_bucket)


def segment_of(segment_slice: SegmentSlice) -> int:
    return segment_slice.segment if isinstance(segment_slice, BucketRange) else segment_slice


def bucket_bounds(segment_slice: SegmentSlice) -> tuple[int, int]:
    """Return (first_bucket, end_bucket) as entries and messages write it: 0, 0 for a whole segment."""
    return (segment_slice.first_bucket, segment_slice.end_bucket) if isinstance(segment_slice, BucketRange) else (0, 0)


def slice_fields(segment_slice: SegmentSlice) -> dict[str, Any]:
    """Return the fields by which entries and messages name a slice."""
    if not isinstance(segment_slice, BucketRange):
        return {"segment": segment_slice, "first_bucket": 0, "end_bucket": 0}  # Many, after a seek.
    first, end = segment_slice.first_bucket, segment_slice.end_bucket
    return {"segment": segment_slice.segment, "first_bucket": first, "end_bucket": end}


def buckets_of(segment_slice: SegmentSlice) -> range:
    return (
        range(segment_slice.first_bucket, segment_slice.end_bucket)
        if isinstance(segment_slice, BucketRange)
        else range(KEY_BUCKETS)
    )


def overlaps(one: SegmentSlice, other: SegmentSlice) -> bool:
    if segment_of(one) != segment_of(other):
        return False
    mine, theirs = buckets_of(one), buckets_of(other)
    return mine.start < theirs.stop and theirs.start < mine.stop


def sort_key(segment_slice: SegmentSlice) -> tuple[int, int, int]:
    """Return (segment, first_bucket, end_bucket): a key for sorting thousands of slices, each asked once."""
    if isinstance(segment_slice, BucketRange):
        return segment_slice.segment, segment_slice.first_bucket, segment_slice.end_bucket
    return segment_slice, 0, 0


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Which shards can have a topic: one for each number of shards that the cluster has had.

    A cluster's number of shards only grows, and topics stay where they are: docs/decisions/shard-counts.md.
    """

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

    def misplaced(self, shard: int, topics: Iterable[str]) -> str | None:
        """Name the first of the ``topics`` of ``shard`` that belongs to another one, if there is one."""
        for topic in sorted(topics):
            if shard not in (right := self.candidates(topic)):
                return (
                    f"topic {topic!r} is in shard {shard} and belongs to shard {' or '.join(map(str, right))} of "
                    f"{self.shards}: the ledger was written with another number of shards"
                )
        return None

    def extends(self, other: Sequence[int]) -> bool:
        """Return whether this is a later list than ``other``. A cluster on a copy may begin with the last number."""
        return len(self.counts) > len(other) and (not other or self.shards >= other[-1])


class SegmentState(StrEnum):
    ACTIVE = "active"
    SEALED = "sealed"


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One node of the graph: an inclusive range of segment hashes.

    A struct, because a prune replaces thousands in one turn: `replace` takes a tenth of a dataclass's time.
    """

    segment_id: int
    first_hash: int
    last_hash: int
    created_at_ms: int
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    state: SegmentState = SegmentState.ACTIVE
    end_offset: int | None = None
    sealed_at_ms: int | None = None
    label: str | None = None
    """Its name at the source of an external topic."""
    rolled_since_ms: int | None = None
    """When the first of the segments was created that were rolled, one into the next, up to this one."""

    @property
    def range_since_ms(self) -> int:
        """Since when one segment after the other has had this range."""
        return self.created_at_ms if self.rolled_since_ms is None else self.rolled_since_ms

    @property
    def hash_range(self) -> str:
        """The range for display, e.g. ``0000-7fff``."""
        return f"{self.first_hash:04x}-{self.last_hash:04x}"


@dataclass(frozen=True)
class Layout:
    """All segments of a topic at one layout epoch.

    Immutable: each change returns a layout with the next ``layout_epoch``. Segment ids are never reused.

    1. The active segments tile the 16-bit ring: every hash belongs to exactly one.
    2. A split seals one active segment and creates two children at its midpoint. A roll creates one child of the same
       range, so that what the sealed segment holds can be pruned.
    3. A merge seals two active segments with adjacent ranges, siblings or not, and creates one child.
    4. A segment of a single hash cannot be split.
    5. Only a sealed segment without ancestors in the layout can be pruned. Its children lose it as a
       parent: a pruned segment counts as drained.

    The ranges of an external topic are its source's, scaled to the ring for display; no record is routed by them.
    """

    layout_epoch: int
    next_segment_id: int
    segments: Mapping[int, Segment]
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The first `key_hash` of each active segment."""
    _routes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        active = sorted(self.active(), key=lambda segment: segment.first_hash)
        object.__setattr__(self, "segments", MappingProxyType(dict(self.segments)))
        object.__setattr__(self, "_starts", tuple(segment.first_hash << 16 for segment in active))
        object.__setattr__(self, "_routes", tuple(segment.segment_id for segment in active))

    @classmethod
    def initial(cls, count: int, at_ms: int) -> Layout:
        """Return ``count`` equal segments, ids from 0; the last takes the remainder.

        Raises LayoutError: ``count`` is below 1 or above the number of hashes.
        """
        if not 1 <= count <= SEGMENT_HASHES:
            raise LayoutError(f"{count} segments: give a number from 1 to {SEGMENT_HASHES}")
        width = SEGMENT_HASHES // count
        segments = {
            n: Segment(n, n * width, SEGMENT_HASHES - 1 if n == count - 1 else (n + 1) * width - 1, at_ms)
            for n in range(count)
        }
        return cls(0, count, segments)

    @classmethod
    def imported(cls, segments: Iterable[Segment]) -> Layout:
        """Return the first layout of an external topic; ``segments`` name their parents and children."""
        listed = {segment.segment_id: segment for segment in segments}
        return cls(0, max(listed, default=-1) + 1, listed)

    def extended(self, created: Iterable[Segment], sealed: Mapping[int, int], at_ms: int) -> Layout:
        """Return an external topic's layout with more segments, and with others ``sealed`` (segment → end offset).

        ``created`` name their parents, and their children among themselves.
        """
        new = {segment.segment_id: segment for segment in created}
        segments = {**self.segments, **new}
        for segment_id, end_offset in sealed.items():
            segments[segment_id] = replace(
                segments[segment_id], state=SegmentState.SEALED, end_offset=end_offset, sealed_at_ms=at_ms
            )
        opened = [(parent, each.segment_id) for each in new.values() for parent in each.parents if parent not in new]
        for parent, child in opened:
            segments[parent] = replace(segments[parent], children=(*segments[parent].children, child))
        return Layout(self.layout_epoch + 1, max([self.next_segment_id, *(n + 1 for n in new)]), segments)

    @cached_property
    def sealed(self) -> frozenset[int]:
        """The sealed segments."""
        return frozenset([n for n, segment in self.segments.items() if segment.state is SegmentState.SEALED])

    def active(self) -> list[Segment]:
        return _active(self.segments)

    @property
    def active_count(self) -> int:
        return len(self._routes)

    def route(self, key_hashes: Iterable[int]) -> list[int]:
        """Return the active segment of each `key_hash`."""
        starts, routes = self._starts, self._routes
        return [routes[bisect_right(starts, each) - 1] for each in key_hashes]

    def ancestors(self, segment_id: int) -> frozenset[int]:
        """Return all ancestors in the layout, at any depth. Pruned ancestors are not in it, and are drained."""
        ancestors: set[int] = set()
        pending = list(self.segments[segment_id].parents)
        while pending:
            ancestor = pending.pop()
            if ancestor in self.segments and ancestor not in ancestors:
                ancestors.add(ancestor)
                pending.extend(self.segments[ancestor].parents)
        return frozenset(ancestors)

    def descendants(self, segment_ids: AbstractSet[int]) -> set[int]:
        """Return all segments that have one of ``segment_ids`` as an ancestor, at any depth."""
        behind: set[int] = set()
        reached = set(segment_ids)
        # Parents have lower ids than their children.
        for segment_id, segment in sorted(self.segments.items()):
            if not reached.isdisjoint(segment.parents):
                behind.add(segment_id)
                reached.add(segment_id)
        return behind

    def split(self, segment_id: int, end_offset: int, at_ms: int) -> Layout:
        """Seal ``segment_id`` at ``end_offset`` and create its two halves.

        Raises LayoutError: the segment is unknown, sealed, or a single hash.
        """
        return self.changed([segment_id], [], lambda _: end_offset, at_ms)

    def merge(self, first_id: int, second_id: int, end_offsets: Mapping[int, int], at_ms: int) -> Layout:
        """Seal two active neighbors and create the segment that covers both.

        Raises LayoutError: one is unknown or sealed, both are the same, or they do not touch.
        """
        return self.changed([], [(first_id, second_id)], end_offsets.__getitem__, at_ms)

    def roll(self, segment_id: int, end_offset: int, at_ms: int) -> Layout:
        """Seal ``segment_id`` at ``end_offset`` and create one child of the same range.

        Raises LayoutError: the segment is unknown or sealed.
        """
        draft = _Draft(dict(self.segments), self.next_segment_id, lambda _: end_offset, at_ms)
        draft.roll(segment_id)
        return Layout(self.layout_epoch + 1, draft.next_segment_id, draft.segments)

    def changed(
        self, splits: Sequence[int], merges: Sequence[tuple[int, int]], end_offset: Callable[[int], int], at_ms: int
    ) -> Layout:
        """Return the layout after ``splits``, then ``merges``. ``end_offset``: segment → where it is sealed.

        The cost is linear in the segments and the changes. Raises LayoutError: a change is impossible.
        """
        draft = _Draft(dict(self.segments), self.next_segment_id, end_offset, at_ms)
        for segment_id in splits:
            draft.split(segment_id)
        for first_id, second_id in merges:
            draft.merge(first_id, second_id)
        return Layout(self.layout_epoch + len(splits) + len(merges), draft.next_segment_id, draft.segments)

    def prune(self, segment_ids: Iterable[int]) -> Layout:
        """Remove sealed segments, ancestors first. None may keep an ancestor in the layout.

        Raises LayoutError: one is unknown, active, or would lose its place after an ancestor that stays.
        """
        segments = dict(self.segments)
        orphans: set[int] = set()
        for segment_id in segment_ids:
            segment = segments.get(segment_id)
            if segment is None or segment.state is SegmentState.ACTIVE:
                raise LayoutError(f"segment {segment_id} is not a sealed segment of this layout")
            if not segments.keys().isdisjoint(segment.parents):
                older = sorted(self.ancestors(segment_id) & segments.keys())
                raise LayoutError(f"segment {segment_id} still has ancestors {older}: prune those first")
            del segments[segment_id]
            orphans.update(segment.children)
        for orphan in orphans & segments.keys():
            remaining = tuple([parent for parent in segments[orphan].parents if parent in segments])
            segments[orphan] = replace(segments[orphan], parents=remaining)
        return Layout(self.layout_epoch + 1, self.next_segment_id, segments)


@dataclass
class _Draft:
    segments: dict[int, Segment]
    next_segment_id: int
    end_offset: Callable[[int], int]
    at_ms: int

    def split(self, segment_id: int) -> None:
        parent = self._active_segment(segment_id, "split")
        if parent.first_hash == parent.last_hash:
            raise LayoutError(f"segment {segment_id} covers the single hash {parent.hash_range}: it cannot be split")
        middle = parent.first_hash + (parent.last_hash - parent.first_hash) // 2
        self._replace((segment_id,), (parent.first_hash, middle), (middle + 1, parent.last_hash))

    def roll(self, segment_id: int) -> None:
        parent = self._active_segment(segment_id, "roll")
        self._replace((segment_id,), (parent.first_hash, parent.last_hash))
        child = self.segments[self.next_segment_id - 1]
        self.segments[child.segment_id] = replace(child, rolled_since_ms=parent.range_since_ms)

    def merge(self, first_id: int, second_id: int) -> None:
        first, second = self._active_segment(first_id, "merge"), self._active_segment(second_id, "merge")
        low, high = sorted((first, second), key=lambda segment: segment.first_hash)
        if low.last_hash + 1 != high.first_hash:
            neighbors = [
                str(other.segment_id)
                for other in _active(self.segments)
                if other.last_hash + 1 == first.first_hash or first.last_hash + 1 == other.first_hash
            ]
            raise LayoutError(
                f"segments {first_id} ({first.hash_range}) and {second_id} ({second.hash_range}) are not neighbors; "
                f"segment {first_id} can merge with: {listed(neighbors) or 'none'}"
            )
        self._replace((low.segment_id, high.segment_id), (low.first_hash, high.last_hash))

    def _active_segment(self, segment_id: int, verb: str) -> Segment:
        segment = self.segments.get(segment_id)
        if segment is not None and segment.state is SegmentState.ACTIVE:
            return segment
        problem = "unknown" if segment is None else "already sealed"
        choices = listed([other.segment_id for other in _active(self.segments)])
        raise LayoutError(f"cannot {verb} segment {segment_id}: it is {problem}; active segments are {choices}")

    def _replace(self, parents: tuple[int, ...], *ranges: tuple[int, int]) -> None:
        """Seal ``parents`` and create their children, one for each of ``ranges``."""
        children = tuple(range(self.next_segment_id, self.next_segment_id + len(ranges)))
        for parent in parents:
            self.segments[parent] = replace(
                self.segments[parent],
                state=SegmentState.SEALED,
                children=children,
                end_offset=self.end_offset(parent),
                sealed_at_ms=self.at_ms,
            )
        for child, (first_hash, last_hash) in zip(children, ranges, strict=True):
            self.segments[child] = Segment(child, first_hash, last_hash, self.at_ms, parents)
        self.next_segment_id += len(ranges)


def _active(segments: Mapping[int, Segment]) -> list[Segment]:
    return [segment for _, segment in sorted(segments.items()) if segment.state is SegmentState.ACTIVE]
