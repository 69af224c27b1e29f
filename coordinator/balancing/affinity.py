"""Say who should rather get what is free, because it knows the keys already.

Values in, values out; whether they have room is decided in coordinator.balancing.target. For each place that nobody
holds:

1. Whoever holds keys of it, because its segment was cut otherwise before; then whoever holds its neighbours.
2. If nobody holds anything of its segment: whoever holds, or held until now, its nearest held ancestors, rather those
   who hold the same buckets of them: a key keeps its bucket through splits and merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.decisions.gate import nearest_ancestors
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of
from headgate.model.layout import Layout


def preferred_owners_of(
    holders: Mapping[SegmentSlice, str],
    layout: Layout,
    slices: Iterable[SegmentSlice],
) -> dict[SegmentSlice, Sequence[str]]:
    """Return for each free one of ``slices`` who should rather get it, best first; nothing where nobody should.

    ``holders``: what is held, revoked or not → by whom.
    """
    shares: dict[int, list[SegmentSlice]] = {}
    for segment_slice in holders:
        if isinstance(segment_slice, BucketRange):
            shares.setdefault(segment_slice.segment, []).append(segment_slice)
    preferred_owners: dict[SegmentSlice, Sequence[str]] = {}
    for segment_slice in slices:
        if segment_slice in holders:
            continue
        segment = segment_of(segment_slice)
        if not shares and segment == segment_slice and not layout.segments[segment].parents:
            continue
        for generation in ([segment], *nearest_ancestors(layout, segment)):
            held = [part for s in generation for part in (s, *shares.get(s, ())) if part in holders]
            if held:
                preferred_owners[segment_slice] = _ranked(segment_slice, held, holders)
                break
    return preferred_owners


def _ranked(
    segment_slice: SegmentSlice, held: Iterable[SegmentSlice], holders: Mapping[SegmentSlice, str]
) -> list[str]:
    """Return the holders of ``held``, those of the same buckets first, then of buckets near by."""
    wanted = buckets_of(segment_slice)

    def distance(part: SegmentSlice) -> int:
        buckets = buckets_of(part)
        return max(0, buckets.start - wanted.stop + 1, wanted.start - buckets.stop + 1)

    return list(dict.fromkeys(holders[part] for part in sorted(held, key=lambda p: (distance(p), p))))
