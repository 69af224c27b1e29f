"""Metrics of subscriptions: consumers, grants, handovers, blocked and drained segments."""

from __future__ import annotations

from typing import get_args

from headgate.model.entries import LeaveReason, ReleaseReason
from metrics import events
from metrics.label_values import PollOutcome, WeightChange
from metrics.metric_factory import WAIT_BUCKETS, MetricFactory


def add_subscription_metrics(metrics: MetricFactory) -> None:
    _add_consumer_metrics(metrics)
    metrics.count(events.SegmentGranted, "segments_granted", "Segments granted to consumers.")
    metrics.count(events.SegmentRevoked, "segments_revoked", "Segments revoked from consumers.")
    metrics.time(
        events.HandoverFinished,
        "handover_seconds",
        "Time from a revocation to the next grant, by how the segment was released.",
        WAIT_BUCKETS,
        reason=get_args(ReleaseReason),
    )
    metrics.count(
        events.SegmentWeightChanged,
        "segment_weights_changed",
        "Changes of the weights of segments that are balanced by load, by direction.",
        change=get_args(WeightChange),
    )
    metrics.count(events.SegmentsDrained, "segments_drained", "Segments that became drained.", by="count")
    metrics.time(
        events.SegmentsDrained,
        "drain_wait_seconds",
        "Time from the last acknowledgement in a sealed segment to its release of the blocked segments.",
        WAIT_BUCKETS,
        field="waited_seconds",
    )
    metrics.count(
        events.AcknowledgementsOverLimit,
        "acknowledgements_over_limit",
        "Acknowledgements of QUEUE subscriptions that did not count, because they would open more gaps than are kept.",
        by="count",
    )
    metrics.count(events.SubscriptionSeekCompleted, "subscription_seeks", "Seeks of subscriptions.")
    metrics.count(events.DrainPollCompleted, "drain_polls", "Drain polls, by outcome.", outcome=get_args(PollOutcome))
    _add_blocked_segment_metrics(metrics)


def _add_consumer_metrics(metrics: MetricFactory) -> None:
    metrics.count(events.ConsumerRegistered, "consumers_registered", "Consumers that registered.")
    metrics.count(
        events.ConsumerReconnected, "consumers_reconnected", "Consumers that reconnected within their grace period."
    )
    metrics.count(events.ConsumerDisconnected, "consumers_disconnected", "Consumers that stopped sending heartbeats.")
    metrics.count(
        events.ConsumerRemoved, "consumers_removed", "Consumers removed, by reason.", reason=get_args(LeaveReason)
    )
    consumers = metrics.gauge(
        "consumers",
        "Consumers, connected or in their grace period.",
        shard=None,
        state=("connected", "in_grace"),
    )

    def set_consumers(event: events.StatusCollected) -> None:
        for shard in event.shards:
            consumers.child(shard.shard, "connected").set(shard.counts.connected_consumers)
            consumers.child(shard.shard, "in_grace").set(shard.counts.consumers_in_grace)

    metrics.on(events.StatusCollected, set_consumers)


def _add_blocked_segment_metrics(metrics: MetricFactory) -> None:
    blocked = metrics.gauge("segments_blocked", "Segments blocked until their ancestors are drained.").child()
    longest = metrics.gauge(
        "segments_blocked_longest_seconds", "How long the longest blocked segment has been blocked."
    ).child()
    metrics.on(events.BlockedSegmentsChanged, lambda event: blocked.inc(event.change))

    def set_longest(event: events.StatusCollected) -> None:
        longest.set(max((shard.counts.longest_blocked_seconds for shard in event.shards), default=0.0))

    metrics.on(events.StatusCollected, set_longest)
