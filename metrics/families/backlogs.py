"""Metrics of backlogs, per shard and for the topics that the settings name.

1. Sums cover known values only. Separate gauges count the subscriptions of external topics with
   unknown backlogs, and the topics with a failing table.
2. Topic and subscription names are labels only for ``metrics.backlog_topics``, and for the first
   `MAX_SUBSCRIPTIONS` subscriptions of each by name.
3. A daemon exports backlogs only of shards that it leads, so a sum over all daemons counts each
   once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from headgate.protocol.backlog import SubscriptionBacklog
from metrics import events
from metrics.metric_factory import MetricFactory

MAX_SUBSCRIPTIONS: Final = 50
"""Subscriptions per topic that have series of their own."""

_SHARD_GAUGES: Final = {
    "backlog_records": "Unacknowledged records, summed over subscriptions.",
    "backlog_bytes": "Unacknowledged bytes, summed over subscriptions.",
    "backlog_oldest_unacknowledged_seconds": "Age of the oldest unacknowledged record; NaN if unknown.",
    "backlog_never_drained_subscriptions": "Subscriptions whose backlog does not shrink at the current rate.",
    "backlog_as_of_age_seconds": "Age of the oldest backlog count.",
    "backlog_unknown_subscriptions": "Subscriptions of external topics whose backlog is not fully known.",
    "external_tables_failing": "External topics with a table that cannot be counted.",
}
_TOPIC_GAUGES: Final = {
    "backlog_records": "Unacknowledged records, for topics that the settings name.",
    "backlog_bytes": "Unacknowledged bytes, for topics that the settings name.",
    "oldest_unacknowledged_seconds": "Age of the oldest unacknowledged record, for topics that the settings name.",
    "drained_in_seconds": "Time to drain at the current rate; +Inf if it never drains, NaN if unknown.",
}


class BacklogMetrics:
    def __init__(self, metrics: MetricFactory, topics: Collection[str]) -> None:
        """``topics``: those whose backlogs are exported by name."""
        self._topics = frozenset(topics)
        self._exported: dict[int, set[tuple[str, str]]] = {}
        """Shard → (topic, subscription) of its current series."""
        self._shard_gauges = {
            name: metrics.removable_gauge(name, text, "shard") for name, text in _SHARD_GAUGES.items()
        }
        self._topic_gauges = {
            name: metrics.removable_gauge(f"subscription_{name}", text, "topic", "subscription")
            for name, text in _TOPIC_GAUGES.items()
        }
        metrics.on(events.BacklogUpdated, self._update)
        metrics.on(events.TermEnded, self._remove)

    def _update(self, event: events.BacklogUpdated) -> None:
        now_ms = event.now_ms
        known = [backlog for backlog in event.backlogs if backlog.records is not None]
        values = {
            "backlog_records": sum(backlog.records or 0 for backlog in known),
            "backlog_bytes": sum(backlog.size_bytes or 0 for backlog in known),
            "backlog_oldest_unacknowledged_seconds": _oldest([age_seconds(each, now_ms) for each in known]),
            "backlog_never_drained_subscriptions": sum(backlog.outlook == "never" for backlog in known),
            "backlog_as_of_age_seconds": max((now_ms - each.as_of_ms for each in known), default=0) / 1000,
            "backlog_unknown_subscriptions": sum(
                each.records is None and each.outlook != "not_tracked" for each in event.backlogs
            ),
            "external_tables_failing": len({each.topic for each in event.backlogs if each.failing}),
        }
        for name, value in values.items():
            self._shard_gauges[name].labels(event.shard).set(value)
        self._export_topics(event.shard, known, now_ms)

    def _remove(self, event: events.TermEnded) -> None:
        """Remove the series of a shard that this daemon no longer leads."""
        for gauge in self._shard_gauges.values():
            gauge.remove_by_labels({"shard": str(event.shard)})
        self._export_topics(event.shard, [], 0)

    def _export_topics(self, shard: int, known: Sequence[SubscriptionBacklog], now_ms: int) -> None:
        """Set the series of the named topics, and remove those of deleted subscriptions."""
        exported: dict[tuple[str, str], SubscriptionBacklog] = {}
        of_topic: dict[str, int] = {}
        for backlog in sorted(known, key=lambda each: (each.topic, each.subscription)):
            of_topic[backlog.topic] = of_topic.get(backlog.topic, 0) + 1
            if backlog.topic in self._topics and of_topic[backlog.topic] <= MAX_SUBSCRIPTIONS:
                exported[backlog.topic, backlog.subscription] = backlog
        for removed in self._exported.get(shard, set()) - exported.keys():
            for gauge in self._topic_gauges.values():
                gauge.remove(*removed)
        self._exported[shard] = set(exported)
        for labels, backlog in exported.items():
            self._set(labels, backlog, now_ms)

    def _set(self, labels: tuple[str, str], backlog: SubscriptionBacklog, now_ms: int) -> None:
        values = {
            "backlog_records": backlog.records or 0,
            "backlog_bytes": math.nan if backlog.size_bytes is None else backlog.size_bytes,
            "oldest_unacknowledged_seconds": age_seconds(backlog, now_ms),
            "drained_in_seconds": _seconds_until_drained(backlog),
        }
        for name, value in values.items():
            self._topic_gauges[name].labels(*labels).set(value)


def age_seconds(backlog: SubscriptionBacklog, now_ms: int) -> float:
    """Return the age of the oldest unacknowledged record; NaN if unknown.

    0 if there is no such record, or if its clock is ahead of the leader's.
    """
    if not backlog.records:
        return 0.0
    return math.nan if backlog.oldest_ms is None else max(0, now_ms - backlog.oldest_ms) / 1000


def _oldest(ages: Sequence[float]) -> float:
    """Return the highest age; NaN only if no known age is above 0 and another one is unknown."""
    known = [age for age in ages if not math.isnan(age)]
    highest = max(known, default=0.0)
    return math.nan if highest == 0 and len(known) < len(ages) else highest


def _seconds_until_drained(backlog: SubscriptionBacklog) -> float:
    if backlog.drained_in_seconds is not None:
        return backlog.drained_in_seconds
    return math.inf if backlog.outlook == "never" else math.nan
