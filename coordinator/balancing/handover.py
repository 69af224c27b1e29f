"""Decide what may move now, given who should hold what and who holds what.

This module is the whole policy and nothing but the policy: a `HandoverState` in, `Moves` out. It does not judge the
target (coordinator.balancing.target) nor the time (the caller says whose time is up). Each step is followed by another
look: what is released in one look is granted in the same one, what is revoked is granted once its holder has confirmed.

The rules, in order of precedence:

1. A segment is granted only while nobody holds it: revoke, then the holder confirms, then grant. A share of one, only
   while nobody holds any of its buckets, whatever the segment was cut into before.
2. A holder of a retired segment is released at once: there is nothing left that it could read.
3. A holder that is not registered any more is released at once.
4. A revoked holder is released when it confirms, or when it did not in time; the next generation fences it.
5. A holder that is not the owner by the target, or holds what nobody may read now, is revoked; once, not again.
6. A revoked holder is left alone until it confirms, even if the target wants it back: it gets a new generation then.
7. What is as it should be is not touched: only differences leave this module.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from coordinator.state.subscription import Holding
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, overlaps, segment_of
from headgate.model.entries import ReleaseReason


@dataclass(frozen=True, slots=True)
class HandoverState:
    """What should be and what is."""

    target: Mapping[SegmentSlice, str]
    """Segment or share → owner, for everything that may be read; no two of them overlaps."""
    holdings: Mapping[SegmentSlice, Holding]
    consumers: Container[str]
    """Who is registered."""
    retired: AbstractSet[int] = frozenset()
    """Segments that nobody needs to read again."""
    confirmed: AbstractSet[SegmentSlice] = frozenset()
    """What its holder has finished with; counts for what was revoked alone."""
    timed_out: AbstractSet[SegmentSlice] = frozenset()
    """What was revoked and whose holder's time to confirm is up."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now, in this order; each list by segment and bucket."""

    releases: tuple[tuple[SegmentSlice, ReleaseReason], ...] = ()
    revocations: tuple[SegmentSlice, ...] = ()
    grants: tuple[tuple[SegmentSlice, str], ...] = ()

    def __bool__(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.releases or self.revocations or self.grants)


def plan(state: HandoverState) -> Moves:
    """Return the moves that are allowed and needed now."""
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
        elif target.get(segment_slice) != holding.consumer:
            revocations.append(segment_slice)
    grants = [
        (segment_slice, owner)
        for segment_slice, owner in target.items()
        if segment_slice not in holdings or segment_slice in releases
    ]
    grants = _unheld_grants(grants, (segment_slice for segment_slice in holdings if segment_slice not in releases))
    return Moves(tuple(sorted(releases.items())), tuple(sorted(revocations)), tuple(sorted(grants)))


def _unheld_grants(
    grants: list[tuple[SegmentSlice, str]], held: Iterable[SegmentSlice]
) -> list[tuple[SegmentSlice, str]]:
    """Return those of ``grants`` of which no bucket is ``held`` any more."""
    if not grants:
        return grants
    wanted = {segment_of(segment_slice) for segment_slice, _ in grants}
    held_slices: dict[int, list[SegmentSlice]] = {}
    for segment_slice in held:
        segment = segment_slice.segment if isinstance(segment_slice, BucketRange) else segment_slice
        if segment in wanted:
            held_slices.setdefault(segment, []).append(segment_slice)
    return [
        (segment_slice, owner)
        for segment_slice, owner in grants
        if not any(overlaps(segment_slice, other) for other in held_slices.get(segment_of(segment_slice), ()))
    ]


def timed_out(
    holdings: Mapping[SegmentSlice, Holding],
    *,
    now_ms: int,
    timeout_seconds: float,
    waited_seconds: Mapping[SegmentSlice, float],
) -> frozenset[SegmentSlice]:
    """Return the revoked segments and shares whose holder did not confirm in time.

    Time runs since the revocation by the ledger's clock, so that a change of leader does not renew it.
    ``waited_seconds`` is how long this leader itself has seen each revoked segment wait: it ends the wait if
    the ledger's clock stood ahead of ours, and a revocation that is missing there has only just begun.
    """
    return frozenset(
        segment_slice
        for segment_slice, waited in waited_seconds.items()
        if (holding := holdings.get(segment_slice)) is not None
        and holding.revoked_at_ms is not None
        and (now_ms - holding.revoked_at_ms >= timeout_seconds * 1000 or waited >= timeout_seconds)
    )
