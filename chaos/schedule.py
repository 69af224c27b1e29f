"""Decide which fault begins when. Pure: chance is an argument.

1. Every kind of fault is used once before any is used again.
2. As many faults begin together as were asked for, by default one. No others overlap, and after them the cluster rests,
   so that what happens can be attributed to them.
3. The same kinds, times and chance give the same schedule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WARM_UP_SECONDS: Final = 5.0
"""Before the first fault, to show what is normal."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault, or several at once, as the schedule sees it."""

    name: str
    """Several names are joined by "+"."""
    seconds: float
    """From its beginning to its end."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault in a schedule."""

    name: str
    begins_seconds: float
    """After the beginning of the load, if no earlier fault takes longer than planned."""
    seconds: float


def together(kinds: Sequence[FaultKind]) -> FaultKind:
    """Return these kinds as one, which lasts as long as the longest."""
    return FaultKind("+".join(kind.name for kind in kinds), max(kind.seconds for kind in kinds))


def plan(
    kinds: Sequence[FaultKind],
    *,
    seconds: float,
    rest_seconds: float,
    shuffle: Callable[[list[FaultKind]], None],
    at_once: int = 1,
) -> list[PlannedFault]:
    """Return the faults that fit into ``seconds``; ``shuffle`` orders a list in place."""
    planned: list[PlannedFault] = []
    at_seconds = WARM_UP_SECONDS
    while kinds:
        order = list(kinds)
        shuffle(order)
        for first in range(0, len(order), at_once):
            kind = together(order[first : first + at_once])
            ends = at_seconds + kind.seconds + rest_seconds
            if ends > seconds:
                return planned
            planned.append(PlannedFault(kind.name, at_seconds, kind.seconds))
            at_seconds = ends
    return planned


def plan_in_order(kinds: Sequence[FaultKind], *, rest_seconds: float) -> tuple[list[PlannedFault], float]:
    """Return exactly these faults, one after the other, and how long they take together."""
    planned: list[PlannedFault] = []
    at_seconds = rest_seconds
    for kind in kinds:
        planned.append(PlannedFault(kind.name, at_seconds, kind.seconds))
        at_seconds += kind.seconds + rest_seconds
    return planned, at_seconds


def left_out(kinds: Sequence[FaultKind], planned: Sequence[PlannedFault]) -> list[str]:
    """Return the kinds that are not in a schedule, because it is too short."""
    used = {name for fault in planned for name in fault.name.split("+")}
    return [kind.name for kind in kinds if kind.name not in used]
