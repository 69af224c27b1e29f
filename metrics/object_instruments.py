"""Metrics of what stands in the object store beside the newest chunks: snapshots, rolled objects, what is deleted.

A part of `metrics.instruments.Instruments`, under the same rules.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

OBJECT_KINDS = ("chunk", "snapshot", "manifest", "compacted")


class ObjectInstruments:
    """Reports about objects, shard by shard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything in ``registry``."""
        self._snapshot = Gauge(
            "headgate_snapshot_newest_chunk",
            "Chunk of the newest snapshot this daemon knows of.",
            ["shard"],
            registry=registry,
        )
        self._snapshot_overdue_seconds = Gauge(
            "headgate_snapshot_overdue_seconds",
            "How long a snapshot of a shard led here has been due; 0: none is.",
            ["shard"],
            registry=registry,
        )
        self._snapshot_failures = Counter(
            "headgate_snapshot_failures", "Rounds of snapshots that failed.", registry=registry
        )
        self._unusable_snapshots = Counter(
            "headgate_snapshots_unusable",
            "Snapshots that could not be read, so that older ones were.",
            ["shard"],
            registry=registry,
        )
        self._objects = Gauge(
            "headgate_ledger_objects", "Objects of a shard this daemon leads.", ["shard", "kind"], registry=registry
        )
        self._compacted_chunk = Gauge(
            "headgate_compacted_chunk", "Last chunk that is rolled up.", ["shard"], registry=registry
        )
        self._compacted_bytes = Gauge(
            "headgate_compacted_bytes", "Bytes of keys and values in rolled objects.", ["shard"], registry=registry
        )
        self._deleted = Counter("headgate_chunks_deleted", "Chunks deleted.", ["shard"], registry=registry)
        self._trim_failures = Counter(
            "headgate_trim_failures", "Looks for deletable chunks that failed.", ["shard"], registry=registry
        )
        self._pending_deletions = Gauge(
            "headgate_segment_deletions_pending",
            "Segments that are gone and whose data is still there.",
            ["shard"],
            registry=registry,
        )
        self._deletion_overdue = Gauge(
            "headgate_deletion_overdue_seconds",
            "How long the data of a segment that is gone should have been deleted; 0: none is late.",
            ["shard"],
            registry=registry,
        )
        self._failed_deletions = Counter(
            "headgate_segment_deletions_failed", "Deletions of data that failed, to be tried again.", registry=registry
        )

    def snapshot_found(self, shard: int, chunk: int) -> None:
        """Set the chunk of the newest snapshot."""
        self._snapshot.labels(shard).set(chunk)

    def snapshot_overdue(self, shard: int, seconds: float) -> None:
        """Set how long a snapshot has been due; 0: none is, or another daemon leads."""
        self._snapshot_overdue_seconds.labels(shard).set(seconds)

    def snapshot_failed(self) -> None:
        """Count a round of snapshots that failed, at least for one shard."""
        self._snapshot_failures.inc()

    def snapshot_unusable(self, shard: int) -> None:
        """Count a snapshot that is damaged, or of another version."""
        self._unusable_snapshots.labels(shard).inc()

    def set_object_count(self, shard: int, kind: str, count: int) -> None:
        """Set how many objects of ``kind``, one of `OBJECT_KINDS`, a shard has."""
        self._objects.labels(shard, kind).set(count)

    def compaction_advanced(self, shard: int, chunk: int, size_bytes: int) -> None:
        """Set the last chunk that is rolled up, and the bytes of keys and values in rolled objects."""
        self._compacted_chunk.labels(shard).set(chunk)
        self._compacted_bytes.labels(shard).set(size_bytes)

    def chunks_deleted(self, shard: int, count: int) -> None:
        """Count chunks that were deleted."""
        self._deleted.labels(shard).inc(count)

    def trim_failed(self, shard: int) -> None:
        """Count a look for deletable chunks that failed."""
        self._trim_failures.labels(shard).inc()

    def deletions_pending_changed(self, shard: int, segments: int, overdue_seconds: float) -> None:
        """Set of how many pruned segments the data is still there, and how long the oldest has been due to go."""
        self._pending_deletions.labels(shard).set(segments)
        self._deletion_overdue.labels(shard).set(overdue_seconds)

    def deletion_failed(self) -> None:
        """Count a deletion of data that is tried again."""
        self._failed_deletions.inc()
