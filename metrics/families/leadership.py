"""Metrics of leadership: terms, restores, the ledger's head, and the ZooKeeper session."""

from __future__ import annotations

from itertools import product
from typing import Final, get_args

from metrics import events
from metrics.label_values import TransferOutcome, TransferReason, ZooKeeperState
from metrics.metric_factory import WAIT_BUCKETS, MetricFactory, StateGauge

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
    _add_shard_gauges(metrics)
    metrics.count(
        events.TermEnded, "leader_terms_ended", "Terms of this daemon that ended, by reason.", reason=TERM_END_REASONS
    )
    _add_transfer_metrics(metrics)
    metrics.time(
        events.LedgerRestored,
        "restore_seconds",
        "Time to read the ledger to its end and to write the term chunk.",
        WAIT_BUCKETS,
    )
    metrics.count(events.LedgerRestored, "chunks_restored", "Chunks read at the start of a term.", by="chunks")
    metrics.gauge_of(
        events.ClockStepHeld,
        "seconds",
        "clock_step_held_seconds",
        "Step of this machine's clock that the daemon does not follow yet; negative: backward.",
    )
    metrics.gauge_of(
        events.LedgerTimeCompared,
        "ahead_seconds",
        "ledger_time_ahead_seconds",
        "How far the newest chunk of a shard led here is ahead of this machine's clock. Nothing expires meanwhile.",
        shard=None,
    )

    _ZooKeeperMetrics(metrics)


def _add_shard_gauges(metrics: MetricFactory) -> None:
    """Add what this daemon knows of each shard."""
    is_leader = metrics.gauge("shard_is_leader", "1 if this daemon leads the shard.", shard=None)
    failed = metrics.gauge(
        "shard_ledger_unreadable",
        "1 if this daemon cannot read the ledger of the shard, because an object is damaged, foreign or missing.",
        shard=None,
    )
    epoch = metrics.gauge_of(
        events.TermStarted,
        "leader_epoch",
        "shard_leader_epoch",
        "Leader epoch of the newest term that this daemon knows of.",
        shard=None,
    )
    head = metrics.gauge_of(
        events.HeadAdvanced,
        "chunk",
        "ledger_head_chunk",
        "Number of the newest durable chunk that this daemon knows of.",
        shard=None,
    )
    kept = metrics.gauge(
        "shard_state_in_memory",
        "1 if this daemon leads the shard or keeps its state, 0 if a term would begin with the newest snapshot.",
        shard=None,
    )
    lag = metrics.gauge(
        "shard_replay_lag_seconds",
        "How long this daemon, which does not lead the shard, has not known the end of its ledger.",
        shard=None,
    )
    load = metrics.gauge_of(
        events.ShardLoadReported,
        "load_bytes_per_second",
        "shard_load_bytes_per_second",
        "Load of a shard led here, as reported to the other daemons: received bytes, and 16 KiB for each message.",
        shard=None,
    )
    metrics.count(events.ShardLoadReported, "shard_loads_reported", "Changed loads that were written to ZooKeeper.")
    started = metrics.counter("leader_terms_started", "Terms that this daemon started.", shard=None)

    def set_roles(event: events.StatusCollected) -> None:
        for shard in event.shards:
            is_leader.child(shard.shard).set(shard.role == "leading")
            started.child(shard.shard)  # from 0 on, so that a rate shows the first term
            failed.child(shard.shard).set(bool(shard.fault))
            kept.child(shard.shard).set(shard.keeps_state)
            lag.child(shard.shard).set(shard.replay_lag_seconds)
            epoch.child(shard.shard).set(shard.leader_epoch)
            head.child(shard.shard).set(shard.head_chunk)

    metrics.on(events.TermStarted, lambda event: started.child(event.shard).inc())
    metrics.on(events.TermStarted, lambda event: is_leader.child(event.shard).set(1))
    metrics.on(events.TermEnded, lambda event: is_leader.child(event.shard).set(0))
    metrics.on(events.TermEnded, lambda event: load.child(event.shard).set(0))
    metrics.on(events.StatusCollected, set_roles)


def _add_transfer_metrics(metrics: MetricFactory) -> None:
    transfers = metrics.counter(
        "shard_transfers",
        "Transfers of shards from this daemon to another one, by reason and outcome.",
        reason=get_args(TransferReason),
        outcome=get_args(TransferOutcome),
    )
    for reason, outcome in product(get_args(TransferReason), get_args(TransferOutcome)):
        transfers.child(reason, outcome)  # from 0 on, so that an alert sees the first one
    handovers = metrics.histogram(
        "transfer_handover_seconds",
        "Time in which a shard accepted no requests, until its successor's term was in the ledger.",
        HANDOVER_BUCKETS,
    ).child()

    def count_transfer(event: events.TransferEnded) -> None:
        transfers.child(event.reason, event.outcome).inc()
        if event.outcome == "completed":
            handovers.observe(event.seconds)

    metrics.on(events.TransferEnded, count_transfer)


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
        metrics.gauge_of(
            events.ZooKeeperRefused,
            "refused",
            "zookeeper_refused",
            "1 while ZooKeeper refuses this daemon's certificates, its user, or its rights to a node.",
        )
        metrics.count(
            events.ForeignNodeFound,
            "zookeeper_foreign_nodes",
            "Nodes in ZooKeeper that no daemon of the cluster created. They are ignored; the log names each.",
        )
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
