"""Decide into which shares segments are cut, so that there is something to read for more consumers than segments.

This module is the whole policy of sharing and nothing but it: values in, `Pool`s out. Who gets which place of a pool is
decided in coordinator.balancing.target, how a place gets from one consumer to another in
coordinator.balancing.handover: cutting a segment and joining its shares again are moves like any other, so a key's
bucket never has two holders.

The rules, in order of precedence:

1. CHECKPOINT keeps positions of its own, for whole segments: never shared. Nor is anything while the type is unknown.
2. As long as there are no more consumers than grantable segments, nothing is shared.
3. Else there are as many places as consumers, until every segment is cut into its single buckets.
4. A place is cut in halves, the largest one first, one that nobody holds before others. So one more consumer disturbs
   one holder, and no place is more than twice as large as another; should many leave at once, that is restored.
5. Two halves are joined again, the smallest first, when there are more places than consumers. Not so while all slices
   are of one size and there are fewer than two for each consumer: that one consumer reads two halves is as even as if
   it read both joined, and disturbs nobody. What is cut already and need not be otherwise stays as it is.
6. A consumer that cannot read shares is given whole segments alone. Once others share, those who cannot get as many
   of them as leave enough for all who can, so that as many consumers as possible have something to read.

Pulsar's PIP-486 lays the consumers of a segment out anew at every change and lets the broker decide over keys. Here
cuts are halves of halves, as in a buddy allocator, because the places that stay need not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of, slice_of
from headgate.model.entries import SubscriptionType
from headgate.model.hashing import KEY_BUCKETS


@dataclass(frozen=True, slots=True)
class Pool:
    """Places that are to be given to these consumers, and to no others."""

    slices: Sequence[SegmentSlice]
    consumers: Collection[str]


def is_shareable(subscription_type: SubscriptionType | None) -> bool:
    """Tell whether segments may be shared at all: where acknowledgements are kept per key bucket."""
    return subscription_type in (SubscriptionType.STREAM, SubscriptionType.QUEUE)


def pools(
    subscription_type: SubscriptionType | None,
    segments: Sequence[int],
    consumers: Mapping[str, bool],
    current_holders: Mapping[SegmentSlice, str],
) -> list[Pool]:
    """Return what is to be read by whom: every grantable segment of ``segments``, whole or cut, in exactly one pool.

    ``consumers``: name → whether it can read shares. ``current_holders``: what is held and was not revoked → by whom.
    """
    sharing_consumers = [name for name, shares in consumers.items() if shares]
    is_useful = len(consumers) > len(segments) > 0 and len(sharing_consumers) > 1
    if not is_useful or not is_shareable(subscription_type):
        return [Pool(segments, consumers)]
    whole_segment_consumers = [name for name, shares in consumers.items() if not shares]
    whole = _select_whole_segments(
        segments, current_holders, whole_segment_consumers, len(segments) - -(-len(sharing_consumers) // KEY_BUCKETS)
    )
    shared = [segment for segment in segments if segment not in whole]
    cut = Pool(_divide(shared, current_holders, len(sharing_consumers)), sharing_consumers)
    return [cut, Pool(sorted(whole), whole_segment_consumers)] if whole else [cut]


def _select_whole_segments(
    segments: Sequence[int],
    current_holders: Mapping[SegmentSlice, str],
    whole_segment_consumers: Collection[str],
    at_most: int,
) -> frozenset[int]:
    """Return the segments for those who cannot share: rather what they hold, then what is whole (rule 6)."""
    count = max(0, min(len(whole_segment_consumers), at_most))
    names = set(whole_segment_consumers)
    divided = {segment_slice.segment for segment_slice in current_holders if isinstance(segment_slice, BucketRange)}
    ranked = sorted(segments, key=lambda s: (current_holders.get(s) not in names, s in divided, s))
    return frozenset(ranked[:count])


def _divide(segments: Sequence[int], current_holders: Mapping[SegmentSlice, str], readers: int) -> list[SegmentSlice]:
    """Return the places of ``segments`` for so many ``readers``, in order."""
    shares: dict[int, list[BucketRange]] = {}
    for segment_slice in current_holders:
        if isinstance(segment_slice, BucketRange):
            shares.setdefault(segment_slice.segment, []).append(segment_slice)
    slices = [
        segment_slice for segment in segments for segment_slice in _coarsest_division(segment, shares.get(segment, ()))
    ]
    wanted = min(max(readers, len(segments)), len(segments) * KEY_BUCKETS)
    if len(slices) < wanted:
        slices = _split_largest(slices, current_holders, wanted)
    elif len(slices) > wanted and not _has_even_sizes(slices, wanted):
        slices = _merge_smallest(slices, current_holders, wanted)
    return sorted(_even_out_sizes(slices, current_holders))


def _coarsest_division(segment: int, shares: Iterable[BucketRange]) -> list[SegmentSlice]:
    """Return the coarsest cut of ``segment`` that leaves every one of ``shares`` as it is."""
    found: list[SegmentSlice] = []
    pending = [(range(KEY_BUCKETS), list(shares))]
    while pending:
        buckets, inside = pending.pop()
        if not inside or buckets in [buckets_of(share) for share in inside]:
            found.append(_slice(segment, buckets))
            continue
        pending += [
            (half, [share for share in inside if half.start <= share.first_bucket and share.end_bucket <= half.stop])
            for half in _halves(buckets)
        ]
    return found


def _has_even_sizes(slices: Sequence[SegmentSlice], wanted: int) -> bool:
    return len(slices) < 2 * wanted and len({len(buckets_of(segment_slice)) for segment_slice in slices}) == 1


def _even_out_sizes(slices: list[SegmentSlice], current_holders: Mapping[SegmentSlice, str]) -> list[SegmentSlice]:
    """Join small ones and cut as many large ones, until none is more than twice as large as another (rule 4).

    The other half of a smallest place is a place as well, else there were a smaller one. So each round uses up all of
    one size, and there are no more rounds than sizes.
    """
    while True:
        sizes = Counter(len(buckets_of(segment_slice)) for segment_slice in slices)
        smallest, largest = min(sizes), max(sizes)
        if largest <= 2 * smallest:
            return slices
        count = min(sizes[smallest] // 2, sizes[largest])
        slices = _split_largest(
            _merge_smallest(slices, current_holders, len(slices) - count), current_holders, len(slices)
        )


def _split_largest(
    slices: Sequence[SegmentSlice], current_holders: Mapping[SegmentSlice, str], wanted: int
) -> list[SegmentSlice]:
    """Cut the largest places until there are as many as ``wanted`` (rule 4)."""
    heap = [
        (
            -len(buckets_of(segment_slice)),
            segment_slice in current_holders,
            segment_of(segment_slice),
            buckets_of(segment_slice).start,
        )
        for segment_slice in slices
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
    """Join the smallest pairs of halves until there are as few as ``wanted``, whole segments at most (rule 5)."""
    remaining = set(slices)
    pairs: list[tuple[int, int, int, int]] = []

    def push_if_mergeable(segment_slice: SegmentSlice) -> None:
        buckets = buckets_of(segment_slice)
        enclosing = _enclosing_range(buckets)
        if enclosing is not None:
            halves = [_slice(segment_of(segment_slice), half) for half in _halves(enclosing)]
            if remaining.issuperset(halves):
                heappush(
                    pairs,
                    (
                        len(enclosing),
                        sum(half in current_holders for half in halves),
                        segment_of(segment_slice),
                        enclosing.start,
                    ),
                )

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
    """Return the range of which ``buckets`` is a half; None for a whole segment."""
    size = 2 * len(buckets)
    start = buckets.start - buckets.start % size
    return None if size > KEY_BUCKETS else range(start, start + size)


def _slice(segment: int, buckets: range) -> SegmentSlice:
    return slice_of(segment, buckets.start, buckets.stop)
