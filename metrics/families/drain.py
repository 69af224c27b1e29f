"""Metrics of the drain service."""

from __future__ import annotations

from typing import Final, get_args

from metrics import events
from metrics.label_values import DrainFailure, DrainState
from metrics.metric_factory import WAIT_BUCKETS, MetricFactory, StateGauge

DRAIN_STATES: Final = get_args(DrainState)


def add_drain_metrics(metrics: MetricFactory) -> None:
    state = StateGauge(
        metrics.gauge("drain_service_state", "1 for the state of the drain service.", state=DRAIN_STATES), "off"
    )
    metrics.on(events.DrainServiceStateChanged, lambda event: state.set_state(event.state))
    metrics.count(
        events.DrainServiceRestarted, "drain_service_restarts", "Restarts of the drain service by this daemon."
    )
    metrics.time(events.DrainCheckCompleted, "drain_check_seconds", "Response time of the drain service.", WAIT_BUCKETS)
    metrics.count(
        events.DrainCheckFailed,
        "drain_check_failures",
        "Queries that the drain service did not answer, by reason. denied: it has another secret or user than this "
        "daemon. wrong_ledger: it counts another ledger.",
        reason=get_args(DrainFailure),
    )
    metrics.gauge_of(
        events.DrainWatermarkAdvanced,
        "chunk",
        "drain_watermark_chunk",
        "Newest chunk that the drain service has counted.",
        shard=None,
    )
