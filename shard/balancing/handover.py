"""Decides which moves are allowed now, given the target and the current holdings. Pure.

A released slice is granted in the same step, a revoked one once its holder has confirmed. The
rules, in order of precedence:

1. A segment is granted only while it has no holder, a bucket range only while none of its buckets
   is held, however the segment was divided before.
2. A holder of a retired segment is released at once: nothing is left to read.
3. A holder that is no longer registered is released at once.
4. A revoked holder is released when it confirms or its time is up. The next generation fences it.
5. A holder that is not the target's owner, or whose slice may not be read now, is revoked, once.
6. A revoked holder is not touched until it confirms, even if the target assigns the slice to it
   again. It then gets a new generation.
7. A holder that makes no progress is released at once (shard.subscriptions.stalled). The next generation fences it.
8. Holdings that match the target stay untouched.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from headgate.model.entries import ReleaseReason
from headgate.model.layout import BucketRange, SegmentSlice, overlaps, segment_of
from shard.state.consumers import Holding


@dataclass(frozen=True, slots=True)
class HandoverState:
    target: Mapping[SegmentSlice, str]
    """Slice → owner, for all grantable segments. No two slices overlap."""
    holdings: Mapping[SegmentSlice, Holding]
    consumers: Container[str]
    retired: AbstractSet[int] = frozenset()
    """Segments that no consumer needs to read again."""
    confirmed: AbstractSet[SegmentSlice] = frozenset()
    """Slices whose holder has finished. Only revoked slices count."""
    timed_out: AbstractSet[SegmentSlice] = frozenset()
    """Revoked slices whose holder did not confirm in time."""
    stalled: Container[SegmentSlice] = ()
    """Slices whose holder makes no progress, and that the target gives to others."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now, in this order. Each list is sorted by segment and bucket."""

    releases: tuple[tuple[SegmentSlice, ReleaseReason], ...] = ()
    revocations: tuple[SegmentSlice, ...] = ()
    grants: tuple[tuple[SegmentSlice, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.releases or self.revocations or self.grants)

    def first(self, count: int) -> Moves:
        """Return the first ``count`` moves. They are allowed without the others: grants depend on releases only."""
        if len(self.releases) + len(self.revocations) + len(self.grants) <= count:
            return self
        releases, left = self.releases[:count], max(0, count - len(self.releases))
        revocations, left = self.revocations[:left], max(0, left - len(self.revocations))
        return Moves(releases, revocations, self.grants[:left])


def plan(state: HandoverState) -> Moves:
    """Return the moves that are needed and allowed now."""
    target, holdings, retired = state.target, state.holdings, state.retired
    releases: dict[SegmentSlice, ReleaseReason] = {}
    revocations: list[SegmentSlice] = []
    for segment_slice, holding in holdings.items():
        if retired and segment_of(segment_slice) in retired:
            releases[segment_slice] = "drained"
        elif holding.consumer not in state.consumers:
            releases[segment_slice] = "holder_left"
        elif holding.revoked_at_ms is not None:
            if segment_slice in state.confirmed:
                releases[segment_slice] = "confirmed"
            elif segment_slice in state.timed_out:
                releases[segment_slice] = "timed_out"
        elif segment_slice in state.stalled:
            releases[segment_slice] = "stalled"
        elif target.get(segment_slice) != holding.consumer:
            revocations.append(segment_slice)
    grants = [
        (segment_slice, owner)
        for segment_slice, owner in target.items()
        if segment_slice not in holdings or segment_slice in releases
    ]
    grants = _unheld_grants(grants, (held for held in holdings if held not in releases))
    return Moves(tuple(sorted(releases.items())), tuple(sorted(revocations)), tuple(sorted(grants)))


def _unheld_grants(
    grants: list[tuple[SegmentSlice, str]], held: Iterable[SegmentSlice]
) -> list[tuple[SegmentSlice, str]]:
    """Return those of ``grants`` whose buckets are all free."""
    held = list(held)
    if BucketRange not in {*map(type, held), *[type(free) for free, _ in grants]}:
        return grants  # A held segment that is whole is not among them.
    wanted = {segment_of(segment_slice) for segment_slice, _ in grants}
    held_slices: dict[int, list[SegmentSlice]] = {}
    for segment_slice in held:
        segment = segment_of(segment_slice)
        if segment in wanted:
            held_slices.setdefault(segment, []).append(segment_slice)
    if not held_slices:
        return grants
    return [
        (segment_slice, owner)
        for segment_slice, owner in grants
        if not any(overlaps(segment_slice, other) for other in held_slices.get(segment_of(segment_slice), ()))
    ]
