"""Rates of a subscription in a segment: the difference between two counts about a minute apart. Pure.

1. Time is the leader's: that of the newest counted chunk, or the time in the request, because a
   count that found nothing newer holds for that time too. So rates of an idle ledger fall to 0.
2. A count is compared with the newest one at least `WINDOW_MS` older, or else with the oldest one,
   if that is at least `MIN_SPAN_MS` older. Otherwise the rate is unknown.
3. A segment that the older count does not have started at 0. A new subscription, or one with a seek
   in between, has no rate.
4. Counts more than `MAX_SPAN_MS` apart are not compared: a mean over hours is not a current rate.

A full count does not repeat rates: they depend on when counts were made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from drain.protocol import Backlog, BacklogKey

WINDOW_MS: Final = 60_000
"""Long enough to smooth the batches of consumers, short enough to show a stopped consumer within a minute."""
MIN_SPAN_MS: Final = 2_000
MAX_SPAN_MS: Final = 600_000
MIN_SPACING_MS: Final = 1_000
"""Counts closer together than this replace each other: this bounds a history to some seventy counts."""


@dataclass(frozen=True, slots=True)
class Counted:
    seek_generation: int
    stored: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class TopicCount:
    """The counts of all keys of one topic. One object is kept for as long as the topic does not change."""

    by_key: Mapping[BacklogKey, Counted]
    seek_generations: Mapping[int, int]

    def count_at(self, key: BacklogKey, seek_generation: int) -> Counted | None:
        """Return the count of ``key``: zeros for a new segment, None for a new subscription or another generation."""
        _, subscription_id, _ = key
        if self.seek_generations.get(subscription_id) != seek_generation:
            return None
        return self.by_key.get(key) or Counted(seek_generation, 0, 0)


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of some topics of a shard at one time."""

    at_ms: int
    by_topic: Mapping[int, TopicCount]


@dataclass(frozen=True, slots=True)
class Rates:
    """Stored and acknowledged records per second of one key."""

    stored_per_second: float
    acknowledged_per_second: float


UNCHANGED: Final = Rates(0.0, 0.0)

History = tuple[Count, ...]
"""Counts of one shard, oldest first, at least `MIN_SPACING_MS` apart except for the newest."""


def topic_count(backlogs: Iterable[Backlog]) -> TopicCount:
    """Return the count of the tracked keys in ``backlogs``, which are those of one topic."""
    counted = [(row, row.records) for row in backlogs if row.records is not None]
    by_key = {row.key: Counted(row.seek_generation, row.end_offset, row.end_offset - left) for row, left in counted}
    return TopicCount(by_key, {row.subscription_id: row.seek_generation for row, _ in counted})


def append_count(history: History, count: Count) -> History:
    """Return ``history`` with ``count`` added, without counts that no later rate needs."""
    if history and count.at_ms < history[-1].at_ms:
        # The clock of a new leader may be behind. Its count is newer all the same.
        count = Count(history[-1].at_ms, count.by_topic)
    kept = history[:-1] if len(history) > 1 and history[-1].at_ms - history[-2].at_ms < MIN_SPACING_MS else history
    kept = (*kept, count)
    old = [at for at, earlier in enumerate(kept) if count.at_ms - earlier.at_ms >= WINDOW_MS]
    return kept[old[-1] :] if old else kept


def rates(history: History, topic_id: int) -> dict[BacklogKey, Rates]:
    newest = history[-1].by_topic[topic_id]
    earlier = [
        (span_ms, count.by_topic[topic_id])
        for count in history[:-1]
        if MIN_SPAN_MS <= (span_ms := history[-1].at_ms - count.at_ms) <= MAX_SPAN_MS and topic_id in count.by_topic
    ]
    if earlier and earlier[0][1] is newest:
        return dict.fromkeys(newest.by_key, UNCHANGED)
    found: dict[BacklogKey, Rates] = {}
    for key, counted in newest.by_key.items():
        for span_ms, topic in earlier:
            before = topic.count_at(key, counted.seek_generation)
            if before is not None:
                found[key] = Rates(
                    max(0, counted.stored - before.stored) * 1000 / span_ms,
                    max(0, counted.acknowledged - before.acknowledged) * 1000 / span_ms,
                )
                break
    return found


def with_rates(backlogs: Iterable[Backlog], known: Mapping[BacklogKey, Rates]) -> list[Backlog]:
    """Return ``backlogs`` with the rates in ``known``; a rate that is missing is unknown."""
    return [
        replace(each, stored_per_second=rate.stored_per_second, acknowledged_per_second=rate.acknowledged_per_second)
        if (rate := known.get(each.key)) is not None
        else each
        for each in backlogs
    ]
