"""Pauses between attempts, between reports of an event that repeats, and between starts of a child process.

Pure: randomness is passed in.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from typing import Final

START_TIMEOUT_SECONDS: Final = 120.0
"""A start takes 8 s on an idle machine, and writes several lines in that time."""
MAX_START_TIMEOUT_SECONDS: Final = 3600.0
"""The limit doubles up to this, or to the setting if that is larger."""
MAX_EXTENSION: Final = 10
"""Signs of life extend a start up to this many times its limit."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Pauses whose bound doubles from ``first_seconds`` to ``longest_seconds``.

    Jitter prevents clients that lost the same leader from retrying at the same moment.
    """

    first_seconds: float
    longest_seconds: float
    jitter: float = 0.5
    """The random part of each pause: 0 is none, 1 is the whole pause ("full jitter")."""
    shortest_seconds: float = 0.0
    """No pause is shorter. Full jitter needs this, because it can draw almost 0 and cause a busy loop."""

    @cached_property
    def bounds_seconds(self) -> tuple[float, ...]:
        """The longest pause after each failure; the last one holds for all later failures."""
        bounds = (self.first_seconds * 2.0**failures for failures in count())
        return (*takewhile(lambda bound: bound < self.longest_seconds, bounds), self.longest_seconds)

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


class ReportLimit:
    """The causes that were reported in the last ``interval_seconds``.

    Their number is limited, because an attacker may have many addresses. At ``max_causes`` all are forgotten,
    and are reported once more.
    """

    def __init__(self, interval_seconds: float, max_causes: int = 1) -> None:
        self._interval_seconds = interval_seconds
        self._max_causes = max_causes
        self._reported_at: dict[Hashable, float] = {}

    def is_due(self, now: float, cause: Hashable = None) -> bool:
        """Return whether to report ``cause`` at ``now``, in seconds of a steady clock; if so, it counts as reported."""
        reported_at = self._reported_at.get(cause)
        if reported_at is not None and now - reported_at < self._interval_seconds:
            return False
        if len(self._reported_at) >= self._max_causes:
            self._reported_at.clear()
        self._reported_at[cause] = now
        return True


class ConditionReport:
    """When to report a condition that lasts: at once when it begins or changes, then after growing pauses."""

    def __init__(self, pauses: Backoff) -> None:
        self._pauses = pauses
        self._condition: Hashable = None
        self._reports = 0
        self._next_at = 0.0

    def is_due(self, now: float, condition: Hashable) -> bool:
        """Return whether to report ``condition`` at ``now``; None: it has ended."""
        if condition != self._condition:
            self._condition, self._reports = condition, 0
        elif condition is None or now < self._next_at:
            return False
        self._next_at = now + self._pauses.bound_seconds(self._reports)
        self._reports += 1
        return condition is not None


RESTART_BACKOFF: Final = Backoff(first_seconds=1.0, longest_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Failures:
    in_a_row: int = 0
    slow_starts: int = 0


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How long a start of a child process may take, and when the next one follows. Times are seconds by one clock.

    1. A start may take long on a busy machine, so each sign of life (a line in its log, a second of processor
       time) extends its limit. Ten times the limit end a process that is never ready.
    2. A start that was too slow doubles the limit of the next one: some start will be slow enough.
    3. Each failure lengthens the pause before the next start. Starting never ends.
    4. A process that was ready for `stable_seconds` has recovered: both begin again. Time before it was
       ready does not count.
    """

    start_timeout_seconds: float = START_TIMEOUT_SECONDS
    """Longest time without a sign of life, for the first start."""
    pauses: Backoff = RESTART_BACKOFF
    stable_seconds: float = 60.0

    def start_timeout(self, failures: Failures) -> float:
        """Return how long a start after ``failures`` may take without a sign of life (rule 2)."""
        return self._start_timeouts.bound_seconds(failures.slow_starts)

    def start_deadline(self, failures: Failures, started_at: float, last_sign_at: float) -> float:
        """Return when a start that is not ready has failed (rule 1)."""
        timeout = self.start_timeout(failures)
        return min(last_sign_at + timeout, started_at + MAX_EXTENSION * timeout)

    def count_failure(
        self, failures: Failures, *, ready_seconds: float | None = None, too_slow: bool = False
    ) -> Failures:
        """Return the failures after one more (rules 2 and 4).

        ``ready_seconds``: how long the process was ready; None: it never was. ``too_slow``: its start
        exceeded the limit.
        """
        if ready_seconds is not None and ready_seconds >= self.stable_seconds:
            return Failures(in_a_row=1)
        return Failures(failures.in_a_row + 1, failures.slow_starts + too_slow)

    def pause_seconds(self, failures: Failures, draw: float) -> float:
        """Return the pause after ``failures``, at least one (rule 3); ``draw`` is a random number from 0 to 1."""
        return self.pauses.seconds(failures.in_a_row - 1, draw)

    @cached_property
    def _start_timeouts(self) -> Backoff:
        longest = max(self.start_timeout_seconds, MAX_START_TIMEOUT_SECONDS)
        return Backoff(first_seconds=self.start_timeout_seconds, longest_seconds=longest, jitter=0.0)
