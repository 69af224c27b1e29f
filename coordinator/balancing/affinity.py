"""Ranks the consumers that should get a free slice, because they already know its keys. Pure.

1. If other slices of the same segment are held: their holders, the nearest buckets first.
2. Otherwise the holders of the nearest held ancestors, in the same order of buckets: a key keeps
   its bucket across splits and merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.decisions.gate import nearest_ancestors
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of
from headgate.model.layout import Layout


def preferred_owners_of(
    holders: Mapping[SegmentSlice, str], layout: Layout, slices: Iterable[SegmentSlice]
) -> dict[SegmentSlice, Sequence[str]]:
    """Return free slice → preferred owners, best first. Slices without a preference are left out.

    ``holders``: slice → its holder, revoked holdings included.
    """
    ranges_by_segment: dict[int, list[SegmentSlice]] = {}
    for held in holders:
        if isinstance(held, BucketRange):
            ranges_by_segment.setdefault(held.segment, []).append(held)
    preferred_owners: dict[SegmentSlice, Sequence[str]] = {}
    for free in slices:
        if free in holders:
            continue
        segment = segment_of(free)
        if not ranges_by_segment and segment == free and not layout.segments[segment].parents:
            continue
        for generation in ([segment], *nearest_ancestors(layout, segment)):
            related = [each for s in generation for each in (s, *ranges_by_segment.get(s, ())) if each in holders]
            if related:
                preferred_owners[free] = _ranked(free, related, holders)
                break
    return preferred_owners


def _ranked(
    segment_slice: SegmentSlice, related: Iterable[SegmentSlice], holders: Mapping[SegmentSlice, str]
) -> list[str]:
    """Return the holders of ``related``, by the distance of their buckets from those of ``segment_slice``."""
    wanted = buckets_of(segment_slice)

    def distance(held: SegmentSlice) -> int:
        buckets = buckets_of(held)
        return max(0, buckets.start - wanted.stop + 1, wanted.start - buckets.stop + 1)

    return list(dict.fromkeys(holders[held] for held in sorted(related, key=lambda held: (distance(held), held))))
