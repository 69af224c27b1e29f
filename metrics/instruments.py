"""Every metric of the daemon, and the verbs with which the rest of the program reports to them.

The shells define what they want to be told in Protocols of their own; one `Instruments` satisfies them all. Nothing is
decided here.

The rules:

1. Names are ``headgate_<noun>_<unit>``, with ``_total`` for counters; units are seconds, bytes, or counts of the noun.
2. Labels are bounded: the shard, or a value listed below. A value that is not listed counts as ``other``. Names of
   topics, subscriptions, consumers and clients are never labels, but for the topics that the settings name
   (metrics.drain_instruments).
3. Series whose labels are known beforehand exist from the start, at 0: a first failure is then a rise, which rates see.
4. What a daemon holds rather than does (consumers, producers, batches in flight) is read off a snapshot every few
   seconds, so that it cannot drift.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from headgate.model.entries import LeaveReason, ReleaseReason
from headgate.protocol.messages import Verdict
from metrics.drain_instruments import DrainInstruments
from metrics.families import WAIT_BUCKETS, LabeledMetric, StateGauge
from metrics.object_instruments import ObjectInstruments
from metrics.status import DaemonStatus, ShardStatus

BATCH_VERDICTS = ("accept", "duplicate", *get_args(Verdict))
MALFORMED_REASONS = ("too_large", "not_msgpack", "invalid", "protocol", "presence")
DEVICE_REJECTION_REASONS = ("unknown_topic", "external_topic", "empty_key", "too_large", "retained")
TERM_END_REASONS = (
    "handover",
    "number_taken",
    "outcome_unknown",
    "store_unreachable",
    "broker_unreachable",
    "stop_requested",
)
ZOOKEEPER_STATES = ("connecting", "connected", "suspended", "lost")
POLL_OUTCOMES = ("drained", "waiting", "failed", "timed_out", "stuck")
STORE_OPERATIONS = ("create", "read", "list", "delete")
SEGMENT_STATES = ("active", "sealed")
LAYOUT_CHANGE_KINDS = ("split", "merge")
LAYOUT_CHANGE_REASONS = ("rate", "bytes", "size", "consumers", "quiet")
WEIGHT_CHANGES = ("initial", "increased", "decreased")
SPLIT_LIMIT_REASONS = ("hot_key", "max_segments", "waiting", "single_hash", "layout_full")

COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: from a local disk's half a millisecond to the time after which the outcome counts as unknown."""
SIZE_BUCKETS = (1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6)
"""Bytes of a chunk: from a lone reign chunk to a full queue."""
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds by which the loop was late; above 0.25 s deadlines are missed."""


class Instruments(DrainInstruments, ObjectInstruments):
    """Owns every metric. Each method reports one thing that happened; none blocks or raises for a value."""

    def __init__(self, registry: CollectorRegistry, backlog_topics: Sequence[str] = ()) -> None:
        """Register everything in ``registry``, which must hold no other `Instruments`."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        super().__init__(registry, backlog_topics)
        ObjectInstruments.__init__(self, registry)
        self.store_reachable = True
        """Whether the store's last answer was one; not a metric of its own, `/readyz` tells it."""
        self._create_ingest_metrics()
        self._create_leadership_metrics()
        self._create_subscription_metrics()
        self._create_layout_metrics()
        self._create_dependency_metrics()
        self._blocked_since: dict[tuple[int, str, str, int], float] = {}
        ProcessCollector(registry=registry)

    # --- ingestion ----------------------------------------------------------------------------------------------------

    def _create_ingest_metrics(self) -> None:
        self._batches = LabeledMetric(
            self._counter("batches_judged", "Batches judged, by verdict.", "shard", "verdict"), None, BATCH_VERDICTS
        )
        self._records = LabeledMetric(self._counter("records_stored", "Records in durable chunks.", "shard"), None)
        self._bytes = LabeledMetric(self._counter("chunks_stored_bytes", "Bytes of durable chunks.", "shard"), None)
        self._batch_durable = self._histogram(
            "batch_commit_seconds", "From the judging of an accepted batch to its durable chunk.", COMMIT_BUCKETS
        )
        self._chunk_commit = self._histogram(
            "chunk_commit_seconds", "Creation of a chunk in the object store.", COMMIT_BUCKETS
        )
        self._chunk_size = self._histogram("chunk_size_bytes", "Size of a chunk.", SIZE_BUCKETS)
        self._queue = LabeledMetric(
            self._gauge("ingest_queue_bytes", "Accepted bytes that wait for the object store.", "shard"), None
        )
        self._queue_limit = self._gauge("ingest_queue_limit_bytes", "Most bytes that may wait, per shard.")
        self._in_flight = LabeledMetric(
            self._gauge("batches_in_flight", "Accepted batches that are not durable yet.", "shard"), None
        )
        self._producers = LabeledMetric(self._gauge("producers", "Producers on record.", "shard"), None)
        self._malformed = LabeledMetric(
            self._counter("messages_malformed", "Messages that are not of the protocol, by reason.", "reason"),
            MALFORMED_REASONS,
        )
        self._requests_without_epoch = LabeledMetric(
            self._counter("requests_without_epoch", "Batches refused because they name no leader epoch.", "shard"), None
        )
        self._device_records = LabeledMetric(
            self._counter("device_records_stored", "Records of plain devices in durable chunks.", "shard"), None
        )
        self._rejected_device_messages = LabeledMetric(
            self._counter("device_messages_rejected", "Messages of plain devices thrown away, by reason.", "reason"),
            DEVICE_REJECTION_REASONS,
        )
        self._pending_device_records = LabeledMetric(
            self._gauge("device_records_pending", "Records of plain devices that are not durable yet.", "shard"), None
        )
        self._device_sessions = LabeledMetric(
            self._gauge("device_session_open", "1 while what devices publish, or published before, is read.", "shard"),
            None,
        )

    def batch_judged(self, shard: int, verdict: str) -> None:
        """Count one batch; ``verdict`` is one of `BATCH_VERDICTS`."""
        self._batches.child(shard, verdict).inc()

    def batch_committed(self, shard: int, seconds: float) -> None:  # noqa: ARG002 - shards share one histogram
        """Note how long an accepted batch took from judging to durable."""
        self._batch_durable.observe(seconds)

    def chunk_committed(self, shard: int, seconds: float, size_bytes: int, records: int) -> None:
        """Note one durable chunk."""
        self._chunk_commit.observe(seconds)
        self._chunk_size.observe(size_bytes)
        self._bytes.child(shard).inc(size_bytes)
        self._records.child(shard).inc(records)

    def queue_size_changed(self, shard: int, size_bytes: int) -> None:
        """Set how many bytes wait in the chunk in the making."""
        self._queue.child(shard).set(size_bytes)

    def set_queue_limit(self, size_bytes: int) -> None:
        """Set the limit per shard, from the settings."""
        self._queue_limit.set(size_bytes)

    def message_malformed(self, reason: str) -> None:
        """Count a message that is not of the protocol; ``reason`` is one of `MALFORMED_REASONS`."""
        self._malformed.child(reason).inc()

    def request_without_epoch_rejected(self, shard: int) -> None:
        """Count a batch from a client too old to be safe."""
        self._requests_without_epoch.child(shard).inc()

    def device_record_stored(self, shard: int) -> None:
        """Count a durable record of a plain device."""
        self._device_records.child(shard).inc()

    def device_message_rejected(self, reason: str) -> None:
        """Count a device's message that was thrown away; ``reason`` is one of `DEVICE_REJECTION_REASONS`."""
        self._rejected_device_messages.child(reason).inc()

    def device_records_pending(self, shard: int, records: int) -> None:
        """Set how many records of devices are taken and not durable."""
        self._pending_device_records.child(shard).set(records)

    def device_session_changed(self, shard: int, *, is_open: bool) -> None:
        """Set whether the session of devices is being read."""
        self._device_sessions.child(shard).set(is_open)

    # --- leadership ---------------------------------------------------------------------------------------------------

    def _create_leadership_metrics(self) -> None:
        self._is_leader = LabeledMetric(
            self._gauge("shard_is_leader", "1 where this daemon leads the shard.", "shard"), None
        )
        self._epoch = LabeledMetric(
            self._gauge("shard_leader_epoch", "Leader epoch of the newest reign this daemon knows of.", "shard"), None
        )
        self._head = LabeledMetric(
            self._gauge("ledger_head_chunk", "Number of the newest durable chunk this daemon knows of.", "shard"), None
        )
        self._terms_started = LabeledMetric(
            self._counter("leader_terms_started", "Reigns that this daemon began.", "shard"), None
        )
        self._terms_ended = LabeledMetric(
            self._counter("leader_terms_ended", "Reigns of this daemon that ended, by reason.", "reason"),
            TERM_END_REASONS,
        )
        self._restore = self._histogram(
            "restore_seconds", "Reading the ledger to its end and writing the reign chunk.", WAIT_BUCKETS
        )
        self._restored_chunks = self._counter("chunks_restored", "Chunks that were still to be read before a reign.")
        self._zookeeper = StateGauge(
            self._gauge("zookeeper_state", "1 for the state of the ZooKeeper session.", "state"), ZOOKEEPER_STATES
        )
        self._zookeeper_connected = False
        self._zookeeper_contact_at: float | None = None
        self._zookeeper_contact_age = self._gauge(
            "zookeeper_contact_age_seconds", "Since ZooKeeper was last known in reach."
        )

    def term_started(self, shard: int, epoch: int) -> None:
        """Note that this daemon leads."""
        self._terms_started.child(shard).inc()
        self._is_leader.child(shard).set(1)
        self._epoch.child(shard).set(epoch)

    def term_ended(self, shard: int, reason: str) -> None:
        """Note that it no longer does; ``reason`` is one of `TERM_END_REASONS`. What was queued went with the reign."""
        self._terms_ended.child(reason).inc()
        self._is_leader.child(shard).set(0)
        self._queue.child(shard).set(0)
        self._in_flight.child(shard).set(0)
        self._pending_device_records.child(shard).set(0)
        self._device_sessions.child(shard).set(0)
        self.deletions_pending_changed(shard, 0, 0)
        self.remove_backlog(shard)

    def restore_completed(self, shard: int, seconds: float, chunks: int) -> None:  # noqa: ARG002 - shards share one histogram
        """Note how long the ledger took to read before a reign."""
        self._restore.observe(seconds)
        self._restored_chunks.inc(chunks)

    def head_advanced(self, shard: int, chunk: int) -> None:
        """Set the newest durable chunk."""
        self._head.child(shard).set(chunk)

    def zookeeper_state_changed(self, state: str) -> None:
        """Set the session's state, one of `ZOOKEEPER_STATES`."""
        self._zookeeper.set_state(state)
        self._zookeeper_connected = state == "connected"

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def _create_subscription_metrics(self) -> None:
        self._consumers = LabeledMetric(
            self._gauge("consumers", "Consumers on record, connected or in their grace period.", "shard", "state"),
            None,
            ("connected", "in_grace"),
        )
        self._segments = LabeledMetric(
            self._gauge("segments", "Segments of all topics.", "shard", "state"), None, SEGMENT_STATES
        )
        self._registered = self._counter("consumers_registered", "Consumers that joined.")
        self._reconnected = self._counter("consumers_reconnected", "Consumers back within their grace period.")
        self._disconnected = self._counter("consumers_disconnected", "Consumers that went silent.")
        self._removed = LabeledMetric(
            self._counter("consumers_removed", "Consumers that are gone, by reason; evicted is ours.", "reason"),
            get_args(LeaveReason),
        )
        self._granted = self._counter("segments_granted", "Grants.")
        self._revoked = self._counter("segments_revoked", "Revocations.")
        self._handover = LabeledMetric(
            self._histogram(
                "handover_seconds",
                "From a revocation to the next grant, by how it was released.",
                WAIT_BUCKETS,
                "reason",
            ),
            get_args(ReleaseReason),
        )
        self._blocked = self._gauge("segments_blocked", "Segments held back until their ancestors are drained.")
        self._longest_blocked = self._gauge(
            "segments_blocked_longest_seconds", "How long the longest blocked segment has been seen blocked."
        )
        self._weight_changes = LabeledMetric(
            self._counter("segment_weights_changed", "Segments balanced by load that changed their weight.", "change"),
            WEIGHT_CHANGES,
        )
        self._drained = self._counter("segments_drained", "Segments that became drained.")
        self._drain_wait = self._histogram(
            "drain_wait_seconds",
            "From the acknowledgement of a sealed end to the release of what waited.",
            WAIT_BUCKETS,
        )
        self._seeks = self._counter("subscription_seeks", "Seeks of subscriptions.")
        self._drain_polls = LabeledMetric(
            self._counter("drain_polls", "Drain polls, by outcome.", "outcome"), POLL_OUTCOMES
        )

    def consumer_registered(self) -> None:
        """Count a consumer that joined."""
        self._registered.inc()

    def consumer_reconnected(self) -> None:
        """Count a consumer that came back in time."""
        self._reconnected.inc()

    def consumer_disconnected(self) -> None:
        """Count a consumer whose grace period began."""
        self._disconnected.inc()

    def consumer_removed(self, reason: str) -> None:
        """Count a consumer that is gone; ``reason`` is a `headgate.model.entries.LeaveReason`."""
        self._removed.child(reason).inc()

    def segment_granted(self) -> None:
        """Count one grant."""
        self._granted.inc()

    def segment_revoked(self) -> None:
        """Count one revocation."""
        self._revoked.inc()

    def handover_finished(self, seconds: float, reason: str) -> None:
        """Note how long a handover took; ``reason`` is a `headgate.model.entries.ReleaseReason`."""
        self._handover.child(reason).observe(seconds)

    def segments_drained(self, count: int, waited_seconds: float) -> None:
        """Note newly drained segments, and how long ago the last acknowledgement of one of them came in."""
        self._drained.inc(count)
        self._drain_wait.observe(waited_seconds)

    def subscription_seek_completed(self) -> None:
        """Count one seek."""
        self._seeks.inc()

    def segment_weight_changed(self, change: str) -> None:
        """Count a segment whose weight changed; ``change`` is one of `WEIGHT_CHANGES`."""
        self._weight_changes.child(change).inc()

    def drain_poll_completed(self, outcome: str) -> None:
        """Count one poll; ``outcome`` is one of `POLL_OUTCOMES`."""
        self._drain_polls.child(outcome).inc()

    def blocked_segments_changed(self, change: int) -> None:
        """Raise or lower the number of blocked segments."""
        self._blocked.inc(change)

    # --- layouts ------------------------------------------------------------------------------------------------------

    def _create_layout_metrics(self) -> None:
        self._layout_changes = LabeledMetric(
            self._counter("layout_changes", "Automatic splits and merges, by kind and reason.", "kind", "reason"),
            LAYOUT_CHANGE_KINDS,
            LAYOUT_CHANGE_REASONS,
        )
        for reason in LAYOUT_CHANGE_REASONS:
            self._layout_changes.child("merge" if reason == "quiet" else "split", reason)
        self._suppressed_splits = LabeledMetric(
            self._counter("splits_suppressed", "Segments that ought to split and may not, by the limit.", "limit"),
            SPLIT_LIMIT_REASONS,
        )

        self._pruned = self._counter("segments_pruned", "Segments that retention took from their layout.")

    def layout_changed_automatically(self, kind: str, reason: str) -> None:
        """Count an automatic change of a `LAYOUT_CHANGE_KINDS` kind for a `LAYOUT_CHANGE_REASONS` reason."""
        self._layout_changes.child(kind, reason).inc()

    def split_suppressed(self, limit: str) -> None:
        """Count a segment that a limit, one of `SPLIT_LIMIT_REASONS`, keeps from splitting."""
        self._suppressed_splits.child(limit).inc()

    def segments_pruned(self, count: int) -> None:
        """Count segments that left their layout."""
        self._pruned.inc(count)

    # --- what is around it --------------------------------------------------------------------------------------------

    def _create_dependency_metrics(self) -> None:
        self._broker = self._gauge("broker_connected", "1 while the MQTT broker is connected.")
        self._store_errors = LabeledMetric(
            self._counter("object_store_errors", "Failures of the object store, by operation.", "operation"),
            STORE_OPERATIONS,
        )
        self._lag = self._histogram("loop_lag_seconds", "By how much the event loop was late.", LAG_BUCKETS)
        build = self._gauge("build_info", "1; the labels tell what runs.", "version", "python")
        build.labels(version("headgate"), platform.python_version()).set(1)

    def broker_connected(self, connected: bool) -> None:
        """Set whether the broker is connected."""
        self._broker.set(connected)

    def store_succeeded(self) -> None:
        """Note that the object store did what was asked."""
        self.store_reachable = True

    def store_failed(self, operation: str) -> None:
        """Count a failure of the object store; ``operation`` is one of `STORE_OPERATIONS`."""
        self._store_errors.child(operation).inc()
        self.store_reachable = False

    def loop_lag_measured(self, seconds: float) -> None:
        """Note by how much the event loop was late."""
        self._lag.observe(seconds)

    def status_collected(self, status: DaemonStatus, now_seconds: float) -> None:
        """Set the gauges of what the daemon holds; ``now_seconds`` is the loop's clock."""
        blocked: dict[tuple[int, str, str, int], float] = {}
        for shard in status.shards:
            self._set_shard_gauges(shard)
            for subscription in shard.subscriptions:
                for progress in subscription.segments:
                    if progress.status == "blocked":
                        key = (shard.shard, subscription.topic, subscription.subscription, progress.segment)
                        blocked[key] = self._blocked_since.get(key, now_seconds)
        if self._zookeeper_connected or self._zookeeper_contact_at is None:
            self._zookeeper_contact_at = now_seconds
        self._zookeeper_contact_age.set(now_seconds - self._zookeeper_contact_at)
        self._blocked_since = blocked
        self._longest_blocked.set(now_seconds - min(blocked.values(), default=now_seconds))

    def _set_shard_gauges(self, shard: ShardStatus) -> None:
        number = shard.shard
        self._is_leader.child(number).set(shard.leading)
        self._epoch.child(number).set(shard.leader_epoch)
        self._head.child(number).set(shard.head)
        self._producers.child(number).set(shard.producers)
        self._in_flight.child(number).set(shard.in_flight_batches)
        self._queue.child(number).set(shard.queue_bytes)
        states = [segment.state for topic in shard.topics for segment in topic.segments]
        for state in SEGMENT_STATES:
            self._segments.child(number, state).set(states.count(state))
        connected = [consumer.connected for held in shard.subscriptions for consumer in held.consumers]
        self._consumers.child(number, "connected").set(connected.count(True))
        self._consumers.child(number, "in_grace").set(connected.count(False))
