"""Metrics of shards: what the status of each says, what ends with a term, and blocked segments."""

from collections.abc import Callable
from typing import Final

from metrics import events
from metrics.metric_factory import MetricFactory
from metrics.status import ShardStatus

_Value = Callable[[ShardStatus], float]

_FROM_STATUS: Final[dict[str, tuple[str, _Value]]] = {
    "shard_is_leader": ("1 if this daemon leads the shard.", lambda each: each.role == "leading"),
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
    "named_producers": ("Named producers, which are kept until they are deleted.", lambda each: each.named_producers),
}
"""Gauge of each shard → its text and value. A status is collected every few seconds."""
_FROM_EVENTS_TOO: Final[dict[str, _Value]] = {
    "shard_leader_epoch": lambda each: each.leader_epoch,
    "ledger_head_chunk": lambda each: each.head_chunk,
    "ingest_queue_bytes": lambda each: each.queue_bytes,
}
"""Gauges that an event declares. The status corrects them, so that they cannot drift."""
_ENDS_WITH_TERM: Final = (
    "shard_is_leader",
    "shard_load_bytes_per_second",
    "ingest_queue_bytes",
    "batches_in_flight",
    "requests_waiting",
    "parked_keys",
    "replies_waiting",
    "device_records_pending",
    "segment_deletions_pending",
    "deletion_overdue_seconds",
)
"""Gauges of what only a leader has."""


def add_shard_metrics(metrics: MetricFactory) -> None:
    _add_status_gauges(metrics)
    ending = [metrics.created_gauge(name) for name in _ENDS_WITH_TERM]

    def reset(event: events.TermEnded) -> None:
        for gauge in ending:
            gauge.child(event.shard).set(0)

    metrics.on(events.TermEnded, reset)
    _add_blocked_segment_metrics(metrics)


def _add_status_gauges(metrics: MetricFactory) -> None:
    gauges = [(metrics.gauge(name, text, shard=None), value) for name, (text, value) in _FROM_STATUS.items()]
    gauges += [(metrics.created_gauge(name), value) for name, value in _FROM_EVENTS_TOO.items()]
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
    full = metrics.gauge(
        "redelivery_segments_full",
        "Segments of QUEUE subscriptions of which no further record is delivered: too many were begun or have failed.",
        shard=None,
    )
    started = metrics.created_counter("leader_terms_started")

    def read(event: events.StatusCollected) -> None:
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
            full.child(each.shard).set(each.counts.full_segments)
            started.child(each.shard)  # from 0 on, so that a rate shows the first term

    metrics.on(events.StatusCollected, read)


def _add_blocked_segment_metrics(metrics: MetricFactory) -> None:
    blocked = metrics.gauge("segments_blocked", "Segments blocked until their ancestors are drained.").child()
    longest = metrics.gauge(
        "segments_blocked_longest_seconds", "How long the longest blocked segment has been blocked."
    ).child()
    metrics.on(events.BlockedSegmentsChanged, lambda event: blocked.inc(event.change))

    def set_longest(event: events.StatusCollected) -> None:
        longest.set(max((shard.counts.longest_blocked_seconds for shard in event.shards), default=0.0))

    metrics.on(events.StatusCollected, set_longest)
