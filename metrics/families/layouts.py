"""Metrics of layouts: segments, splits and merges, and pruning."""

from __future__ import annotations

from typing import Final, get_args

from metrics import events
from metrics.label_values import LayoutChangeKind, LayoutChangeReason, SplitLimit
from metrics.metric_factory import MetricFactory

SEGMENT_STATES: Final = ("active", "sealed")
LAYOUT_CHANGE_REASONS: Final = get_args(LayoutChangeReason)


def add_layout_metrics(metrics: MetricFactory) -> None:
    changes = metrics.counter(
        "layout_changes",
        "Splits and merges, by kind and reason. command: not automatic.",
        kind=get_args(LayoutChangeKind),
        reason=LAYOUT_CHANGE_REASONS,
    )
    for reason in LAYOUT_CHANGE_REASONS:
        changes.child("merge" if reason == "quiet" else "split", reason)
    changes.child("merge", "command")
    metrics.on(events.LayoutChanged, lambda event: changes.child(event.kind, event.reason).inc())
    metrics.count(
        events.SplitSuppressed,
        "splits_suppressed",
        "Segments that a limit prevents from splitting, by limit.",
        limit=get_args(SplitLimit),
    )
    metrics.count(events.SegmentsPruned, "segments_pruned", "Segments that retention removed.", by="count")
    segments = metrics.gauge("segments", "Segments of all topics.", shard=None, state=SEGMENT_STATES)

    def set_segments(event: events.StatusCollected) -> None:
        for shard in event.shards:
            segments.child(shard.shard, "active").set(shard.counts.active_segments)
            segments.child(shard.shard, "sealed").set(shard.counts.sealed_segments)

    metrics.on(events.StatusCollected, set_segments)
