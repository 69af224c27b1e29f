"""Decide what may move now, given who should hold what and who holds what.

This module is the whole policy and nothing but the policy: a `Standing` in, `Moves` out. It does not judge the target
(coordinator.target) nor the time (the caller says whose time is up). Each step is followed by another look: what is
released in one look is granted in the same one, what is revoked is granted once its holder has confirmed.

The rules, in order of precedence:

1. A segment is granted only while nobody holds it: revoke, then the holder confirms, then grant.
2. A holder of a retired segment is released at once: there is nothing left that it could read.
3. A holder that is not registered any more is released at once.
4. A revoked holder is released when it confirms, or when it did not in time; the next generation fences it.
5. A holder that is not the owner by the target, or holds what nobody may read now, is revoked; once, not again.
6. A revoked holder is left alone until it confirms, even if the target wants it back: it gets a new generation then.
7. What is as it should be is not touched: only differences leave this module.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from coordinator.subscription import Holding
from headgate.entries import ReleaseReason


@dataclass(frozen=True, slots=True)
class Standing:
    """What should be and what is."""

    target: Mapping[int, str]
    """Segment → owner, for every segment that may be read."""
    holdings: Mapping[int, Holding]
    consumers: Container[str]
    """Who is registered."""
    retired: AbstractSet[int] = frozenset()
    """Segments that nobody needs to read again."""
    confirmed: AbstractSet[int] = frozenset()
    """Segments that their holder has finished with; counts for revoked ones alone."""
    timed_out: AbstractSet[int] = frozenset()
    """Revoked segments whose holder's time to confirm is up."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now, in this order; each list by segment."""

    releases: tuple[tuple[int, ReleaseReason], ...] = ()
    revocations: tuple[int, ...] = ()
    grants: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.releases or self.revocations or self.grants)


def plan(standing: Standing) -> Moves:
    """Return the moves that are allowed and needed now."""
    target, holdings = standing.target, standing.holdings
    releases: dict[int, ReleaseReason] = {}
    revocations: list[int] = []
    for segment, holding in holdings.items():
        if segment in standing.retired:
            releases[segment] = "drained"
        elif holding.consumer not in standing.consumers:
            releases[segment] = "holder_left"
        elif holding.revoked_at_ms is not None:
            if segment in standing.confirmed:
                releases[segment] = "confirmed"
            elif segment in standing.timed_out:
                releases[segment] = "timed_out"
        elif target.get(segment) != holding.consumer:
            revocations.append(segment)
    grants = [(s, owner) for s, owner in target.items() if s not in holdings or s in releases]
    return Moves(tuple(sorted(releases.items())), tuple(sorted(revocations)), tuple(sorted(grants)))


def timed_out(
    holdings: Mapping[int, Holding],
    *,
    now_ms: int,
    timeout_seconds: float,
    waited_seconds: Mapping[int, float],
) -> frozenset[int]:
    """Return the revoked segments whose holder did not confirm in time.

    Time runs since the revocation by the ledger's clock, so that a change of leader does not renew it.
    ``waited_seconds`` is how long this leader itself has seen each revoked segment wait: it ends the wait if
    the ledger's clock stood ahead of ours, and a revocation that is missing there has only just begun.
    """
    return frozenset(
        segment
        for segment, waited in waited_seconds.items()
        if (holding := holdings.get(segment)) is not None
        and holding.revoked_at_ms is not None
        and (now_ms - holding.revoked_at_ms >= timeout_seconds * 1000 or waited >= timeout_seconds)
    )
