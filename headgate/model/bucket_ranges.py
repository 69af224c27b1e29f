"""Name what one consumer reads: a `SegmentSlice`, a whole segment or a range of key buckets. Pure.

A whole segment is its number. Slices sort by segment, the whole segment first, then by bucket.
Entries and messages write a slice as (segment, first_bucket, end_bucket); 0, 0 means all buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.model.hashing import KEY_BUCKETS


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
