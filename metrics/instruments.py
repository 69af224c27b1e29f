"""Exports the daemon's events as Prometheus metrics.

1. Names are ``headgate_<noun>_<unit>``, with ``_total`` for counters. Units are seconds, bytes, or a count.
2. Labels are bounded: the shard, or a listed value, else ``other``.
3. Series with known labels start at 0, so that a rate shows the first failure.
4. What a daemon holds (consumers, batches in flight) is read from its status every few seconds, so
   that it cannot drift.

Metrics of backlogs, per shard and for the busiest subscriptions:

5. Sums cover known values only. Separate gauges count the subscriptions of external topics with
   unknown backlogs, and the topics with a failing table.
6. Topic and subscription names are labels only for the busiest subscriptions of the shards that this
   daemon leads (`metrics.busiest`), and for those of ``metrics.backlog_topics``: of each topic the
   first `MAX_TOPIC_SUBSCRIPTIONS` by name. A gauge counts the others.
7. A daemon exports backlogs only of shards that it leads, so a sum over all daemons counts each once.
"""

import math
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import version
from operator import attrgetter
from typing import Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from headgate.views.subscriptions import BacklogInfo
from metrics import events
from metrics.busiest import SubscriptionKey, activity, choose_busiest
from metrics.label_values import DrainState, ZooKeeperState
from metrics.metric_factory import MetricFactory, StateGauge
from metrics.status import ShardStatus

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
_FROM_STATUS: Final[dict[str, tuple[str, Callable[[ShardStatus], float]]]] = {
    "shard_is_leader": ("1 if this daemon leads the shard.", lambda each: each.role == "leading"),
    "shard_leader_epoch": ("Leader epoch of the newest term that this daemon knows of.", attrgetter("leader_epoch")),
    "ledger_head_chunk": ("Number of the newest durable chunk that this daemon knows of.", attrgetter("head_chunk")),
    "ingest_queue_bytes": ("Accepted bytes waiting for the object store.", attrgetter("queue_bytes")),
    "shard_ledger_unreadable": (
        "1 if this daemon cannot read the ledger of the shard, because an object is damaged, foreign or missing.",
        lambda each: bool(each.fault),
    ),
    "shard_state_in_memory": (
        "1 if this daemon leads the shard or keeps its state, 0 if a term would begin with the newest snapshot.",
        attrgetter("keeps_state"),
    ),
    "shard_replay_lag_seconds": (
        "How long this daemon, which does not lead the shard, has not known the end of its ledger.",
        attrgetter("replay_lag_seconds"),
    ),
    "batches_in_flight": ("Accepted batches that are not durable yet.", attrgetter("in_flight_batches")),
    "requests_waiting": (
        "Large queries and commands that are being answered, or wait for that.",
        attrgetter("waiting_requests"),
    ),
    "producers": ("Known producers, named and anonymous.", attrgetter("producers")),
    "parked_keys": ("Parked keys of STREAM subscriptions.", attrgetter("counts.parked_keys")),
    "redelivery_segments_full": (
        "Segments of QUEUE subscriptions of which no further record is delivered: too many were begun or have failed.",
        attrgetter("counts.full_segments"),
    ),
    "named_producers": ("Named producers, which are kept until they are deleted.", attrgetter("named_producers")),
}
"""Gauge of each shard → its text and value. A status is collected every few seconds."""
_BY_STATE: Final = {
    "consumers": (
        "Consumers, connected or in their grace period.",
        {"connected": "connected_consumers", "in_grace": "consumers_in_grace"},
    ),
    "segments": ("Segments of all topics.", {"active": "active_segments", "sealed": "sealed_segments"}),
    "redelivery_records": (
        (
            "Records of QUEUE subscriptions: kept because they were begun or have failed, dead, and those that cannot "
            "be stored in a dead-letter topic."
        ),
        {"kept": "kept_deliveries", "dead": "dead_records", "unsent": "unsent_dead_letters"},
    ),
}
"""Gauge of each shard with a label ``state`` → its text, and state → its value among `ShardCounts`."""
_ENDS_WITH_TERM: Final = (
    "shard_load_bytes_per_second",
    "replies_waiting",
    "device_records_pending",
    "segment_deletions_pending",
    "deletion_overdue_seconds",
    "ledger_objects",
    "compacted_bytes",
    "ledger_time_ahead_seconds",
)
"""Gauges that an event sets, of what only a leader has, and which may fall: a former one would show the old value."""
TERM_END_REASONS: Final = (
    "handover",
    "number_taken",
    "outcome_unknown",
    "store_unreachable",
    "broker_unreachable",
    "ledger_unreadable",
    "term_left",
    "lock_lost",
    "stop_requested",
)
HANDOVER_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


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


def add_shard_metrics(metrics: MetricFactory) -> None:
    _add_status_gauges(metrics)
    ending = [metrics.created(name) for name in _ENDS_WITH_TERM]

    def reset(event: events.TermEnded) -> None:
        for gauge in ending:
            for child in gauge.of_shard(event.shard):
                child.set(0)

    metrics.on(events.TermEnded, reset)


