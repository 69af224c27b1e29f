"""Computes the target of a subscription: which consumer should own which slice. Pure.

It combines the division into bucket ranges, affinity, and the targets by count and by load. A bucket range weighs its
proportion of the segment's key buckets. By affinity, a consumer gets a free slice whose keys it knows already:

1. If other slices of the same segment are held: their holders, the nearest buckets first.
2. Otherwise the holders of the nearest held ancestors, in the same order of buckets: a key keeps
   its bucket across splits and merges.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from headgate.model.layout import KEY_BUCKETS, BucketRange, Layout, SegmentSlice, bucket_bounds, buckets_of, segment_of
from shard.balancing.bucket_split import Pool, pools
from shard.balancing.load_target import assign_by_load
from shard.state.subscription import Subscription

DEFAULT_CAPACITY_PERCENT = 100
"""Capacity of a hypothetical consumer (shard.reporting.plan)."""


def compute_target(
    subscription: Subscription,
    layout: Layout,
    segments: Sequence[int],
    consumers: Mapping[str, bool],
    holders: Mapping[SegmentSlice, str],
    *,
    all_holders: Mapping[SegmentSlice, str] | None = None,
    preferred_owners: Mapping[SegmentSlice, Sequence[str]] | None = None,
) -> dict[SegmentSlice, str]:
    """Return slice → owner for the grantable ``segments``.

    ``consumers``: name → whether it can read bucket ranges. ``holders``: slice → its holder, without revoked holdings;
    ``all_holders`` includes them, for affinity. ``preferred_owners`` override affinity.
    """
    target: dict[SegmentSlice, str] = {}
    for pool in pools(subscription.type, segments, consumers, holders):
        preferred = preferred_owners_of(holders if all_holders is None else all_holders, layout, pool.slices)
        target |= _assign_pool(subscription, pool, holders, {**preferred, **(preferred_owners or {})})
    return target


def _assign_pool(
    subscription: Subscription,
    pool: Pool,
    holders: Mapping[SegmentSlice, str],
    preferred_owners: Mapping[SegmentSlice, Sequence[str]],
) -> dict[SegmentSlice, str]:
    if subscription.balance == "count":
        return assign(pool.slices, pool.consumers, holders, preferred_owners)
    known, weights = subscription.consumers, subscription.weights
    capacities = {name: known[name].capacity if name in known else DEFAULT_CAPACITY_PERCENT for name in pool.consumers}
    weights_by_slice = {
        each: max(1, weights[segment_of(each)] * len(buckets_of(each)) // KEY_BUCKETS)
        for each in pool.slices
        if segment_of(each) in weights
    }
    return assign_by_load(pool.slices, capacities, holders, weights_by_slice, preferred_owners)


def preferred_owners_of(
    holders: Mapping[SegmentSlice, str], layout: Layout, slices: Iterable[SegmentSlice]
) -> dict[SegmentSlice, Sequence[str]]:
    """Return free slice → preferred owners, best first. Slices without a preference are left out.

    ``holders``: slice → its holder, revoked holdings included.
    """
    free = [each for each in slices if each not in holders] if holders else []
    if not free:
        return {}
    ranges_by_segment: dict[int, list[SegmentSlice]] = {}
    for held in holders:
        if isinstance(held, BucketRange):
            ranges_by_segment.setdefault(held.segment, []).append(held)
    held_segments = {segment_of(held) for held in holders}
    segments = list(map(segment_of, free))
    nearest = _nearest_held(layout, set(segments) - held_segments, held_segments)
    preferred_owners: dict[SegmentSlice, Sequence[str]] = {}
    ranked: dict[tuple[Any, ...], Sequence[str]] = {}
    """(buckets, origins), or the origins of a whole segment → preferred owners: a long chain has one origin."""
    for each, segment in zip(free, segments, strict=True):
        origins = (segment,) if segment in held_segments else nearest.get(segment, ())
        if not origins:
            continue
        key = origins if isinstance(each, int) else (bucket_bounds(each), origins)
        if key not in ranked:
            related = [held for s in origins for held in (s, *ranges_by_segment.get(s, ())) if held in holders]
            ranked[key] = _ranked(each, related, holders)
        preferred_owners[each] = ranked[key]
    return preferred_owners


def _nearest_held(layout: Layout, wanted: AbstractSet[int], held: AbstractSet[int]) -> dict[int, tuple[int, ...]]:
    """Return segment → its nearest held ancestors, for those of ``wanted`` that have one.

    Parents have lower ids than their children, so one pass over the ancestors of all is enough.
    """
    known = dict(layout.segments)  # Its mapping proxy is slower, and is read thousands of times.
    concerned, reached = set(wanted), wanted
    while reached:
        above = {parent for each in reached for parent in known[each].parents}
        reached = (above - concerned - held) & known.keys()
        concerned |= reached
    found: dict[int, tuple[int, tuple[int, ...]]] = {each: (0, (each,)) for each in held}
    for segment in sorted(concerned):
        parents = known[segment].parents
        if len(parents) == 1 and parents[0] in found:  # In chains of thousands.
            distance, origins = found[parents[0]]
            found[segment] = distance + 1, origins
        elif near := [found[parent] for parent in parents if parent in found]:
            nearest = min(near)[0]
            every = {each for distance, origins in near if distance == nearest for each in origins}
            found[segment] = nearest + 1, tuple(sorted(every))
    return {segment: origins for segment, (_, origins) in found.items() if segment in wanted}


def _ranked(
    segment_slice: SegmentSlice, related: Iterable[SegmentSlice], holders: Mapping[SegmentSlice, str]
) -> list[str]:
    """Return the holders of ``related``, by the distance of their buckets from those of ``segment_slice``."""
    wanted = buckets_of(segment_slice)

    def distance(held: SegmentSlice) -> int:
        buckets = buckets_of(held)
        return max(0, buckets.start - wanted.stop + 1, wanted.start - buckets.stop + 1)

    return list(dict.fromkeys(holders[held] for held in sorted(related, key=lambda held: (distance(held), held))))


SliceT = TypeVar("SliceT", bound=SegmentSlice)


def assign(
    grantable: Collection[SliceT],
    consumers: Collection[str],
    holders: Mapping[SliceT, str],
    preferred_owners: Mapping[SliceT, Sequence[str]] | None = None,
) -> dict[SliceT, str]:
    """Decide which consumer should own which segment, by count.

    A bucket range is assigned like a segment. A revoked segment counts as free. The rules, in order of precedence:

    1. Each grantable segment has exactly one owner, as long as there is a consumer.
    2. No consumer owns more than one segment more than any other.
    3. A held segment moves only if rule 2 requires it.
    4. A free segment goes to its first preferred owner below quota (for a child, the holder of its parent), unless
       rule 2 or 3 forbids it.
    5. Ties are broken by consumer name and segment id: equal inputs give equal targets, in any input order.

    Rule 3 holds because each consumer keeps as many segments as its quota allows, and the larger quotas go first to
    consumers that hold more than the smaller one: each saves one move, and no other can be saved.

    The cost is linear in the segments, plus sorting the names and the moved segments.

    Return segment → owner for every grantable segment; empty if there is no consumer. Segments may be bucket ranges.

    ``holders``: segment → its holder, unless revoked; unknown segments and consumers are ignored.
    ``preferred_owners``: free segment → its preferred owners, best first.
    """
    if not consumers:
        return {}
    owners: dict[SliceT, str] = {}
    free: list[SliceT] = []
    held: dict[str, list[SliceT]] = {name: [] for name in consumers}
    for segment in grantable:
        holder = holders.get(segment)
        if holder is None or holder not in held:
            free.append(segment)
        else:
            held[holder].append(segment)
            owners[segment] = holder
    quota, larger = divmod(len(grantable), len(held))
    quotas = _Quotas(quota, larger, {name: len(segments) for name, segments in held.items()})
    for name in quotas.above_quota():
        free += sorted(held[name])[quotas.reduce_to_quota(name) :]
    free.sort()
    _assign_free(free, preferred_owners or {}, quotas, owners)
    return owners


class _Quotas:
    """The quotas of all consumers: ``quota`` for each, one more for ``larger`` of them."""

    def __init__(self, quota: int, larger: int, counts: dict[str, int]) -> None:
        self._quota = quota
        self._larger = larger
        self.counts = counts

    def above_quota(self) -> list[str]:
        """Return the consumers above the smaller quota, by name: each larger quota given to one saves a move."""
        return sorted(name for name, count in self.counts.items() if count > self._quota)

    def reduce_to_quota(self, name: str) -> int:
        """Reduce ``name`` to the larger quota if one is left, else to the smaller; return its new count."""
        count = self._quota
        if self._larger > 0:
            self._larger -= 1
            count += 1
        self.counts[name] = count
        return count

    def try_assign(self, name: str) -> bool:
        """Assign one more segment to ``name`` if it is below its quota; return whether it was."""
        count = self.counts.get(name)
        if count is None or count > self._quota:
            return False
        if count == self._quota:
            if self._larger == 0:
                return False
            self._larger -= 1
        self.counts[name] = count + 1
        return True

    def open_slots(self) -> list[str]:
        """Return one name per open slot: the smaller quotas first, sorted by name."""
        names = sorted(name for name, count in self.counts.items() if count <= self._quota)
        return [name for name in names for _ in range(self._quota - self.counts[name])] + names[: self._larger]


def _assign_free(
    free: list[SliceT], preferred_owners: Mapping[SliceT, Sequence[str]], quotas: _Quotas, owners: dict[SliceT, str]
) -> None:
    """Assign the sorted ``free`` segments: first to preferred owners, then to any open slot."""
    unassigned: list[SliceT] = []
    for segment in free:
        for name in preferred_owners.get(segment, ()):
            if quotas.try_assign(name):
                owners[segment] = name
                break
        else:
            unassigned.append(segment)
    if unassigned:
        owners.update(zip(unassigned, quotas.open_slots(), strict=True))
