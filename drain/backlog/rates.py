"""How fast a place gains and loses records: differences between two counts of a ledger.

A place is one subscription in one segment. What is counted there only grows as long as the seek generation stays: the
records stored, and those of them that are acknowledged. A rate is the difference to a count about a minute ago.

The rules:

1. Time is the leader's: the time of the newest chunk that was counted, or, where whoever asks says what time it is,
   that time, because a count that found nothing newer holds for it too. So the rates of an idle ledger fall to 0.
2. A count is compared with the newest one that is at least `WINDOW_MS` older; where there is none, with the oldest, if
   that is at least `MIN_SPAN_MS` older. Where there is neither, the rate is not known.
3. A segment that the older count did not have began at 0. A subscription that it did not have, or that was sought in
   between, is compared with no count from before.
4. Neither are counts compared that lie more than `MAX_SPAN_MS` apart: the mean over hours says nothing of now.

Pure: times and counts in, rates out. Rates follow from when somebody counted, so a full count does not repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from drain.backlog.merge import Backlog

WINDOW_MS: Final = 60_000
"""Long enough to smooth over the batches of consumers, short enough to show within a minute that one has stopped."""
MIN_SPAN_MS: Final = 2_000
MAX_SPAN_MS: Final = 600_000
MIN_SPACING_MS: Final = 1_000
"""Counts closer together than this are one: it bounds what is kept to some seventy counts."""

BacklogKey = tuple[int, int, int]
"""(topic id, subscription id, segment)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one place came to."""

    seek_generation: int
    stored: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Count:
    """What all places of a shard came to at one time."""

    at_ms: int
    by_key: Mapping[BacklogKey, Counted]

    def count_at(self, key: BacklogKey, seek_generation: int) -> Counted | None:
        """Return what ``place`` came to in this generation; zeros for a new segment, None for another generation."""
        found = self.by_key.get(key)
        if found is not None:
            return found if found.seek_generation == seek_generation else None
        for (topic, subscription, _), other in self.by_key.items():
            if (topic, subscription) == key[:2]:
                return Counted(seek_generation, 0, 0) if other.seek_generation == seek_generation else None
        return None


@dataclass(frozen=True, slots=True)
class Rates:
    """Records a second into a key, and acknowledged there."""

    stored_per_second: float
    acknowledged_per_second: float


History = tuple[Count, ...]
"""Counts of one shard, oldest first, at least `MIN_SPACING_MS` from each other but for the newest."""


def count_of(at_ms: int, backlogs: Iterable[Backlog]) -> Count:
    """Return the count of what is tracked in ``backlogs``."""
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
    """Return ``history`` with ``count``, without what no rate will be taken from any more."""
    if history and count.at_ms < history[-1].at_ms:
        # The clock of a new leader is behind: what it counted is newer all the same.
        count = Count(history[-1].at_ms, count.by_key)
    kept = history
    if len(history) > 1 and history[-1].at_ms - history[-2].at_ms < MIN_SPACING_MS:
        kept = history[:-1]
    kept = (*kept, count)
    old = [at for at, earlier in enumerate(kept) if count.at_ms - earlier.at_ms >= WINDOW_MS]
    return kept[old[-1] :] if old else kept


def rates(history: History) -> dict[BacklogKey, Rates]:
    """Return the rates up to the newest count of ``history``, of the places where they are known."""
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
