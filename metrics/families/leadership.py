"""Metrics of leadership and of what the process depends on: ZooKeeper, Spark, certificates, file systems."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final, get_args

from metrics import events
from metrics.label_values import DrainState, ZooKeeperState
from metrics.metric_factory import MetricFactory, StateGauge

TERM_END_REASONS: Final = (
    "handover",
    "number_taken",
    "outcome_unknown",
    "store_unreachable",
    "broker_unreachable",
    "ledger_unreadable",
    "term_left",
    "stop_requested",
)
HANDOVER_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def add_leadership_metrics(metrics: MetricFactory) -> None:
    is_leader = metrics.created_gauge("shard_is_leader")
    metrics.on(events.TermStarted, lambda event: is_leader.child(event.shard).set(1))
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
    expiry = metrics.removable_gauge(
        "certificate_expiry_timestamp_seconds",
        "When a certificate of the daemon expires, in seconds since 1970.",
        "use",
    )
    metrics.on(events.CertificateRead, lambda event: expiry.labels(event.use).set(event.expires_at_seconds))
    _add_file_system_metrics(metrics)
    build = metrics.gauge("build_info", "Always 1. The labels name the versions.", version=None, python=None)
    build.child(version("headgate"), platform.python_version()).set(1)


def _add_file_system_metrics(metrics: MetricFactory) -> None:
    free = metrics.removable_gauge(
        "file_system_free_bytes",
        "Bytes that the daemon may still write to the file system of the ledger, or of Spark's folder.",
        "use",
    )
    size = metrics.removable_gauge(
        "file_system_size_bytes", "Size of the file system of the ledger, or of Spark's folder.", "use"
    )

    def set_space(event: events.FileSystemMeasured) -> None:
        free.labels(event.use).set(event.free_bytes)
        size.labels(event.use).set(event.size_bytes)

    metrics.on(events.FileSystemMeasured, set_space)
