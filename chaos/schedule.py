"""Decide which fault begins when. Pure: chance is an argument.

1. Every kind of fault is used once before any is used again.
2. As many faults begin together as were asked for, by default one. No others overlap, and after them the cluster rests,
   so that what happens can be attributed to them.
3. The same kinds, times and chance give the same schedule.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WARM_UP_SECONDS: Final = 5.0
"""Before the first fault, to show what is normal."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    name: str
    """Several names are joined by "+"."""
    begins_seconds: float
    """After the beginning of the load, if no earlier fault takes longer than planned."""
    seconds: float
    """From its beginning to its end: as long as the longest lasts."""


def together(names: Sequence[str], kinds: Mapping[str, float], begins_seconds: float) -> PlannedFault:
    return PlannedFault("+".join(names), begins_seconds, max(kinds[name] for name in names))


def plan(
    kinds: Mapping[str, float],
    *,
    seconds: float,
    rest_seconds: float,
    shuffle: Callable[[list[str]], None],
    at_once: int = 1,
) -> list[PlannedFault]:
    """Return the faults that fit into ``seconds``. ``kinds``: name → duration; ``shuffle`` orders a list in place."""
    planned: list[PlannedFault] = []
    at_seconds = WARM_UP_SECONDS
    while kinds:
        order = list(kinds)
        shuffle(order)
        for first in range(0, len(order), at_once):
            fault = together(order[first : first + at_once], kinds, at_seconds)
            at_seconds += fault.seconds + rest_seconds
            if at_seconds > seconds:
                return planned
            planned.append(fault)
    return planned


def plan_in_order(
    groups: Iterable[Sequence[str]], kinds: Mapping[str, float], *, rest_seconds: float
) -> tuple[list[PlannedFault], float]:
    planned: list[PlannedFault] = []
    at_seconds = rest_seconds
    for names in groups:
        planned.append(together(names, kinds, at_seconds))
        at_seconds += planned[-1].seconds + rest_seconds
    return planned, at_seconds


def left_out(kinds: Iterable[str], planned: Iterable[PlannedFault]) -> list[str]:
    """Return the kinds that are not in a schedule, because it is too short."""
    used = {name for fault in planned for name in fault.name.split("+")}
    return [name for name in kinds if name not in used]