def _add_status_gauges(metrics: MetricFactory) -> None:
    gauges = [(metrics.gauge(name, text, shard=None), value) for name, (text, value) in _FROM_STATUS.items()]
    by_state = [
        (metrics.gauge(name, text, shard=None, state=tuple(fields)), fields)
        for name, (text, fields) in _BY_STATE.items()
    ]
    blocked = metrics.gauge("segments_blocked", "Segments blocked until their ancestors are drained.").child()
    longest = metrics.gauge(
        "segments_blocked_longest_seconds", "How long the longest blocked segment has been blocked."
    ).child()
    started = metrics.created("leader_terms_started")

    def read(event: events.StatusCollected) -> None:
        blocked.set(sum(each.counts.blocked_segments for each in event.shards))
        longest.set(max((each.counts.longest_blocked_seconds for each in event.shards), default=0.0))
        for each in event.shards:
            for gauge, value in gauges:
                gauge.child(each.shard).set(value(each))
            for gauge, fields in by_state:
                for state, field in fields.items():
                    gauge.child(each.shard, state).set(getattr(each.counts, field))
            started.child(each.shard)  # from 0 on, so that a rate shows the first term

    metrics.on(events.StatusCollected, read)


def add_leadership_metrics(metrics: MetricFactory) -> None:
    ended = metrics.counter(
        "leader_terms_ended", "Terms of this daemon that ended, by reason.", reason=TERM_END_REASONS
    )
    metrics.on(events.TermEnded, lambda event: ended.child(event.reason).inc())
    handovers = metrics.histogram(
        "transfer_handover_seconds",
        "Time in which a shard accepted no requests, until its successor's term was in the ledger.",
        HANDOVER_BUCKETS,
    ).child()

    def measure_handover(event: events.TransferEnded) -> None:
        if event.outcome == "completed":
            handovers.observe(event.seconds)

    metrics.on(events.TransferEnded, measure_handover)
    _ZooKeeperMetrics(metrics)


class _ZooKeeperMetrics:
    """The state of the session, and the time since ZooKeeper was last known to be reachable."""

    def __init__(self, metrics: MetricFactory) -> None:
        family = metrics.gauge(
            "zookeeper_state", "1 for the state of the ZooKeeper session.", state=get_args(ZooKeeperState)
        )
        self._state = StateGauge(family, "connecting")
        self._age = metrics.gauge(
            "zookeeper_contact_age_seconds", "Time since ZooKeeper was last known to be reachable."
        ).child()
        self._connected = False
        self._contact_at: float | None = None
        metrics.on(events.ZooKeeperStateChanged, self._change_state)
        metrics.on(events.StatusCollected, self._measure_age)

    def _change_state(self, event: events.ZooKeeperStateChanged) -> None:
        self._state.set_state(event.state)
        self._connected = event.state == "connected"

    def _measure_age(self, event: events.StatusCollected) -> None:
        if self._connected or self._contact_at is None:
            self._contact_at = event.now_seconds
        self._age.set(event.now_seconds - self._contact_at)


def add_dependency_metrics(metrics: MetricFactory) -> None:
    streams = metrics.gauge("http_streams", "Status pages that are open and kept current.").child()
    metrics.on(events.HttpStreamsChanged, lambda event: streams.inc(event.change))
    drain = metrics.gauge("drain_service_state", "1 for the state of the drain service.", state=get_args(DrainState))
    state = StateGauge(drain, "off")
    metrics.on(events.DrainServiceStateChanged, lambda event: state.set_state(event.state))
    build = metrics.gauge("build_info", "Always 1. The labels name the versions.", version=None, python=None)
    build.child(version("headgate-client"), platform.python_version()).set(1)


class Instruments:
    def __init__(
        self,
        registry: CollectorRegistry,
        backlog_topics: Collection[str] = (),
        max_subscriptions: int = DEFAULT_MAX_SUBSCRIPTIONS,
    ) -> None:
        """Register every metric in ``registry``, which must not contain those of other `Instruments`.

        ``backlog_topics``: the topics whose subscriptions are exported by name however quiet they are.
        ``max_subscriptions``: how many other subscriptions are, the busiest.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.store_problems: dict[str, str] = {}
        """Kind of operation of the object store → why its last one failed. `/readyz` shows it."""
        metrics = MetricFactory(registry)
        for event_type in events.EVENT_TYPES:
            metrics.declare(event_type)
        add_shard_metrics(metrics)
        add_leadership_metrics(metrics)
        add_dependency_metrics(metrics)
        BacklogMetrics(metrics, backlog_topics, max_subscriptions)
        problems = self.store_problems
        metrics.on(events.StoreOperationSucceeded, lambda event: problems.pop(event.operation, None))
        metrics.on(events.StoreOperationFailed, lambda event: problems.update({event.operation: event.reason}))
        ProcessCollector(registry=registry)
        self._handlers = metrics.handlers
        self.labels = metrics.labels
        """Metric → label → its values; None where the cluster or the settings bound them."""

    def observe(self, event: events.Event) -> None:
        for handler in self._handlers[type(event)]:
            handler(event)

    def writes_fail(self) -> bool:
        """Return whether the last write to the object store has failed: this daemon cannot lead."""
        return "create" in self.store_problems
