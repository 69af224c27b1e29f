"""Decide what may move now, given who should hold what and who holds what.

This module is the whole policy and nothing but the policy: a `Standing` in, `Moves` out. It does not judge the target
(coordinator.balancing.target) nor the time (the caller says whose time is up). Each step is followed by another look: what is
released in one look is granted in the same one, what is revoked is granted once its holder has confirmed.

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
from headgate.model.bucket_ranges import Place, Share, overlap, segment_of
from headgate.model.entries import ReleaseReason


@dataclass(frozen=True, slots=True)
class Standing:
    """What should be and what is."""

    target: Mapping[Place, str]
    """Segment or share → owner, for everything that may be read; no two of them overlap."""
    holdings: Mapping[Place, Holding]
    consumers: Container[str]
    """Who is registered."""
    retired: AbstractSet[int] = frozenset()
    """Segments that nobody needs to read again."""
    confirmed: AbstractSet[Place] = frozenset()
    """What its holder has finished with; counts for what was revoked alone."""
    timed_out: AbstractSet[Place] = frozenset()
    """What was revoked and whose holder's time to confirm is up."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now, in this order; each list by segment and bucket."""

    releases: tuple[tuple[Place, ReleaseReason], ...] = ()
    revocations: tuple[Place, ...] = ()
    grants: tuple[tuple[Place, str], ...] = ()

    def __bool__(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.releases or self.revocations or self.grants)


def plan(standing: Standing) -> Moves:
    """Return the moves that are allowed and needed now."""
    target, holdings, retired = standing.target, standing.holdings, standing.retired
    releases: dict[Place, ReleaseReason] = {}
    revocations: list[Place] = []
    for place, holding in holdings.items():
        if retired and segment_of(place) in retired:
            releases[place] = "drained"
        elif holding.consumer not in standing.consumers:
            releases[place] = "holder_left"
        elif holding.revoked_at_ms is not None:
            if place in standing.confirmed:
                releases[place] = "confirmed"
            elif place in standing.timed_out:
                releases[place] = "timed_out"
        elif target.get(place) != holding.consumer:
            revocations.append(place)
    grants = [(place, owner) for place, owner in target.items() if place not in holdings or place in releases]
    grants = _free(grants, (place for place in holdings if place not in releases))
    return Moves(tuple(sorted(releases.items())), tuple(sorted(revocations)), tuple(sorted(grants)))


def _free(grants: list[tuple[Place, str]], held: Iterable[Place]) -> list[tuple[Place, str]]:
    """Return those of ``grants`` of which no bucket is ``held`` any more."""
    if not grants:
        return grants
    wanted = {segment_of(place) for place, _ in grants}
    around: dict[int, list[Place]] = {}
    for place in held:
        segment = place.segment if isinstance(place, Share) else place
        if segment in wanted:
            around.setdefault(segment, []).append(place)
    return [
        (place, owner)
        for place, owner in grants
        if not any(overlap(place, other) for other in around.get(segment_of(place), ()))
    ]


def timed_out(
    holdings: Mapping[Place, Holding],
    *,
    now_ms: int,
    timeout_seconds: float,
    waited_seconds: Mapping[Place, float],
) -> frozenset[Place]:
    """Return the revoked segments and shares whose holder did not confirm in time.

    Time runs since the revocation by the ledger's clock, so that a change of leader does not renew it.
    ``waited_seconds`` is how long this leader itself has seen each revoked segment wait: it ends the wait if
    the ledger's clock stood ahead of ours, and a revocation that is missing there has only just begun.
    """
    return frozenset(
        place
        for place, waited in waited_seconds.items()
        if (holding := holdings.get(place)) is not None
        and holding.revoked_at_ms is not None
        and (now_ms - holding.revoked_at_ms >= timeout_seconds * 1000 or waited >= timeout_seconds)
    )
