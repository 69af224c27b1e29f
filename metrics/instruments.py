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
from metrics.families import WAIT_BUCKETS, Children, OneHot
from metrics.object_instruments import ObjectInstruments
from metrics.status import ShardSnapshot, Snapshot

BATCH_VERDICTS = ("accept", "duplicate", *get_args(Verdict))
MALFORMED_REASONS = ("too_large", "not_msgpack", "invalid", "protocol", "presence")
DEVICE_REFUSALS = ("unknown_topic", "external_topic", "empty_key", "too_large", "retained")
REIGN_ENDS = (
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
CHANGE_KINDS = ("split", "merge")
CHANGE_REASONS = ("rate", "bytes", "size", "consumers", "quiet")
WEIGHT_CHANGES = ("first", "heavier", "lighter")
SPLIT_LIMITS = ("hot_key", "max_segments", "waiting", "single_hash", "layout_full")

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
        self._make_ingest()
        self._make_leadership()
        self._make_subscriptions()
        self._make_layouts()
        self._make_surroundings()
        self._blocked_since: dict[tuple[int, str, str, int], float] = {}
        ProcessCollector(registry=registry)

    # --- ingestion ----------------------------------------------------------------------------------------------------

    def _make_ingest(self) -> None:
        self._batches = Children(
            self._counter("ingest_batches", "Batches judged, by verdict.", "shard", "verdict"), None, BATCH_VERDICTS
        )
        self._records = Children(self._counter("stored_records", "Records in durable chunks.", "shard"), None)
        self._bytes = Children(self._counter("stored_bytes", "Bytes of durable chunks.", "shard"), None)
        self._batch_durable = self._histogram(
            "batch_durable_seconds", "From the judging of an accepted batch to its durable chunk.", COMMIT_BUCKETS
        )
        self._chunk_commit = self._histogram(
            "chunk_commit_seconds", "Creation of a chunk in the object store.", COMMIT_BUCKETS
        )
        self._chunk_size = self._histogram("chunk_size_bytes", "Size of a chunk.", SIZE_BUCKETS)
        self._queue = Children(
            self._gauge("ingest_queue_bytes", "Accepted bytes that wait for the object store.", "shard"), None
        )
        self._queue_limit = self._gauge("ingest_queue_limit_bytes", "Most bytes that may wait, per shard.")
        self._in_flight = Children(
            self._gauge("inflight_batches", "Accepted batches that are not durable yet.", "shard"), None
        )
        self._producers = Children(self._gauge("known_producers", "Producers on record.", "shard"), None)
        self._malformed = Children(
            self._counter("malformed_messages", "Messages that are not of the protocol, by reason.", "reason"),
            MALFORMED_REASONS,
        )
        self._epochless = Children(
            self._counter("epochless_requests", "Batches refused because they name no leader epoch.", "shard"), None
        )
        self._device_records = Children(
            self._counter("device_records", "Records of plain devices in durable chunks.", "shard"), None
        )
        self._device_refusals = Children(
            self._counter("refused_device_messages", "Messages of plain devices thrown away, by reason.", "reason"),
            DEVICE_REFUSALS,
        )
        self._device_waiting = Children(
            self._gauge("device_waiting_records", "Records of plain devices that are not durable yet.", "shard"), None
        )
        self._device_sessions = Children(
            self._gauge("device_session_open", "1 while what devices publish, or published before, is read.", "shard"),
            None,
        )

    def batch_judged(self, shard: int, verdict: str) -> None:
        """Count one batch; ``verdict`` is one of `BATCH_VERDICTS`."""
        self._batches.of(shard, verdict).inc()

    def batch_durable(self, shard: int, seconds: float) -> None:  # noqa: ARG002 - shards share one histogram
        """Note how long an accepted batch took from judging to durable."""
        self._batch_durable.observe(seconds)

    def chunk_committed(self, shard: int, seconds: float, size_bytes: int, records: int) -> None:
        """Note one durable chunk."""
        self._chunk_commit.observe(seconds)
        self._chunk_size.observe(size_bytes)
        self._bytes.of(shard).inc(size_bytes)
        self._records.of(shard).inc(records)

    def queue_size(self, shard: int, size_bytes: int) -> None:
        """Set how many bytes wait in the chunk in the making."""
        self._queue.of(shard).set(size_bytes)

    def queue_limit(self, size_bytes: int) -> None:
        """Set the limit per shard, from the settings."""
        self._queue_limit.set(size_bytes)

    def message_malformed(self, reason: str) -> None:
        """Count a message that is not of the protocol; ``reason`` is one of `MALFORMED_REASONS`."""
        self._malformed.of(reason).inc()

    def epochless_refused(self, shard: int) -> None:
        """Count a batch from a client too old to be safe."""
        self._epochless.of(shard).inc()

    def device_stored(self, shard: int) -> None:
        """Count a durable record of a plain device."""
        self._device_records.of(shard).inc()

    def device_refused(self, reason: str) -> None:
        """Count a device's message that was thrown away; ``reason`` is one of `DEVICE_REFUSALS`."""
        self._device_refusals.of(reason).inc()

    def device_waiting(self, shard: int, records: int) -> None:
        """Set how many records of devices are taken and not durable."""
        self._device_waiting.of(shard).set(records)

    def device_session(self, shard: int, *, is_open: bool) -> None:
        """Set whether the session of devices is being read."""
        self._device_sessions.of(shard).set(is_open)

    # --- leadership ---------------------------------------------------------------------------------------------------

    def _make_leadership(self) -> None:
        self._leads = Children(self._gauge("shard_is_leader", "1 where this daemon leads the shard.", "shard"), None)
        self._epoch = Children(
            self._gauge("shard_leader_epoch", "Leader epoch of the newest reign this daemon knows of.", "shard"), None
        )
        self._head = Children(
            self._gauge("ledger_head_chunk", "Number of the newest durable chunk this daemon knows of.", "shard"), None
        )
        self._begun = Children(self._counter("begun_reigns", "Reigns that this daemon began.", "shard"), None)
        self._ended = Children(
            self._counter("ended_reigns", "Reigns of this daemon that ended, by reason.", "reason"), REIGN_ENDS
        )
        self._restore = self._histogram(
            "restore_seconds", "Reading the ledger to its end and writing the reign chunk.", WAIT_BUCKETS
        )
        self._restored = self._counter("restored_chunks", "Chunks that were still to be read before a reign.")
        self._zookeeper = OneHot(
            self._gauge("zookeeper_state", "1 for the state of the ZooKeeper session.", "state"), ZOOKEEPER_STATES
        )
        self._in_contact = False
        self._contact_at: float | None = None
        self._contact = self._gauge("zookeeper_contact_age_seconds", "Since ZooKeeper was last known in reach.")

    def reign_began(self, shard: int, epoch: int) -> None:
        """Note that this daemon leads."""
        self._begun.of(shard).inc()
        self._leads.of(shard).set(1)
        self._epoch.of(shard).set(epoch)

    def reign_ended(self, shard: int, reason: str) -> None:
        """Note that it no longer does; ``reason`` is one of `REIGN_ENDS`. What was queued went with the reign."""
        self._ended.of(reason).inc()
        self._leads.of(shard).set(0)
        self._queue.of(shard).set(0)
        self._in_flight.of(shard).set(0)
        self._device_waiting.of(shard).set(0)
        self._device_sessions.of(shard).set(0)
        self.deletions_pending(shard, 0, 0)
        self.backlog_forgotten(shard)

    def restored(self, shard: int, seconds: float, chunks: int) -> None:  # noqa: ARG002 - shards share one histogram
        """Note how long the ledger took to read before a reign."""
        self._restore.observe(seconds)
        self._restored.inc(chunks)

    def head_moved(self, shard: int, chunk: int) -> None:
        """Set the newest durable chunk."""
        self._head.of(shard).set(chunk)

    def zookeeper_state(self, state: str) -> None:
        """Set the session's state, one of `ZOOKEEPER_STATES`."""
        self._zookeeper.turn_to(state)
        self._in_contact = state == "connected"

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def _make_subscriptions(self) -> None:
        self._consumers = Children(
            self._gauge("consumers", "Consumers on record, connected or in their grace period.", "shard", "state"),
            None,
            ("connected", "in_grace"),
        )
        self._segments = Children(
            self._gauge("segments", "Segments of all topics.", "shard", "state"), None, SEGMENT_STATES
        )
        self._registered = self._counter("registered_consumers", "Consumers that joined.")
        self._reconnected = self._counter("reconnected_consumers", "Consumers back within their grace period.")
        self._silent = self._counter("silent_consumers", "Consumers that went silent.")
        self._gone = Children(
            self._counter("departed_consumers", "Consumers that are gone, by reason; evicted is ours.", "reason"),
            get_args(LeaveReason),
        )
        self._granted = self._counter("granted_segments", "Grants.")
        self._revoked = self._counter("revoked_segments", "Revocations.")
        self._handover = Children(
            self._histogram(
                "handover_seconds",
                "From a revocation to the next grant, by how it was released.",
                WAIT_BUCKETS,
                "reason",
            ),
            get_args(ReleaseReason),
        )
        self._blocked = self._gauge("blocked_segments", "Segments held back until their ancestors are drained.")
        self._blocked_longest = self._gauge(
            "blocked_longest_seconds", "How long the longest blocked segment has been seen blocked."
        )
        self._weighed = Children(
            self._counter("weight_changes", "Segments balanced by load that changed their weight.", "change"),
            WEIGHT_CHANGES,
        )
        self._drained = self._counter("drained_segments", "Segments that became drained.")
        self._drain_wait = self._histogram(
            "drain_wait_seconds",
            "From the acknowledgement of a sealed end to the release of what waited.",
            WAIT_BUCKETS,
        )
        self._seeks = self._counter("sought_subscriptions", "Seeks of subscriptions.")
        self._polls = Children(self._counter("drain_polls", "Drain polls, by outcome.", "outcome"), POLL_OUTCOMES)

    def consumer_registered(self) -> None:
        """Count a consumer that joined."""
        self._registered.inc()

    def consumer_reconnected(self) -> None:
        """Count a consumer that came back in time."""
        self._reconnected.inc()

    def consumer_silent(self) -> None:
        """Count a consumer whose grace period began."""
        self._silent.inc()

    def consumer_gone(self, reason: str) -> None:
        """Count a consumer that is gone; ``reason`` is a `headgate.model.entries.LeaveReason`."""
        self._gone.of(reason).inc()

    def segment_granted(self) -> None:
        """Count one grant."""
        self._granted.inc()

    def segment_revoked(self) -> None:
        """Count one revocation."""
        self._revoked.inc()

    def handover_finished(self, seconds: float, reason: str) -> None:
        """Note how long a handover took; ``reason`` is a `headgate.model.entries.ReleaseReason`."""
        self._handover.of(reason).observe(seconds)

    def segments_drained(self, count: int, waited_seconds: float) -> None:
        """Note newly drained segments, and how long ago the last acknowledgement of one of them came in."""
        self._drained.inc(count)
        self._drain_wait.observe(waited_seconds)

    def subscription_sought(self) -> None:
        """Count one seek."""
        self._seeks.inc()

    def segment_weighed(self, change: str) -> None:
        """Count a segment whose weight changed; ``change`` is one of `WEIGHT_CHANGES`."""
        self._weighed.of(change).inc()

    def drain_poll(self, outcome: str) -> None:
        """Count one poll; ``outcome`` is one of `POLL_OUTCOMES`."""
        self._polls.of(outcome).inc()

    def blocked_changed(self, change: int) -> None:
        """Raise or lower the number of blocked segments."""
        self._blocked.inc(change)

    # --- layouts ------------------------------------------------------------------------------------------------------

    def _make_layouts(self) -> None:
        self._changes = Children(
            self._counter("automatic_changes", "Automatic splits and merges, by kind and reason.", "kind", "reason"),
            CHANGE_KINDS,
            CHANGE_REASONS,
        )
        for reason in CHANGE_REASONS:
            self._changes.of("merge" if reason == "quiet" else "split", reason)
        self._held_splits = Children(
            self._counter("held_splits", "Segments that ought to split and may not, by the limit.", "limit"),
            SPLIT_LIMITS,
        )

        self._pruned = self._counter("pruned_segments", "Segments that retention took from their layout.")

    def layout_changed_automatically(self, kind: str, reason: str) -> None:
        """Count an automatic change; ``kind`` and ``reason`` are of `CHANGE_KINDS` and `CHANGE_REASONS`."""
        self._changes.of(kind, reason).inc()

    def split_held(self, limit: str) -> None:
        """Count a segment that a limit, one of `SPLIT_LIMITS`, keeps from splitting."""
        self._held_splits.of(limit).inc()

    def segments_pruned(self, count: int) -> None:
        """Count segments that left their layout."""
        self._pruned.inc(count)

    # --- what is around it --------------------------------------------------------------------------------------------

    def _make_surroundings(self) -> None:
        self._broker = self._gauge("broker_connected", "1 while the MQTT broker is connected.")
        self._store_errors = Children(
            self._counter("store_errors", "Failures of the object store, by operation.", "operation"), STORE_OPERATIONS
        )
        self._lag = self._histogram("loop_lag_seconds", "By how much the event loop was late.", LAG_BUCKETS)
        build = self._gauge("build_info", "1; the labels tell what runs.", "version", "python")
        build.labels(version("headgate"), platform.python_version()).set(1)

    def broker_connected(self, connected: bool) -> None:
        """Set whether the broker is connected."""
        self._broker.set(connected)

    def store_answered(self) -> None:
        """Note that the object store did what was asked."""
        self.store_reachable = True

    def store_error(self, operation: str) -> None:
        """Count a failure of the object store; ``operation`` is one of `STORE_OPERATIONS`."""
        self._store_errors.of(operation).inc()
        self.store_reachable = False

    def loop_lag(self, seconds: float) -> None:
        """Note by how much the event loop was late."""
        self._lag.observe(seconds)

    def snapshot_taken(self, snapshot: Snapshot, now_seconds: float) -> None:
        """Set the gauges of what the daemon holds; ``now_seconds`` is the loop's clock."""
        blocked: dict[tuple[int, str, str, int], float] = {}
        for shard in snapshot.shards:
            self._hold(shard)
            for subscription in shard.subscriptions:
                for progress in subscription.segments:
                    if progress.status == "blocked":
                        key = (shard.shard, subscription.topic, subscription.subscription, progress.segment)
                        blocked[key] = self._blocked_since.get(key, now_seconds)
        if self._in_contact or self._contact_at is None:
            self._contact_at = now_seconds
        self._contact.set(now_seconds - self._contact_at)
        self._blocked_since = blocked
        self._blocked_longest.set(now_seconds - min(blocked.values(), default=now_seconds))

    def _hold(self, shard: ShardSnapshot) -> None:
        number = shard.shard
        self._leads.of(number).set(shard.leading)
        self._epoch.of(number).set(shard.leader_epoch)
        self._head.of(number).set(shard.head)
        self._producers.of(number).set(shard.producers)
        self._in_flight.of(number).set(shard.in_flight_batches)
        self._queue.of(number).set(shard.queue_bytes)
        states = [segment.state for topic in shard.topics for segment in topic.segments]
        for state in SEGMENT_STATES:
            self._segments.of(number, state).set(states.count(state))
        connected = [consumer.connected for held in shard.subscriptions for consumer in held.consumers]
        self._consumers.of(number, "connected").set(connected.count(True))
        self._consumers.of(number, "in_grace").set(connected.count(False))
