"""Exponential backoff with jitter. Pure: randomness is passed in, so that a simulation repeats.

Jitter prevents clients that lost the same leader from retrying at the same moment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Pauses whose bound doubles from ``first_seconds`` to ``longest_seconds``."""

    first_seconds: float
    longest_seconds: float
    jitter: float = 0.5
    """The random part of each pause: 0 is none, 1 is the whole pause ("full jitter")."""
    shortest_seconds: float = 0.0
    """No pause is shorter. Full jitter needs this, because it can draw almost 0 and cause a busy
    loop."""

    @cached_property
    def bounds_seconds(self) -> tuple[float, ...]:
        """The longest pause after each failure; the last one holds for all later failures."""
        bounds = (self.first_seconds * 2.0**failures for failures in count())
        rising = takewhile(lambda bound: bound < self.longest_seconds, bounds)
        return (*rising, self.longest_seconds)

    def bound_seconds(self, failures: int) -> float:
        """Return the longest pause after ``failures`` earlier failures."""
        return self.bounds_seconds[min(failures, len(self.bounds_seconds) - 1)]

    def seconds(self, failures: int, draw: float) -> float:
        """Return the pause after ``failures`` earlier failures; ``draw`` is a random number from 0 to 1."""
        bound = self.bound_seconds(failures)
        lowest = max(bound * (1 - self.jitter), self.shortest_seconds)
        return lowest + (bound - lowest) * draw


class BackoffSchedule:
    def __init__(self, backoff: Backoff, draw: Callable[[], float]) -> None:
        self._backoff = backoff
        self._draw = draw
        self._failures = 0

    @property
    def bound_seconds(self) -> float:
        return self._backoff.bound_seconds(self._failures)

    def next_seconds(self) -> float:
        seconds = self._backoff.seconds(self._failures, self._draw())
        self._failures += 1
        return seconds

    def reset(self) -> None:
        self._failures = 0
