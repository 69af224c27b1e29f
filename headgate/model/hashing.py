"""Map a key to a segment and a key bucket with one 32-bit hash; name what a consumer reads, and shards. Pure.

The high 16 bits choose the segment, the low 16 the bucket, so a key keeps its bucket across splits
and merges. MurmurHash3 x86 32-bit, seed 0, unsigned, as in Pulsar's scalable topics (PIP-486).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mmh3

SEGMENT_HASHES = 1 << 16
"""Size of the ring that segments divide: hashes 0x0000 to 0xffff."""
KEY_BUCKETS = 16
"""Key buckets of a segment, and therefore the maximum number of consumers that share one."""


key_hash = mmh3.mmh3_32_uintdigest


def segment_hash(key: bytes) -> int:
    return key_hash(key) >> 16


def segment_hashes(keys: Iterable[bytes]) -> list[int]:
    return [hashed >> 16 for hashed in map(key_hash, keys)]


def key_bucket(key: bytes, buckets: int) -> int:
    """Return the bucket of ``key`` inside its segment, 0 to ``buckets`` - 1."""
    return (key_hash(key) & 0xFFFF) * buckets >> 16


def shard_of(topic: str, shards: int) -> int:
    """Return the shard of ``topic``: the hash of its name modulo a number of shards that the cluster has had."""
    return key_hash(topic.encode()) % shards


@dataclass(frozen=True, slots=True)
class BucketRange:
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


MAX_SHARDS: Final = 1024


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

    def extends(self, other: Sequence[int]) -> bool:
        """Return whether this is a later list than ``other``. A cluster on a copy may begin with the last number."""
        return len(self.counts) > len(other) and (not other or self.shards >= other[-1])
