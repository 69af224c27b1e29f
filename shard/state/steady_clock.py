"""A wall clock that does not follow a step at once. Pure: readings in, time out.

NTP slews a clock by less than a thousandth. A larger difference between the wall clock and the time
that has elapsed is a step: the clock was set, rightly or by mistake.

1. A difference up to `TOLERATED_STEP_MS` is followed at once.
2. A larger step, forward or backward, is held back. Time continues as if it had not happened.
3. It is followed once the wall clock has stayed with it for `CONFIRMATION_MS`.
4. The first reading is followed: a process cannot know what happened before it started.

Elapsed time must include suspension (CLOCK_BOOTTIME), so that a laptop that wakes up is no step.
"""

from typing import Final

TOLERATED_STEP_MS: Final = 10_000
CONFIRMATION_MS: Final = 600_000
"""Ten minutes: longer than most mistakes with a clock last. A machine that was paused without
noticing writes its old time for as long."""


class SteadyClock:
    """The wall clock of one process."""

    def __init__(self, wall_ms: int, elapsed_ms: int) -> None:
        self.step_ms = 0
        """The step that is being held back; 0: none."""
        self._offset_ms = wall_ms - elapsed_ms
        self._stepped_at_ms = 0

    def read(self, wall_ms: int, elapsed_ms: int) -> int:
        """Return the time, given both clocks at the same moment."""
        step_ms = wall_ms - elapsed_ms - self._offset_ms
        if abs(step_ms) > TOLERATED_STEP_MS:
            if abs(step_ms - self.step_ms) > TOLERATED_STEP_MS:
                self.step_ms, self._stepped_at_ms = step_ms, elapsed_ms
            if elapsed_ms - self._stepped_at_ms < CONFIRMATION_MS:
                return elapsed_ms + self._offset_ms
        self._offset_ms += step_ms
        self.step_ms = 0
        return wall_ms
