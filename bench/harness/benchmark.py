"""What a benchmark is, how its sides are measured, and what a result contains.

A benchmark is a ratio between sides that do comparable work in the same process, on the same bytes, in turns. Absolute
times mean little on a shared machine; a ratio measured in turns is robust against other load.

Rules:

1. Sides alternate, and each round starts with a different side, so that neither profits from the
   other's warm caches.
2. One round warms up and does not count.
3. The value is the median of the rounds' ratios. The parts contain each side's median and the
   spread.
4. Timed work runs with the garbage collector off, after a collection: its pauses belong to neither
   side.
"""

import asyncio
import gc
import importlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import bench

Direction = Literal["higher", "lower"]
Part = float | int | str
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work to do, and where to report progress."""

    quick: bool
    progress: Callable[[str], None]
    """Receives short progress lines; not part of the result."""
    seconds: int | None = None
    """How long to measure; None: the benchmark's own choice."""

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Measurement:
    value: float
    parts: Mapping[str, Part]


@dataclass(frozen=True, slots=True)
class Benchmark:
    unit: str
    goal: float
    better: Direction
    measure: Callable[[Effort], Measurement | Coroutine[Any, Any, Measurement]]
    part_goals: Mapping[str, float] = field(default_factory=dict)
    """Goals of single parts, in the same direction as the value's goal. All must be met."""
    part_limits: Mapping[str, float] = field(default_factory=dict)
    """Goals of parts that must be at most so large, also where a higher value is better."""
    takes_seconds: bool = False
    """Whether it measures for `Effort.seconds`."""

    def run(self, effort: Effort) -> Measurement:
        found = self.measure(effort)
        return found if isinstance(found, Measurement) else asyncio.run(found)

    def goals(self) -> list[tuple[str, str, float]]:
        """Return (``value`` or part, sign, limit) of each goal."""
        sign = "≥" if self.better == "higher" else "≤"
        parts = [(part, sign, goal) for part, goal in self.part_goals.items()]
        return [("value", sign, self.goal), *parts, *((part, "≤", limit) for part, limit in self.part_limits.items())]

    def missed(self, measured: Measurement) -> list[str]:
        """Return what misses its goal; a part that is missing does, and so does NaN."""
        found = {**measured.parts, "value": measured.value}
        values = {what: float(found.get(what, math.nan)) for what, _, _ in self.goals()}
        return [
            what
            for what, sign, limit in self.goals()
            if not (values[what] >= limit if sign == "≥" else values[what] <= limit)
        ]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds per side, round by round; equal lengths."""

    seconds: Mapping[str, Sequence[float]]

    def median_seconds(self, side: str) -> float:
        return median(self.seconds[side])

    def ratios(self, side: str, other: str) -> list[float]:
        """Return ``side`` / ``other`` of each round."""
        return [a / b for a, b in zip(self.seconds[side], self.seconds[other], strict=True)]

    def median_ratio(self, side: str, other: str) -> Measurement:
        """Return the median ratio of two sides, with both medians and the spread as parts."""
        ratios = self.ratios(side, other)
        return Measurement(
            median(ratios),
            {
                f"{side}_ms": round(self.median_seconds(side) * 1000, 4),
                f"{other}_ms": round(self.median_seconds(other) * 1000, 4),
                "lowest": round(min(ratios), 4),
                "highest": round(max(ratios), 4),
                "rounds": len(ratios),
            },
        )


async def run_alternating(sides: Mapping[str, Work], rounds: int, progress: Callable[[str], None]) -> Rounds:
    """Run every side once per round, in changing order, and return the seconds. Exceptions pass through.

    A side that returns a float reports its own seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with gc_disabled():
        for number, name in _alternate(list(sides), rounds, progress):
            began = time.perf_counter()
            counted = await sides[name]()
            took = counted if isinstance(counted, float) else time.perf_counter() - began
            if number > 0:
                seconds[name].append(took)
    return Rounds(seconds)


def _alternate(names: list[str], rounds: int, progress: Callable[[str], None]) -> Iterator[tuple[int, str]]:
    """Yield (round, side); round 0 warms up."""
    assert rounds >= 1, "nothing to measure"
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            gc.collect()
            yield number, name
        progress(f"round {number} of {rounds}" if number else "warm-up")


@dataclass(frozen=True, slots=True)
class Listed:
    subject: str
    """The package that contains it."""
    doc: str
    benchmark: Benchmark


Load = Callable[[], Listed]


def catalogue() -> dict[str, Load]:
    """Return every benchmark's name → a function that loads it; those of a subject follow each other."""
    found = sorted(Path(bench.__path__[0]).glob("*/[a-z]*.py"))
    return {path.stem: partial(_load, path.parent.name, path.stem) for path in found if path.parent.name != "harness"}


def _load(subject: str, name: str) -> Listed:
    module = importlib.import_module(f"bench.{subject}.{name}")
    assert isinstance(module.BENCHMARK, Benchmark), f"bench/{subject}/{name}.py: BENCHMARK is not a Benchmark"
    assert module.__doc__, f"bench/{subject}/{name}.py has no docstring"
    return Listed(subject, module.__doc__, module.BENCHMARK)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Collect garbage once, then keep the collector off until the block ends."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
