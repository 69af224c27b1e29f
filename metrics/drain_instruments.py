"""The metrics of the drain service and of backlogs.

Backlogs are exported by shard: sums, and the oldest record of all. Names of topics and subscriptions become labels only
for the topics that the settings name (``metrics.backlog_topics``), and of each of those only for its first
`MAX_SUBSCRIPTIONS` subscriptions by name: what can be exported is known beforehand. Whoever does not lead a shard
exports nothing of it, so a sum over all daemons counts each backlog once.

Sums are over what is known. How many subscriptions of external topics are not, and of how many topics a table is at
fault, are gauges of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from headgate.protocol.backlog import SubscriptionBacklog
from metrics.families import WAIT_BUCKETS, LabeledMetric, MetricFactory, StateGauge

DRAIN_STATES: Final = ("off", "starting", "ready", "degraded")
DRAIN_FAILURES: Final = ("unreachable", "timed_out", "failed", "invalid")
MAX_SUBSCRIPTIONS: Final = 50
"""Subscriptions of one topic that get series of their own."""


class DrainInstruments(MetricFactory):
    """A part of `metrics.instruments.Instruments`."""

    def __init__(self, registry: CollectorRegistry, backlog_topics: Sequence[str] = ()) -> None:
        """``backlog_topics``: those whose backlogs are exported under their names."""
        super().__init__(registry)
        self._backlog_topics = frozenset(backlog_topics)
        self._exported_series: dict[int, set[tuple[str, str]]] = {}
        """Shard → (topic, subscription) of the series that it has now."""
        self._drain_states = StateGauge(
            self._gauge("drain_service_state", "1 for the state of the drain service.", "state"), DRAIN_STATES
        )
        self._drain_checks = self._histogram("drain_check_seconds", "One answer of the drain service.", WAIT_BUCKETS)
        self._drain_failures = LabeledMetric(
            self._counter(
                "drain_check_failures", "Questions to the drain service without answer, by reason.", "reason"
            ),
            DRAIN_FAILURES,
        )
        self._watermark = LabeledMetric(
            self._gauge("drain_watermark_chunk", "Newest chunk that the drain service has counted.", "shard"), None
        )
        self._drain_restarts = self._counter("drain_service_restarts", "Starts of the drain service after its first.")
        self._create_backlog_metrics()

    def _create_backlog_metrics(self) -> None:
        texts = {
            "backlog_records": "Records that subscriptions have not acknowledged, summed over them.",
            "backlog_bytes": "Bytes that subscriptions have not acknowledged, summed over them.",
            "backlog_oldest_unacknowledged_seconds": "Age of the oldest record that is left; NaN: not known.",
            "backlog_never_drained_subscriptions": "Subscriptions whose backlog does not shrink at this rate.",
            "backlog_as_of_age_seconds": "Age of the oldest of these counts.",
            "backlog_unknown_subscriptions": "Subscriptions of external topics whose backlog is not known in full.",
            "external_tables_failing": "External topics with a table that cannot be counted.",
        }
        self._shard_gauges = {name: self._gauge(name, text, "shard") for name, text in texts.items()}
        self._topic_gauges = {
            name: self._gauge(f"subscription_{name}", text, "topic", "subscription")
            for name, text in (
                ("backlog_records", "Records not acknowledged, of the topics that the settings name."),
                ("backlog_bytes", "Bytes not acknowledged, of the topics that the settings name."),
                ("oldest_unacknowledged_seconds", "Age of the oldest record left, of the topics that are named."),
                ("drained_in_seconds", "Until the backlog is drained at this rate; +Inf: never, NaN: not known yet."),
            )
        }

    def drain_service_state_changed(self, state: str) -> None:
        """Set the drain service's state, one of `DRAIN_STATES`."""
        self._drain_states.set_state(state)

    def drain_check_completed(self, seconds: float) -> None:
        """Note how long one answer took."""
        self._drain_checks.observe(seconds)

    def drain_check_failed(self, reason: str) -> None:
        """Count a question without answer; ``reason`` is one of `DRAIN_FAILURES`."""
        self._drain_failures.child(reason).inc()

    def drain_watermark_advanced(self, shard: int, chunk: int) -> None:
        """Set the newest chunk counted."""
        self._watermark.child(shard).set(chunk)

    def drain_service_restarted(self) -> None:
        """Count a start after the first."""
        self._drain_restarts.inc()

    def backlog_updated(self, shard: int, backlogs: Iterable[SubscriptionBacklog], now_ms: int) -> None:
        """Set what the subscriptions of a shard have left; ``now_ms`` is the leader's clock."""
        backlogs = list(backlogs)
        tracked = [backlog for backlog in backlogs if backlog.records is not None]
        values = {
            "backlog_records": sum(backlog.records or 0 for backlog in tracked),
            "backlog_bytes": sum(backlog.size_bytes or 0 for backlog in tracked),
            "backlog_oldest_unacknowledged_seconds": _oldest([age_seconds(each, now_ms) for each in tracked]),
            "backlog_never_drained_subscriptions": sum(backlog.outlook == "never" for backlog in tracked),
            "backlog_as_of_age_seconds": max((now_ms - each.as_of_ms for each in tracked), default=0) / 1000,
            "backlog_unknown_subscriptions": sum(
                each.records is None and each.outlook != "not_tracked" for each in backlogs
            ),
            "external_tables_failing": len({each.topic for each in backlogs if each.failing}),
        }
        for name, value in values.items():
            self._shard_gauges[name].labels(shard).set(value)
        self._export_topics(shard, tracked, now_ms)

    def remove_backlog(self, shard: int) -> None:
        """Export nothing of a shard that another daemon leads from now on."""
        for gauge in self._shard_gauges.values():
            gauge.remove_by_labels({"shard": str(shard)})
        self._export_topics(shard, [], 0)

    def _export_topics(self, shard: int, tracked: Sequence[SubscriptionBacklog], now_ms: int) -> None:
        """Set the series of the topics that are named, and take away those whose subscription is gone."""
        shown: dict[tuple[str, str], SubscriptionBacklog] = {}
        of_topic: dict[str, int] = {}
        for backlog in sorted(tracked, key=lambda each: (each.topic, each.subscription)):
            of_topic[backlog.topic] = of_topic.get(backlog.topic, 0) + 1
            if backlog.topic in self._backlog_topics and of_topic[backlog.topic] <= MAX_SUBSCRIPTIONS:
                shown[backlog.topic, backlog.subscription] = backlog
        for gone in self._exported_series.get(shard, set()) - shown.keys():
            for gauge in self._topic_gauges.values():
                gauge.remove(*gone)
        self._exported_series[shard] = set(shown)
        for labels, backlog in shown.items():
            self._topic_gauges["backlog_records"].labels(*labels).set(backlog.records or 0)
            self._topic_gauges["backlog_bytes"].labels(*labels).set(
                math.nan if backlog.size_bytes is None else backlog.size_bytes
            )
            self._topic_gauges["oldest_unacknowledged_seconds"].labels(*labels).set(age_seconds(backlog, now_ms))
            self._topic_gauges["drained_in_seconds"].labels(*labels).set(_seconds_until_drained(backlog))


def age_seconds(backlog: SubscriptionBacklog, now_ms: int) -> float:
    """Return the age of the oldest record left: 0 if there is none, or its clock is ahead of ours; NaN: not known."""
    if not backlog.records:
        return 0.0
    return math.nan if backlog.oldest_ms is None else max(0, now_ms - backlog.oldest_ms) / 1000


def _oldest(ages: Sequence[float]) -> float:
    """Return the highest age; NaN only if nothing older than 0 is known and something is unknown."""
    known = [age for age in ages if not math.isnan(age)]
    highest = max(known, default=0.0)
    return math.nan if highest == 0 and len(known) < len(ages) else highest


def _seconds_until_drained(backlog: SubscriptionBacklog) -> float:
    if backlog.drained_in_seconds is not None:
        return backlog.drained_in_seconds
    return math.inf if backlog.outlook == "never" else math.nan
