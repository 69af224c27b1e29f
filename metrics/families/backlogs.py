"""Metrics of backlogs, per shard and for the busiest subscriptions.

1. Sums cover known values only. Separate gauges count the subscriptions of external topics with
   unknown backlogs, and the topics with a failing table.
2. Topic and subscription names are labels only for the busiest subscriptions of the shards that this
   daemon leads (`metrics.busiest`), and for those of ``metrics.backlog_topics``: of each topic the
   first `MAX_TOPIC_SUBSCRIPTIONS` by name. A gauge counts the others.
3. A daemon exports backlogs only of shards that it leads, so a sum over all daemons counts each
   once.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from headgate.views.backlogs import BacklogInfo
from metrics import events
from metrics.busiest import SubscriptionKey, activity, choose_busiest
from metrics.metric_factory import MetricFactory

MAX_TOPIC_SUBSCRIPTIONS: Final = 50
"""Subscriptions of a topic that the settings name, which have series of their own."""
DEFAULT_MAX_SUBSCRIPTIONS: Final = 100
"""Subscriptions that have series of their own because they are the busiest."""

_SHARD_GAUGES: Final = {
    "backlog_records": "Unacknowledged records, summed over subscriptions.",
    "backlog_bytes": "Unacknowledged bytes, summed over subscriptions.",
    "backlog_oldest_unacknowledged_seconds": "Age of the oldest unacknowledged record; NaN if unknown.",
    "backlog_never_drained_subscriptions": "Subscriptions whose backlog does not shrink at the current rate.",
    "backlog_as_of_age_seconds": "Age of the oldest backlog count.",
    "backlog_unknown_subscriptions": "Subscriptions of external topics whose backlog is not fully known.",
    "external_tables_failing": "External topics with a table that cannot be counted.",
}
_SUBSCRIPTION_GAUGES: Final = {
    "backlog_records": "Unacknowledged records, for the busiest subscriptions.",
    "backlog_bytes": "Unacknowledged bytes, for the busiest subscriptions.",
    "oldest_unacknowledged_seconds": "Age of the oldest unacknowledged record, for the busiest subscriptions.",
    "drained_in_seconds": "Time to drain at the current rate (busiest subscriptions); +Inf: never, NaN: unknown.",
}


class BacklogMetrics:
    def __init__(self, metrics: MetricFactory, topics: Collection[str], max_subscriptions: int) -> None:
        """``topics``: those whose subscriptions are exported however quiet they are.

        ``max_subscriptions``: how many others are exported, the busiest.
        """
        self._topics = frozenset(topics)
        self._max_subscriptions = max_subscriptions
        self._known: dict[int, dict[SubscriptionKey, BacklogInfo]] = {}
        self._exported: frozenset[SubscriptionKey] = frozenset()
        self._shard_gauges = {
            name: metrics.removable_gauge(name, text, "shard") for name, text in _SHARD_GAUGES.items()
        }
        self._subscription_gauges = {
            name: metrics.removable_gauge(f"subscription_{name}", text, "topic", "subscription")
            for name, text in _SUBSCRIPTION_GAUGES.items()
        }
        self._left_out = metrics.gauge(
            "subscriptions_without_series",
            "Subscriptions with a known backlog that have no series of their own, because others are busier.",
        ).child()
        metrics.on(events.BacklogUpdated, self._update)
        metrics.on(events.TermEnded, self._remove)

    def _update(self, event: events.BacklogUpdated) -> None:
        now_ms = event.now_ms
        known = [each for each in event.backlogs if each.records is not None or each.oldest_ms is not None]
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
        self._known[event.shard] = {(each.topic, each.subscription): each for each in known}
        self._choose()
        for key in self._exported & self._known[event.shard].keys():
            self._set(key, self._known[event.shard][key], now_ms)

    def _remove(self, event: events.TermEnded) -> None:
        for gauge in self._shard_gauges.values():
            gauge.remove_by_labels({"shard": str(event.shard)})
        self._known.pop(event.shard, None)
        self._choose()

    def _choose(self) -> None:
        named = frozenset(self._of_named_topics())
        activities = {
            key: activity(backlog)
            for known in self._known.values()
            for key, backlog in known.items()
            if key not in named
        }
        busiest = choose_busiest(activities, self._exported, self._max_subscriptions)
        self._left_out.set(len(activities) - len(busiest))
        for removed in self._exported - named - busiest:
            for gauge in self._subscription_gauges.values():
                gauge.remove_by_labels(dict(zip(("topic", "subscription"), removed, strict=True)))
        self._exported = named | busiest

    def _of_named_topics(self) -> Iterator[SubscriptionKey]:
        of_topic: dict[str, int] = {}
        for topic, subscription in sorted(key for known in self._known.values() for key in known):
            of_topic[topic] = of_topic.get(topic, 0) + 1
            if topic in self._topics and of_topic[topic] <= MAX_TOPIC_SUBSCRIPTIONS:
                yield topic, subscription

    def _set(self, labels: tuple[str, str], backlog: BacklogInfo, now_ms: int) -> None:
        values = {
            "backlog_records": math.nan if backlog.records is None else backlog.records,
            "backlog_bytes": math.nan if backlog.size_bytes is None else backlog.size_bytes,
            "oldest_unacknowledged_seconds": age_seconds(backlog, now_ms),
            "drained_in_seconds": _seconds_until_drained(backlog),
        }
        for name, value in values.items():
            self._subscription_gauges[name].labels(*labels).set(value)


def age_seconds(backlog: BacklogInfo, now_ms: int) -> float:
    """Return the age of the oldest unacknowledged record; NaN if unknown.

    0 if there is no such record, or if its clock is ahead of the leader's.
    """
    if backlog.records == 0:
        return 0.0
    return math.nan if backlog.oldest_ms is None else max(0, now_ms - backlog.oldest_ms) / 1000


def _oldest(ages: Sequence[float]) -> float:
    """Return the highest age; NaN only if no known age is above 0 and another one is unknown."""
    known = [age for age in ages if not math.isnan(age)]
    highest = max(known, default=0.0)
    return math.nan if highest == 0 and len(known) < len(ages) else highest


def _seconds_until_drained(backlog: BacklogInfo) -> float:
    if backlog.drained_in_seconds is not None:
        return backlog.drained_in_seconds
    return math.inf if backlog.outlook == "never" else math.nan
