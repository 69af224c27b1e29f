"""Keeps rates and backlogs of the last half hour, for the charts of the status page. Pure.

1. A sample is made from the leader's own counts, so it moves while Spark is down. What was acknowledged
   between two samples is what was stored, less the growth of the backlog. It is unknown if records were
   pruned or a seek went back meanwhile, and for topics without counts.
2. `SAMPLES` samples are kept of each series, and series of the daemon's whole, and of at most
   `MAX_SERIES` topics and subscriptions, the busiest (`metrics.busiest`).
3. A series belongs to the daemon that led at that time. After a change of leader, a topic's series
   starts again; the cluster's adds what the daemons that answer have.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from headgate.views.cluster import SubscriptionSummary
from metrics.busiest import SubscriptionKey, choose_busiest, records_per_second
from web.api.documents import HistorySample, TopicSummary

SAMPLE_SECONDS: Final = 15.0
SAMPLES: Final = 120
"""Half an hour."""
MAX_SERIES: Final = 200
"""The limit of topics and subscriptions together: 4 MB at most."""
_LATE_SAMPLES: Final = 3
"""A daemon whose newest sample is older by this many adds nothing to the cluster's."""

_DAEMON: Final[SubscriptionKey] = ("", "")
"""The key of the daemon's own series. A topic's is (topic, "")."""


class Counts(NamedTuple):
    at_ms: int
    records: int
    backlog_records: int


class History:
    def __init__(self) -> None:
        self._series: dict[SubscriptionKey, deque[HistorySample]] = {}
        self._before: dict[SubscriptionKey, Counts] = {}
        self._ids: dict[SubscriptionKey, tuple[int, ...]] = {}
        self._at_ms = -1

    def samples(self, topic: str = "", subscription: str = "") -> tuple[HistorySample, ...]:
        """Return the series of a subscription, of a topic, or of the daemon."""
        return tuple(self._series.get((topic, subscription), ()))

    def record(self, at_ms: int, topics: Sequence[TopicSummary], subscriptions: Sequence[SubscriptionSummary]) -> None:
        """Add a sample to each series, unless ``at_ms`` is that of the last one. All start again if it is earlier."""
        if at_ms == self._at_ms:
            return
        if at_ms < self._at_ms:
            self._series, self._before = {}, {}
        self._at_ms = at_ms
        ids: dict[SubscriptionKey, tuple[int, ...]] = {(each.topic, ""): (each.shard, each.topic_id) for each in topics}
        for each in subscriptions:
            ids[each.topic, each.subscription] = (*ids[each.topic, ""], each.subscription_id)
        for key in (each for each in ids if self._ids.get(each, ids[each]) != ids[each]):  # Created again.
            self._series.pop(key, None), self._before.pop(key, None)
        self._ids = ids
        samples = self._samples(at_ms, topics, subscriptions)
        activities = {
            key: records_per_second(each.stored_per_second, each.acknowledged_per_second, each.backlog_records)
            for key, each in samples.items()
        }
        chosen = choose_busiest(activities, self._series.keys(), MAX_SERIES)
        total = _total(at_ms, [each for (_, subscription), each in samples.items() if not subscription])
        self._series = {key: self._series.get(key) or deque(maxlen=SAMPLES) for key in (*chosen, _DAEMON)}
        for key in chosen:
            self._series[key].append(samples[key])
        self._series[_DAEMON].append(total)

    def _samples(
        self, at_ms: int, topics: Sequence[TopicSummary], subscriptions: Iterable[SubscriptionSummary]
    ) -> Mapping[SubscriptionKey, HistorySample]:
        by_name = {each.topic: each for each in topics}
        acknowledged: dict[str, list[float | None]] = {}
        counted: dict[SubscriptionKey, Counts] = {}
        found: dict[SubscriptionKey, HistorySample] = {}
        for each in subscriptions:
            key, topic = (each.topic, each.subscription), by_name[each.topic]
            rate = None
            if topic.records is not None and each.backlog_records is not None:
                counted[key] = Counts(at_ms, topic.records, each.backlog_records)
                rate = acknowledged_per_second(self._before.get(key), counted[key])
            acknowledged.setdefault(each.topic, []).append(rate)
            found[key] = HistorySample(
                at_ms=at_ms,
                stored_per_second=topic.stored_per_second,
                acknowledged_per_second=rate,
                backlog_records=each.backlog_records,
            )
        for topic in topics:
            found[topic.topic, ""] = HistorySample(
                at_ms=at_ms,
                stored_per_second=topic.stored_per_second,
                acknowledged_per_second=known_sum(acknowledged.get(topic.topic, ())),
                backlog_records=topic.backlog_records,
            )
        self._before = counted
        return found


def acknowledged_per_second(before: Counts | None, now: Counts) -> float | None:
    """Return the rate between two counts of one subscription; None if it is unknown (rule 1)."""
    if before is None or now.records < before.records:
        return None
    acknowledged = now.records - before.records - (now.backlog_records - before.backlog_records)
    return None if acknowledged < 0 else acknowledged * 1000 / (now.at_ms - before.at_ms)


def merged_history(histories: Sequence[Sequence[HistorySample]]) -> tuple[HistorySample, ...]:
    """Return the sum of the series of all daemons, one sample for each period of `SAMPLE_SECONDS`."""
    period_ms = int(SAMPLE_SECONDS * 1000)
    slots = [{each.at_ms // period_ms: each for each in history} for history in histories]
    found = []
    for slot in sorted({number for each in slots for number in each})[-SAMPLES:]:
        here = [sample for each in slots if (sample := _newest(each, slot)) is not None]
        found.append(_total(slot * period_ms, here))
    return tuple(found)


def known_sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _newest(slots: Mapping[int, HistorySample], slot: int) -> HistorySample | None:
    """Return the sample of ``slot``, or of one that is little older."""
    return next((slots[each] for each in range(slot, slot - _LATE_SAMPLES, -1) if each in slots), None)


def _total(at_ms: int, parts: Sequence[HistorySample]) -> HistorySample:
    backlogs = [each.backlog_records for each in parts]
    return HistorySample(
        at_ms=at_ms,
        stored_per_second=known_sum(each.stored_per_second for each in parts),
        acknowledged_per_second=known_sum(each.acknowledged_per_second for each in parts),
        backlog_records=None if None in backlogs else sum(each for each in backlogs if each is not None),
    )
