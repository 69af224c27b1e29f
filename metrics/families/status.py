"""Metrics that no single event declares: shards, leadership, and what the process depends on.

A status says what each shard holds. ZooKeeper and Spark report by events.
"""

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Final, get_args

from metrics import events
from metrics.label_values import DrainState, ZooKeeperState
from metrics.metric_factory import MetricFactory, StateGauge
from metrics.status import ShardStatus

_Value = Callable[[ShardStatus], float]

_FROM_STATUS: Final[dict[str, tuple[str, _Value]]] = {
    "shard_is_leader": ("1 if this daemon leads the shard.", lambda each: each.role == "leading"),
    "shard_leader_epoch": (
        "Leader epoch of the newest term that this daemon knows of.",
        lambda each: each.leader_epoch,
    ),
    "ledger_head_chunk": (
        "Number of the newest durable chunk that this daemon knows of.",
        lambda each: each.head_chunk,
    ),
    "ingest_queue_bytes": ("Accepted bytes waiting for the object store.", lambda each: each.queue_bytes),
    "shard_ledger_unreadable": (
        "1 if this daemon cannot read the ledger of the shard, because an object is damaged, foreign or missing.",
        lambda each: bool(each.fault),
    ),
    "shard_state_in_memory": (
        "1 if this daemon leads the shard or keeps its state, 0 if a term would begin with the newest snapshot.",
        lambda each: each.keeps_state,
    ),
    "shard_replay_lag_seconds": (
        "How long this daemon, which does not lead the shard, has not known the end of its ledger.",
        lambda each: each.replay_lag_seconds,
    ),
    "batches_in_flight": ("Accepted batches that are not durable yet.", lambda each: each.in_flight_batches),
    "requests_waiting": (
        "Large queries and commands that are being answered, or wait for that.",
        lambda each: each.waiting_requests,
    ),
    "producers": ("Known producers, named and anonymous.", lambda each: each.producers),
    "parked_keys": ("Parked keys of STREAM subscriptions.", lambda each: each.counts.parked_keys),
    "redelivery_segments_full": (
        "Segments of QUEUE subscriptions of which no further record is delivered: too many were begun or have failed.",
        lambda each: each.counts.full_segments,
    ),
    "named_producers": ("Named producers, which are kept until they are deleted.", lambda each: each.named_producers),
}
"""Gauge of each shard → its text and value. A status is collected every few seconds."""
_ENDS_WITH_TERM: Final = (
    "shard_load_bytes_per_second",
    "replies_waiting",
    "device_records_pending",
    "segment_deletions_pending",
    "deletion_overdue_seconds",
)
"""Gauges that an event sets, of what only a leader has."""


def add_shard_metrics(metrics: MetricFactory) -> None:
    _add_status_gauges(metrics)
    ending = [metrics.created(name) for name in _ENDS_WITH_TERM]

    def reset(event: events.TermEnded) -> None:
        for gauge in ending:
            gauge.child(event.shard).set(0)

    metrics.on(events.TermEnded, reset)


def _add_status_gauges(metrics: MetricFactory) -> None:
    gauges = [(metrics.gauge(name, text, shard=None), value) for name, (text, value) in _FROM_STATUS.items()]
    consumers = metrics.gauge(
        "consumers", "Consumers, connected or in their grace period.", shard=None, state=("connected", "in_grace")
    )
    segments = metrics.gauge("segments", "Segments of all topics.", shard=None, state=("active", "sealed"))
    deliveries = metrics.gauge(
        "redelivery_records",
        "Records of QUEUE subscriptions: kept because they were begun or have failed, dead, and those that cannot be "
        "stored in a dead-letter topic.",
        shard=None,
        state=("kept", "dead", "unsent"),
    )
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
            consumers.child(each.shard, "connected").set(each.counts.connected_consumers)
            consumers.child(each.shard, "in_grace").set(each.counts.consumers_in_grace)
            segments.child(each.shard, "active").set(each.counts.active_segments)
            segments.child(each.shard, "sealed").set(each.counts.sealed_segments)
            deliveries.child(each.shard, "kept").set(each.counts.kept_deliveries)
            deliveries.child(each.shard, "dead").set(each.counts.dead_records)
            deliveries.child(each.shard, "unsent").set(each.counts.unsent_dead_letters)
            started.child(each.shard)  # from 0 on, so that a rate shows the first term

    metrics.on(events.StatusCollected, read)


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
