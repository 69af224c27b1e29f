"""Rates of a subscription in a segment: the difference between two counts about a minute apart. Pure.

1. Time is the leader's: that of the newest counted chunk, or the time in the request, because a
   count that found nothing newer holds for that time too. So rates of an idle ledger fall to 0.
2. A count is compared with the newest one at least `WINDOW_MS` older, or else with the oldest one,
   if that is at least `MIN_SPAN_MS` older. Otherwise the rate is unknown.
3. A segment that the older count does not have started at 0. A new subscription, or one with a seek
   in between, has no rate.
4. Counts more than `MAX_SPAN_MS` apart are not compared: a mean over hours is not a current rate.
5. A full count does not repeat rates: they depend on when counts were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from drain.backlog.merge import Backlog

WINDOW_MS: Final = 60_000
"""Long enough to smooth the batches of consumers, short enough to show a stopped consumer within a
minute."""
MIN_SPAN_MS: Final = 2_000
MAX_SPAN_MS: Final = 600_000
MIN_SPACING_MS: Final = 1_000
"""Counts closer together than this replace each other: this bounds a history to some seventy
counts."""

BacklogKey = tuple[int, int, int]
"""(topic id, subscription id, segment)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The count of one key."""

    seek_generation: int
    stored: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of all keys of a shard at one time."""

    at_ms: int
    by_key: Mapping[BacklogKey, Counted]

    def count_at(self, key: BacklogKey, seek_generation: int) -> Counted | None:
        """Return the count of ``key``: zeros for a new segment, None for a new subscription or another generation."""
        found = self.by_key.get(key)
        if found is not None:
            return found if found.seek_generation == seek_generation else None
        for (topic, subscription, _), other in self.by_key.items():
            if (topic, subscription) == key[:2]:
                return Counted(seek_generation, 0, 0) if other.seek_generation == seek_generation else None
        return None


@dataclass(frozen=True, slots=True)
class Rates:
    """Stored and acknowledged records per second of one key."""

    stored_per_second: float
    acknowledged_per_second: float


History = tuple[Count, ...]
"""Counts of one shard, oldest first, at least `MIN_SPACING_MS` apart except for the newest."""


def count_of(at_ms: int, backlogs: Iterable[Backlog]) -> Count:
    """Return the count of the tracked keys in ``backlogs``."""
    return Count(
        at_ms,
        {
            (row.topic_id, row.subscription_id, row.segment): Counted(
                row.seek_generation, row.end_offset, row.end_offset - row.records
            )
            for row in backlogs
            if row.records is not None
        },
    )


def append_count(history: History, count: Count) -> History:
    """Return ``history`` with ``count`` added, without counts that no later rate needs."""
    if history and count.at_ms < history[-1].at_ms:
        # The clock of a new leader may be behind. Its count is newer all the same.
        count = Count(history[-1].at_ms, count.by_key)
    kept = history
    if len(history) > 1 and history[-1].at_ms - history[-2].at_ms < MIN_SPACING_MS:
        kept = history[:-1]
    kept = (*kept, count)
    old = [at for at, earlier in enumerate(kept) if count.at_ms - earlier.at_ms >= WINDOW_MS]
    return kept[old[-1] :] if old else kept


def rates(history: History) -> dict[BacklogKey, Rates]:
    """Return the known rates at the newest count of ``history``."""
    if not history:
        return {}
    newest = history[-1]
    found: dict[BacklogKey, Rates] = {}
    for key, counted in newest.by_key.items():
        for earlier in history[:-1]:
            span_ms = newest.at_ms - earlier.at_ms
            before = earlier.count_at(key, counted.seek_generation) if MIN_SPAN_MS <= span_ms <= MAX_SPAN_MS else None
            if before is not None:
                found[key] = Rates(
                    max(0, counted.stored - before.stored) * 1000 / span_ms,
                    max(0, counted.acknowledged - before.acknowledged) * 1000 / span_ms,
                )
                break
    return found
