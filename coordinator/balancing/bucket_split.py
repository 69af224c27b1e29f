"""Decide into which shares segments are cut, so that there is something to read for more consumers than segments.

This module is the whole policy of sharing and nothing but it: values in, `Pool`s out. Who gets which place of a pool is
decided in coordinator.balancing.target, how a place gets from one consumer to another in coordinator.balancing.handover: cutting a segment
and joining its shares again are moves like any other, so a key's bucket never has two holders.

The rules, in order of precedence:

1. CHECKPOINT keeps positions of its own, for whole segments: never shared. Nor is anything while the type is unknown.
2. As long as there are no more consumers than grantable segments, nothing is shared.
3. Else there are as many places as consumers, until every segment is cut into its single buckets.
4. A place is cut in halves, the largest one first, one that nobody holds before others. So one more consumer disturbs
   one holder, and no place is more than twice as large as another; should many leave at once, that is restored.
5. Two halves are joined again, the smallest first, when there are more places than consumers. Not so while all places
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

from headgate.model.bucket_ranges import Place, Share, buckets_of, place_of, segment_of
from headgate.model.entries import SubscriptionType
from headgate.model.hashing import KEY_BUCKETS


@dataclass(frozen=True, slots=True)
class Pool:
    """Places that are to be given to these consumers, and to no others."""

    places: Sequence[Place]
    consumers: Collection[str]


def is_shareable(subscription_type: SubscriptionType | None) -> bool:
    """Tell whether segments may be shared at all: where acknowledgements are kept per key bucket."""
    return subscription_type in ("STREAM", "QUEUE")


def pools(
    subscription_type: SubscriptionType | None,
    segments: Sequence[int],
    consumers: Mapping[str, bool],
    standing: Mapping[Place, str],
) -> list[Pool]:
    """Return what is to be read by whom: every grantable segment of ``segments``, whole or cut, in exactly one pool.

    ``consumers``: name → whether it can read shares. ``standing``: what is held and was not revoked → by whom.
    """
    able = [name for name, shares in consumers.items() if shares]
    is_useful = len(consumers) > len(segments) > 0 and len(able) > 1
    if not is_useful or not is_shareable(subscription_type):
        return [Pool(segments, consumers)]
    unable = [name for name, shares in consumers.items() if not shares]
    whole = _kept_whole(segments, standing, unable, len(segments) - -(-len(able) // KEY_BUCKETS))
    shared = [segment for segment in segments if segment not in whole]
    cut = Pool(_cut(shared, standing, len(able)), able)
    return [cut, Pool(sorted(whole), unable)] if whole else [cut]


def _kept_whole(
    segments: Sequence[int],
    standing: Mapping[Place, str],
    unable: Collection[str],
    at_most: int,
) -> frozenset[int]:
    """Return the segments for those who cannot share: rather what they hold, then what is whole (rule 6)."""
    count = max(0, min(len(unable), at_most))
    names = set(unable)
    divided = {place.segment for place in standing if isinstance(place, Share)}
    ranked = sorted(segments, key=lambda s: (standing.get(s) not in names, s in divided, s))
    return frozenset(ranked[:count])


def _cut(segments: Sequence[int], standing: Mapping[Place, str], readers: int) -> list[Place]:
    """Return the places of ``segments`` for so many ``readers``, in order."""
    shares: dict[int, list[Share]] = {}
    for place in standing:
        if isinstance(place, Share):
            shares.setdefault(place.segment, []).append(place)
    places = [place for segment in segments for place in _as_it_stands(segment, shares.get(segment, ()))]
    wanted = min(max(readers, len(segments)), len(segments) * KEY_BUCKETS)
    if len(places) < wanted:
        places = _halved(places, standing, wanted)
    elif len(places) > wanted and not _is_even(places, wanted):
        places = _joined(places, standing, wanted)
    return sorted(_evened(places, standing))


def _as_it_stands(segment: int, shares: Iterable[Share]) -> list[Place]:
    """Return the coarsest cut of ``segment`` that leaves every one of ``shares`` as it is."""
    found: list[Place] = []
    pending = [(range(KEY_BUCKETS), list(shares))]
    while pending:
        buckets, inside = pending.pop()
        if not inside or buckets in [buckets_of(share) for share in inside]:
            found.append(_place(segment, buckets))
            continue
        pending += [
            (half, [share for share in inside if half.start <= share.first_bucket and share.end_bucket <= half.stop])
            for half in _halves(buckets)
        ]
    return found


def _is_even(places: Sequence[Place], wanted: int) -> bool:
    return len(places) < 2 * wanted and len({len(buckets_of(place)) for place in places}) == 1


def _evened(places: list[Place], standing: Mapping[Place, str]) -> list[Place]:
    """Join small ones and cut as many large ones, until none is more than twice as large as another (rule 4).

    The other half of a smallest place is a place as well, else there were a smaller one. So each round uses up all of
    one size, and there are no more rounds than sizes.
    """
    while True:
        sizes = Counter(len(buckets_of(place)) for place in places)
        smallest, largest = min(sizes), max(sizes)
        if largest <= 2 * smallest:
            return places
        count = min(sizes[smallest] // 2, sizes[largest])
        places = _halved(_joined(places, standing, len(places) - count), standing, len(places))


def _halved(places: Sequence[Place], standing: Mapping[Place, str], wanted: int) -> list[Place]:
    """Cut the largest places until there are as many as ``wanted`` (rule 4)."""
    heap = [
        (-len(buckets_of(place)), place in standing, segment_of(place), buckets_of(place).start) for place in places
    ]
    heapify(heap)
    while len(heap) < wanted:
        size, _, segment, start = heappop(heap)
        for half in _halves(range(start, start - size)):
            heappush(heap, (-len(half), False, segment, half.start))
    return [_place(segment, range(start, start - size)) for size, _, segment, start in heap]


def _joined(places: Sequence[Place], standing: Mapping[Place, str], wanted: int) -> list[Place]:
    """Join the smallest pairs of halves until there are as few as ``wanted``, whole segments at most (rule 5)."""
    left = set(places)
    pairs: list[tuple[int, int, int, int]] = []

    def consider(place: Place) -> None:
        buckets = buckets_of(place)
        around = _around(buckets)
        if around is not None:
            halves = [_place(segment_of(place), half) for half in _halves(around)]
            if left.issuperset(halves):
                heappush(
                    pairs, (len(around), sum(half in standing for half in halves), segment_of(place), around.start)
                )

    for place in places:
        if buckets_of(place).start % (2 * len(buckets_of(place))) == 0:
            consider(place)
    while len(left) > wanted:
        size, _, segment, start = heappop(pairs)
        around = range(start, start + size)
        left.difference_update(_place(segment, half) for half in _halves(around))
        left.add(_place(segment, around))
        consider(_place(segment, around))
    return list(left)


def _halves(buckets: range) -> tuple[range, range]:
    middle = buckets.start + len(buckets) // 2
    return range(buckets.start, middle), range(middle, buckets.stop)


def _around(buckets: range) -> range | None:
    """Return the range of which ``buckets`` is a half; None for a whole segment."""
    size = 2 * len(buckets)
    start = buckets.start - buckets.start % size
    return None if size > KEY_BUCKETS else range(start, start + size)


def _place(segment: int, buckets: range) -> Place:
    return place_of(segment, buckets.start, buckets.stop)
