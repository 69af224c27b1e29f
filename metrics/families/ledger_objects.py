"""Metrics of the objects in the store: snapshots, compaction, and deletions."""

from __future__ import annotations

from typing import get_args

from metrics import events
from metrics.label_values import ObjectKind
from metrics.metric_factory import MetricFactory


def add_object_metrics(metrics: MetricFactory) -> None:
    metrics.gauge_of(
        events.SnapshotFound,
        "chunk",
        "snapshot_newest_chunk",
        "Chunk of the newest snapshot that this daemon knows of.",
        shard=None,
    )
    metrics.gauge_of(
        events.SnapshotOverdueMeasured,
        "seconds",
        "snapshot_overdue_seconds",
        "How long a snapshot has been due, for shards that this daemon leads; 0 if none is due.",
        shard=None,
    )
    metrics.count(events.SnapshotJobFailed, "snapshot_failures", "Snapshot jobs that failed.")
    metrics.count(
        events.SnapshotRejected,
        "snapshots_unusable",
        "Snapshots that were unusable, so that an older one was read.",
        shard=None,
    )
    metrics.gauge_of(
        events.ObjectsCounted,
        "count",
        "ledger_objects",
        "Objects of a shard that this daemon leads, by kind.",
        shard=None,
        kind=get_args(ObjectKind),
    )
    metrics.gauge_of(
        events.ForeignObjectsFound,
        "count",
        "ledger_foreign_objects",
        "Objects among the chunks of a shard that headgate did not name. They are skipped; the log names them.",
        shard=None,
    )
    metrics.gauge_of(events.CompactionAdvanced, "chunk", "compacted_chunk", "Last chunk that is compacted.", shard=None)
    metrics.gauge_of(
        events.CompactionAdvanced,
        "size_bytes",
        "compacted_bytes",
        "Bytes of keys and values in compacted objects.",
        shard=None,
    )
    _add_deletion_metrics(metrics)


def _add_deletion_metrics(metrics: MetricFactory) -> None:
    metrics.count(events.ChunksDeleted, "chunks_deleted", "Chunks deleted after compaction.", by="count", shard=None)
    metrics.count(events.TrimFailed, "trim_failures", "Failed searches for deletable chunks.", shard=None)
    metrics.count(
        events.DataDeletionFailed, "segment_deletions_failed", "Failed deletions of the data of pruned segments."
    )
    pending = metrics.gauge_of(
        events.PendingDeletionsCounted,
        "segments",
        "segment_deletions_pending",
        "Pruned segments whose data has not been deleted yet.",
        shard=None,
    )
    overdue = metrics.gauge_of(
        events.PendingDeletionsCounted,
        "overdue_seconds",
        "deletion_overdue_seconds",
        "How late the deletion of the data of pruned segments is; 0 if none is late.",
        shard=None,
    )

    def reset(event: events.TermEnded) -> None:
        pending.child(event.shard).set(0)
        overdue.child(event.shard).set(0)

    metrics.on(events.TermEnded, reset)
