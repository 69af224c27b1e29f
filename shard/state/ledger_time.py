"""The time by which everything in a shard expires: ledger time, how much was lived, its clock, and when it is checked.

Ledger time is the ``at_ms`` of the chunks: the clock of their leaders, never falling. It is meant
for people ("records since Monday"), so it follows the clock over an outage. An age must not: a
clock that is wrong by a week would expire, within a second, whatever expires within a week.

1. The age of something is the ledger time since then that leaders lived through. A step between two
   chunks counts at most `MAX_STEP_MS`; the rest was an outage, or a clock that was set.
2. An idle leader commits an empty chunk every `IDLE_CHUNK_MS`, so that idle time counts in full.
3. Ages are never too high by more than one step for each start of a term, and each step of a clock that is followed.
   They are too low after an outage, and while ledger time waits for a clock that was ahead: things expire later.
4. A leader that writes checks its deadlines every `TICK_INTERVAL_SECONDS`. A tick itself may leave work for the next
   one, such as more consumers to evict; its entries are being written then.
5. An idle leader waits longer: no deadline is exceeded by more than a tenth of the shortest duration, or by
   `IDLE_TICK_INTERVAL_SECONDS`. A daemon with hundreds of quiet shards would spend its idle time on their ticks.

etcd does the same for leases: time without a leader does not count, and the rest of it is kept in
the log (etcd-io/etcd#13508).
"""

from dataclasses import dataclass, field
from typing import Final

MAX_STEP_MS: Final = 3_600_000
"""An hour: longer than a change of leader takes, far below the times after which data is deleted."""
IDLE_CHUNK_MS: Final = MAX_STEP_MS - 600_000
"""A chunk that is late by ten minutes loses nothing. On a bucket, each costs 20 requests of those who read it."""
MAX_SKIPS: Final = 64
"""Steps that are remembered separately. Beyond it, the two oldest are joined, which lowers ages."""

TICK_INTERVAL_SECONDS: Final = 0.25
"""Shortest pause between two ticks."""
IDLE_TICK_INTERVAL_SECONDS: Final = 1.0
"""Longest pause, which is also how often an idle leader checks for a successor."""
MAX_LATENESS: Final = 0.1
"""Part of the shortest duration by which a deadline may be exceeded."""


@dataclass(slots=True)
class LedgerTime:
    """The ledger time of the newest chunk, and the steps that no leader lived through."""

    at_ms: int = 0
    skips: list[tuple[int, int]] = field(default_factory=list)
    """(ledger time after the step, milliseconds of it that do not count), ascending."""

    def advance(self, at_ms: int) -> None:
        """Begin a chunk of a leader whose clock shows ``at_ms``."""
        skipped_ms = at_ms - self.at_ms - MAX_STEP_MS
        if self.at_ms and skipped_ms > 0:
            self.skips.append((at_ms, skipped_ms))
        if len(self.skips) > MAX_SKIPS:
            (_, first_ms), (after_ms, second_ms), *later = self.skips
            self.skips = [(after_ms, first_ms + second_ms), *later]
        self.at_ms = max(self.at_ms, at_ms)

    def age_ms(self, since_ms: int, now_ms: int) -> int:
        """Return the time that leaders lived through since ledger time ``since_ms``, by a clock of ``now_ms``."""
        skipped_ms = sum(skipped for after_ms, skipped in self.skips if after_ms > since_ms)
        since_newest_ms = min(max(0, now_ms - self.at_ms), MAX_STEP_MS)
        return self.at_ms - since_ms - skipped_ms + since_newest_ms


TOLERATED_STEP_MS: Final = 10_000
CONFIRMATION_MS: Final = 600_000
"""Ten minutes: longer than most mistakes with a clock last. A machine that was paused without
noticing writes its old time for as long."""


class SteadyClock:
    """A wall clock that does not follow a step at once.

    NTP slews a clock by less than a thousandth. A larger difference between the wall clock and the time
    that has elapsed is a step: the clock was set, rightly or by mistake.

    1. A difference up to `TOLERATED_STEP_MS` is followed at once.
    2. A larger step, forward or backward, is held back. Time continues as if it had not happened.
    3. It is followed once the wall clock has stayed with it for `CONFIRMATION_MS`.
    4. The first reading is followed: a process cannot know what happened before it started.

    Elapsed time must include suspension (CLOCK_BOOTTIME), so that a laptop that wakes up is no step.
    """

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


def tick_pause_seconds(*durations_seconds: float, idle: bool) -> float:
    """Return the pause before the next tick.

    ``durations_seconds``: how far deadlines are ahead when they begin. ``idle``: nothing is being written.
    """
    if not idle:
        return TICK_INTERVAL_SECONDS
    return min(IDLE_TICK_INTERVAL_SECONDS, max(TICK_INTERVAL_SECONDS, MAX_LATENESS * min(durations_seconds)))
