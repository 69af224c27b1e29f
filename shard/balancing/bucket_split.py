"""Decides how segments are divided into bucket ranges if consumers outnumber segments. Pure.

Dividing and joining are moves like any other, so a key bucket never has two holders. The rules, in order of precedence:

1. A CHECKPOINT segment is never shared: its consumers keep positions of whole segments. Nor is one of unknown type.
2. While there are at most as many consumers as grantable segments, no segment is shared.
3. Otherwise there are as many slices as consumers, down to single buckets.
4. The largest slice is halved first, a free one before a held one: a joining consumer disturbs one holder, and no slice
   is more than twice as large as another. If many consumers leave at once, sizes are evened out again.
5. With more slices than consumers, the smallest pair of halves is joined first; but none while all
   slices have one size and there are fewer than two per consumer, because two halves are the same
   load as the joined slice. Other divisions stay.
6. A consumer that cannot read bucket ranges gets whole segments only: as many as leave enough for
   all consumers that can share.

Pulsar's PIP-486 recomputes the key ranges at each change. Here ranges are halves of halves, as in a
buddy allocator, so unchanged slices need not move.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headgate.model.entries import SubscriptionType
from headgate.model.layout import KEY_BUCKETS, BucketRange, SegmentSlice, buckets_of, segment_of, slice_of, sort_key


@dataclass(frozen=True, slots=True)
class Pool:
    """Slices that are assigned among these consumers only."""

    slices: Sequence[SegmentSlice]
    consumers: Collection[str]


def is_shareable(subscription_type: SubscriptionType | None) -> bool:
    """Return whether consumers may share a segment: acknowledgements are tracked per key bucket."""
    return subscription_type in (SubscriptionType.STREAM, SubscriptionType.QUEUE)


def pools(
    subscription_type: SubscriptionType | None,
    segments: Sequence[int],
    consumers: Mapping[str, bool],
    current_holders: Mapping[SegmentSlice, str],
) -> list[Pool]:
    """Return each of the grantable ``segments``, whole or divided, in exactly one pool.

    ``consumers``: name → whether it can read bucket ranges. ``current_holders``: slice → its
    holder, without revoked holdings.
    """
    sharing_consumers = [name for name, can_share in consumers.items() if can_share]
    is_useful = len(consumers) > len(segments) > 0 and len(sharing_consumers) > 1
    if not is_useful or not is_shareable(subscription_type):
        return [Pool(segments, consumers)]
    whole_segment_consumers = [name for name, can_share in consumers.items() if not can_share]
    whole = _select_whole_segments(
        segments, current_holders, whole_segment_consumers, len(segments) - -(-len(sharing_consumers) // KEY_BUCKETS)
    )
    shared = [segment for segment in segments if segment not in whole]
    divided = Pool(_divide(shared, current_holders, len(sharing_consumers)), sharing_consumers)
    return [divided, Pool(sorted(whole), whole_segment_consumers)] if whole else [divided]


def _select_whole_segments(
    segments: Sequence[int],
    current_holders: Mapping[SegmentSlice, str],
    whole_segment_consumers: Collection[str],
    at_most: int,
) -> frozenset[int]:
    """Return the segments for consumers that cannot share: first those they hold, then whole ones (rule 6)."""
    count = max(0, min(len(whole_segment_consumers), at_most))
    names = set(whole_segment_consumers)
    divided = {segment_slice.segment for segment_slice in current_holders if isinstance(segment_slice, BucketRange)}
    return frozenset(sorted(segments, key=lambda s: (current_holders.get(s) not in names, s in divided, s))[:count])


def _divide(segments: Sequence[int], current_holders: Mapping[SegmentSlice, str], readers: int) -> list[SegmentSlice]:
    held_ranges: dict[int, list[BucketRange]] = {}
    for segment_slice in current_holders:
        if isinstance(segment_slice, BucketRange):
            held_ranges.setdefault(segment_slice.segment, []).append(segment_slice)
    slices = [each for segment in segments for each in _coarsest_division(segment, held_ranges.get(segment, ()))]
    wanted = min(max(readers, len(segments)), len(segments) * KEY_BUCKETS)
    if len(slices) < wanted:
        slices = _split_largest(slices, current_holders, wanted)
    elif len(slices) > wanted and not _has_even_sizes(slices, wanted):
        slices = _merge_smallest(slices, current_holders, wanted)
    return sorted(_even_out_sizes(slices, current_holders), key=sort_key)


def _coarsest_division(segment: int, ranges: Iterable[BucketRange]) -> list[SegmentSlice]:
    found: list[SegmentSlice] = []
    pending = [(range(KEY_BUCKETS), list(ranges))]
    while pending:
        buckets, inside = pending.pop()
        if not inside or (len(inside) == 1 and buckets_of(inside[0]) == buckets):
            found.append(_slice(segment, buckets))
            continue
        pending += [
            (half, [each for each in inside if half.start <= each.first_bucket and each.end_bucket <= half.stop])
            for half in _halves(buckets)
        ]
    return found


def _has_even_sizes(slices: Sequence[SegmentSlice], wanted: int) -> bool:
    return len(slices) < 2 * wanted and len({len(buckets_of(segment_slice)) for segment_slice in slices}) == 1


def _even_out_sizes(slices: list[SegmentSlice], current_holders: Mapping[SegmentSlice, str]) -> list[SegmentSlice]:
    """Join small slices and halve as many large ones, until the largest is at most twice the smallest (rule 4).

    The other half of a smallest slice is a slice too; otherwise a smaller one would exist. So each
    round removes one size completely, and there are at most as many rounds as sizes.
    """
    while True:
        sizes = Counter(len(buckets_of(segment_slice)) for segment_slice in slices)
        smallest, largest = min(sizes), max(sizes)
        if largest <= 2 * smallest:
            return slices
        count = min(sizes[smallest] // 2, sizes[largest])
        merged = _merge_smallest(slices, current_holders, len(slices) - count)
        slices = _split_largest(merged, current_holders, len(slices))


def _split_largest(
    slices: Sequence[SegmentSlice], current_holders: Mapping[SegmentSlice, str], wanted: int
) -> list[SegmentSlice]:
    """Halve the largest slices until there are ``wanted`` (rule 4)."""
    heap = [
        (-len(buckets_of(each)), each in current_holders, segment_of(each), buckets_of(each).start) for each in slices
    ]
    heapify(heap)
    while len(heap) < wanted:
        size, _, segment, start = heappop(heap)
        for half in _halves(range(start, start - size)):
            heappush(heap, (-len(half), False, segment, half.start))
    return [_slice(segment, range(start, start - size)) for size, _, segment, start in heap]


def _merge_smallest(
    slices: Sequence[SegmentSlice], current_holders: Mapping[SegmentSlice, str], wanted: int
) -> list[SegmentSlice]:
    """Join the smallest pairs of halves until there are ``wanted`` slices (rule 5)."""
    remaining = set(slices)
    pairs: list[tuple[int, int, int, int]] = []

    def push_if_mergeable(segment_slice: SegmentSlice) -> None:
        buckets = buckets_of(segment_slice)
        enclosing = _enclosing_range(buckets)
        if enclosing is not None:
            halves = [_slice(segment_of(segment_slice), half) for half in _halves(enclosing)]
            if remaining.issuperset(halves):
                held = sum(half in current_holders for half in halves)
                heappush(pairs, (len(enclosing), held, segment_of(segment_slice), enclosing.start))

    for segment_slice in slices:
        if buckets_of(segment_slice).start % (2 * len(buckets_of(segment_slice))) == 0:
            push_if_mergeable(segment_slice)
    while len(remaining) > wanted:
        size, _, segment, start = heappop(pairs)
        enclosing = range(start, start + size)
        remaining.difference_update(_slice(segment, half) for half in _halves(enclosing))
        remaining.add(_slice(segment, enclosing))
        push_if_mergeable(_slice(segment, enclosing))
    return list(remaining)


def _halves(buckets: range) -> tuple[range, range]:
    middle = buckets.start + len(buckets) // 2
    return range(buckets.start, middle), range(middle, buckets.stop)


def _enclosing_range(buckets: range) -> range | None:
    """Return the range that ``buckets`` is one half of; None for a whole segment."""
    size = 2 * len(buckets)
    start = buckets.start - buckets.start % size
    return None if size > KEY_BUCKETS else range(start, start + size)


def _slice(segment: int, buckets: range) -> SegmentSlice:
    return slice_of(segment, buckets.start, buckets.stop)
