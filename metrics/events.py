"""Events that the daemon reports to its observer: what has happened, as frozen values.

An event is reported and forgotten. A ledger entry is committed and replayed. Where both exist for
one fact they share a name (`events.SegmentGranted`, `entries.SegmentGranted`). Pure.

Rules:

1. Names are in the past tense. Units are part of the field name.
2. Every subclass of `Event` is defined in this module, so that `EVENT_TYPES` is complete.
3. An event declares the metrics that it alone updates; its docstring is their text. `metrics.instruments` has more.
4. An observer neither blocks nor raises for a value.
"""

from typing import ClassVar, Final, Protocol

import msgspec

from headgate.model.entries import LeaveReason
from headgate.views.subscriptions import BacklogInfo
from metrics import label_values as labels
from metrics.declared import COMMIT_BUCKETS, LAG_BUCKETS, SIZE_BUCKETS, WAIT_BUCKETS, Metric, counted, measured, shown
from metrics.status import ShardStatus


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened in the daemon."""

    exported: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that it updates (`metrics.declared`)."""


class ShardEvent(Event, frozen=True):
    """Something that happened to a shard."""

    shard: int


class Observer(Protocol):
    """Receives every event of the daemon."""

    def observe(self, event: Event) -> None:
        """Record ``event``. Does not block, and does not raise for any value in it."""


# Ingestion


@counted("batches_judged", "shard", "verdict")
class BatchJudged(ShardEvent, frozen=True):
    """Batches judged, by verdict."""

    verdict: labels.BatchVerdict


@measured("batch_commit_seconds", COMMIT_BUCKETS)
class BatchCommitted(ShardEvent, frozen=True):
    """Time from a batch's verdict to its durable chunk."""

    seconds: float


@counted("records_stored", "shard", by="records", text="Records in durable chunks.")
@counted("chunks_stored_bytes", "shard", by="size_bytes", text="Bytes of durable chunks.")
@measured("chunk_commit_seconds", COMMIT_BUCKETS, text="Time to create a chunk in the object store.")
@measured("chunk_size_bytes", SIZE_BUCKETS, field="size_bytes", text="Size of a chunk.")
class ChunkCommitted(ShardEvent, frozen=True):
    """A chunk became durable. Its creation in the object store took ``seconds``."""

    seconds: float
    size_bytes: int
    records: int


@counted("chunks_announced", "shard")
class ChunkAnnounced(ShardEvent, frozen=True):
    """Chunks that were sent to consumers at the end of the shard."""


@counted("barriers_delayed", "shard")
class BarrierDelayed(ShardEvent, frozen=True):
    """Refusals that waited, at most a second, to share an empty chunk."""


@shown("named_producers_limit", "producers")
class NamedProducerLimitSet(Event, frozen=True):
    """Named producers that are allowed, per shard."""

    producers: int


@shown("ingest_queue_limit_bytes", "size_bytes")
class IngestQueueLimitSet(Event, frozen=True):
    """Accepted bytes that may wait for the object store, per shard."""

    size_bytes: int


@counted("messages_malformed", "reason")
class MalformedMessageReceived(Event, frozen=True):
    """Messages that do not follow the protocol, or are for another ledger, by reason."""

    reason: labels.MalformedReason


@counted("messages_too_large")
class OversizedMessageWithheld(Event, frozen=True):
    """Replies and pushes that were not sent because they exceed the protocol's limit."""


@counted("foreign_announcements", "shard")
class ForeignAnnouncementSeen(ShardEvent, frozen=True):
    """Announcements of this daemon's shards that another program replaced, and that were corrected, by shard."""


@counted("client_id_conflicts")
class ClientIdConflictSeen(Event, frozen=True):
    """Connections of clients whose client id is used by a newer program, too."""


@counted("access_denied")
class AccessDenied(Event, frozen=True):
    """Requests that were refused because their user has no right to them."""


@counted("quota_exceeded", "quota")
class QuotaExceeded(Event, frozen=True):
    """Requests that were refused because a user has reached a quota."""

    quota: labels.Quota


@counted("replies_delayed", "shard")
class ReplyDelayed(ShardEvent, frozen=True):
    """Replies that waited, at most a second, because their user has spent a rate."""


@shown("replies_waiting", "replies", "shard")
class DelayedRepliesChanged(ShardEvent, frozen=True):
    """Replies that wait because their users have spent a rate."""

    replies: int


@counted("requests_over_limit", "limit")
class RequestLimitReached(Event, frozen=True):
    """Requests refused because as many of their kind as the limit permits wait. Clients repeat them."""

    limit: labels.RequestLimit


@counted("device_records_stored", "shard")
class DeviceRecordStored(ShardEvent, frozen=True):
    """Records of MQTT devices in durable chunks."""


@counted("device_messages_rejected", "reason")
class DeviceMessageRejected(Event, frozen=True):
    """Messages of MQTT devices that were dropped, by reason."""

    reason: labels.DeviceRejectionReason


@counted("device_confirmations", "outcome")
class DeviceConfirmationEnded(Event, frozen=True):
    """Confirmations that MQTT devices asked for: sent, not sent, or refused because of their response topic."""

    outcome: labels.DeviceConfirmationOutcome


@shown("device_records_pending", "records", "shard")
class PendingDeviceRecordsChanged(ShardEvent, frozen=True):
    """Records of MQTT devices that are not durable yet."""

    records: int


@shown("device_sessions", "sessions", "shard", "state")
class DeviceSessionsCounted(ShardEvent, frozen=True):
    """MQTT sessions at the broker, one per topic with records: subscribed, missing although wanted, or ending."""

    state: labels.DeviceSessionState
    sessions: int


# Leadership


@counted("leader_terms_started", "shard")
class TermStarted(ShardEvent, frozen=True):
    """Terms that this daemon started."""


class TermEnded(ShardEvent, frozen=True):
    """This daemon's term on a shard ended. ``reason`` is ``handover`` or an event of the leadership table."""

    reason: str


@counted(
    "shard_transfers",
    "reason",
    "outcome",
    text="Transfers of shards from this daemon to another one, by reason and outcome.",
)
class TransferEnded(ShardEvent, frozen=True):
    """A transfer of a shard by this daemon ended, ``seconds`` after it stopped accepting requests for the successor."""

    reason: labels.TransferReason
    outcome: labels.TransferOutcome
    seconds: float


@shown(
    "shard_load_bytes_per_second",
    "load_bytes_per_second",
    "shard",
    text="Load of a shard led here, as reported to the other daemons: received bytes, and 16 KiB for each message.",
)
@counted("shard_loads_reported", text="Changed loads that were written to ZooKeeper.")
class ShardLoadReported(ShardEvent, frozen=True):
    load_bytes_per_second: int


@measured("restore_seconds", WAIT_BUCKETS, text="Time to read the ledger to its end and to write the term chunk.")
@counted("chunks_restored", by="chunks", text="Chunks read at the start of a term.")
class LedgerRestored(ShardEvent, frozen=True):
    """Before a term, the daemon read the last ``chunks`` chunks of a ledger and wrote its term chunk."""

    seconds: float
    chunks: int


class ZooKeeperStateChanged(Event, frozen=True):
    state: labels.ZooKeeperState


@shown("zookeeper_refused", "refused")
class ZooKeeperRefused(Event, frozen=True):
    """1 while ZooKeeper refuses this daemon's certificates, its user, or its rights to a node."""

    refused: bool


@counted("zookeeper_foreign_nodes")
class ForeignNodeFound(Event, frozen=True):
    """Nodes in ZooKeeper that no daemon of the cluster created. They are ignored; the log names each."""


# Subscriptions


@counted("consumers_registered")
class ConsumerRegistered(Event, frozen=True):
    """Consumers that registered."""


@counted("consumers_reconnected")
class ConsumerReconnected(Event, frozen=True):
    """Consumers that reconnected within their grace period."""


@counted("consumers_disconnected")
class ConsumerDisconnected(Event, frozen=True):
    """Consumers that stopped sending heartbeats."""


@counted("consumers_removed", "reason")
class ConsumerRemoved(Event, frozen=True):
    """Consumers removed, by reason."""

    reason: LeaveReason


@counted("segments_granted")
class SegmentGranted(Event, frozen=True):
    """Segments granted to consumers."""


@counted("segments_revoked")
class SegmentRevoked(Event, frozen=True):
    """Segments revoked from consumers."""


@measured("handover_seconds", WAIT_BUCKETS, "reason")
class HandoverFinished(Event, frozen=True):
    """Time from a revocation to the next grant, by how the segment was released."""

    seconds: float
    reason: labels.HandoverReason


@counted("segments_drained", by="count", text="Segments that became drained.")
@measured(
    "drain_wait_seconds",
    WAIT_BUCKETS,
    field="waited_seconds",
    text="Time from the last acknowledgement in a sealed segment to its release of the blocked segments.",
)
class SegmentsDrained(Event, frozen=True):
    """``count`` segments became drained, ``waited_seconds`` after the last acknowledgement in one of them."""

    count: int
    waited_seconds: float


@counted("acknowledgements_over_limit", by="count")
class AcknowledgementsOverLimit(Event, frozen=True):
    """Acknowledgements of QUEUE subscriptions that did not count, because they would open more gaps than are kept."""

    count: int


@counted("redeliveries", "outcome", by="count")
class DeliveriesJudged(Event, frozen=True):
    """Deliveries of QUEUE subscriptions that failed, waited at the limit of such records, or ended in a dead letter."""

    count: int
    outcome: labels.DeliveryOutcome


@counted("segments_stalled", "outcome")
class SegmentStalled(Event, frozen=True):
    """Segments whose consumer made no progress for too long, by whether another one could take them."""

    outcome: labels.StallOutcome


@counted("subscription_seeks")
class SubscriptionSeekCompleted(Event, frozen=True):
    """Seeks of subscriptions."""


@counted("segment_weights_changed", "change")
class SegmentWeightChanged(Event, frozen=True):
    """Changes of the weights of segments that are balanced by load, by direction."""

    change: labels.WeightChange


@counted("drain_polls", "outcome")
class DrainPollCompleted(Event, frozen=True):
    """Drain polls, by outcome."""

    outcome: labels.PollOutcome


# Layouts


@counted("layout_changes", "kind", "reason")
class LayoutChanged(Event, frozen=True):
    """Splits, merges and rolls, by kind and reason. command: not automatic."""

    kind: labels.LayoutChangeKind
    reason: labels.LayoutChangeReason


@counted("splits_suppressed", "limit")
class SplitSuppressed(Event, frozen=True):
    """Segments that a limit prevents from splitting, by limit. Reported once per segment and limit."""

    limit: labels.SplitLimit


@counted("segments_pruned", by="count")
class SegmentsPruned(Event, frozen=True):
    """Segments that retention removed."""

    count: int


@counted("retention_dropped_records", by="count")
class RecordsDropped(Event, frozen=True):
    """Records that retention removed before a subscription had acknowledged them."""

    count: int


@shown("segment_deletions_pending", "segments", "shard", text="Pruned segments whose data has not been deleted yet.")
@shown(
    "deletion_overdue_seconds",
    "overdue_seconds",
    "shard",
    text="How late the deletion of the data of pruned segments is; 0 if none is late.",
)
class PendingDeletionsCounted(ShardEvent, frozen=True):
    """``segments`` pruned segments still have data; the oldest deletion is ``overdue_seconds`` late."""

    segments: int
    overdue_seconds: float


@counted("segment_deletions_failed")
class DataDeletionFailed(Event, frozen=True):
    """Failed deletions of the data of pruned segments.

    The pruner retries.
    """


# Objects in the store


@shown("snapshot_newest_chunk", "chunk", "shard")
class SnapshotFound(ShardEvent, frozen=True):
    """Chunk of the newest snapshot that this daemon knows of."""

    chunk: int


@shown("snapshot_overdue_seconds", "seconds", "shard")
class SnapshotOverdueMeasured(ShardEvent, frozen=True):
    """How long a snapshot has been due, for shards that this daemon leads; 0 if none is due."""

    seconds: float


@counted("snapshot_failures")
class SnapshotJobFailed(Event, frozen=True):
    """Snapshot jobs that failed."""


@counted("snapshots_unusable", "shard")
class SnapshotRejected(ShardEvent, frozen=True):
    """Snapshots that were unusable, so that an older one was read."""


@shown("ledger_foreign_objects", "count", "shard")
class ForeignObjectsFound(ShardEvent, frozen=True):
    """Objects among the chunks of a shard that headgate did not name. They are skipped; the log names them."""

    count: int


@shown("ledger_objects", "count", "shard", "kind")
class ObjectsCounted(ShardEvent, frozen=True):
    """Objects of a shard that this daemon leads, by kind."""

    kind: labels.ObjectKind
    count: int


@shown("compacted_chunk", "chunk", "shard", text="Last chunk that is compacted.")
@shown("compacted_bytes", "size_bytes", "shard", text="Bytes of keys and values in compacted objects.")
class CompactionAdvanced(ShardEvent, frozen=True):
    """Compaction covers all chunks up to ``chunk``; its objects hold ``size_bytes`` of keys and values."""

    chunk: int
    size_bytes: int


@counted("chunks_deleted", "shard", by="count")
class ChunksDeleted(ShardEvent, frozen=True):
    """Chunks deleted after compaction."""

    count: int


@counted("trim_failures", "shard")
class TrimFailed(ShardEvent, frozen=True):
    """Failed searches for deletable chunks. The trimmer retries."""


# Drain service and backlogs


class DrainServiceStateChanged(Event, frozen=True):
    state: labels.DrainState


@counted("drain_service_restarts")
class DrainServiceRestarted(Event, frozen=True):
    """Restarts of the drain service by this daemon."""


@measured("drain_check_seconds", WAIT_BUCKETS)
class DrainCheckCompleted(Event, frozen=True):
    """Response time of the drain service."""

    seconds: float


@counted("drain_check_failures", "reason")
class DrainCheckFailed(Event, frozen=True):
    """Queries that the drain service did not answer, and published results that were not usable, by reason.

    denied: it has another secret or user than this daemon. wrong_ledger: it counts another ledger.
    """

    reason: labels.DrainFailure


@shown("drain_watermark_chunk", "chunk", "shard")
class DrainWatermarkAdvanced(ShardEvent, frozen=True):
    """Newest chunk that the drain service has counted."""

    chunk: int


class BacklogUpdated(ShardEvent, frozen=True):
    """The backlogs of all subscriptions of a shard, at ``now_ms`` of the leader's clock."""

    backlogs: tuple[BacklogInfo, ...]
    now_ms: int


# The daemon and what it depends on


@shown("broker_connected", "connected")
class BrokerConnectionChanged(Event, frozen=True):
    """1 while the MQTT broker is connected."""

    connected: bool


@counted("broker_sessions_taken_over", "connection")
class BrokerSessionTakenOver(Event, frozen=True):
    """Connections that the broker accepted and soon ended, from the third in a row.

    Another program uses the client id of the daemon, or of a session for MQTT devices (connection).
    """

    connection: labels.BrokerConnectionKind


@counted("broker_messages_dropped", by="messages")
class BrokerDroppedMessages(Event, frozen=True):
    """Messages that the broker dropped for a slow or absent reader since this daemon first saw its counter.

    Every daemon counts the same ones. The broker may have acknowledged some of them.
    """

    messages: int


class StoreOperationSucceeded(Event, frozen=True):
    """The object store completed an operation. It says nothing about those of another kind."""

    operation: labels.StoreOperation


@counted("object_store_errors", "operation")
class StoreOperationFailed(Event, frozen=True):
    """Failed operations of the object store, by operation."""

    operation: labels.StoreOperation
    reason: str = ""


@counted("log_lines_lost", by="count")
class LogLinesLost(Event, frozen=True):
    """Lines that the log of the daemon, or of its Spark process, did not accept, as on a full disk. Both continue."""

    count: int


@counted("http_limit_reached", "limit")
class HttpLimitReached(Event, frozen=True):
    """HTTP connections and status pages that a limit closed, refused or dropped.

    connections: closed to accept another one. descriptors: not accepted for lack of file descriptors. streams: status
    pages that were refused because too many are open. slow_stream: pages that were dropped because they took no data.
    """

    limit: labels.HttpLimit


class HttpStreamsChanged(Event, frozen=True):
    change: int


@counted("reload_failures")
class ReloadFailed(Event, frozen=True):
    """Signals to read the settings again that changed nothing, because settings or a file were unusable."""


@shown("certificate_expiry_timestamp_seconds", "expires_at_seconds", "use")
class CertificateRead(Event, frozen=True):
    """When a certificate of the daemon expires, in seconds since 1970."""

    use: labels.CertificateUse
    expires_at_seconds: float


@shown(
    "file_system_free_bytes",
    "free_bytes",
    "use",
    text="Bytes that the daemon may still write to the file system of the ledger, or of Spark's folder: "
    "no larger a share than that of its inodes.",
)
@shown(
    "file_system_size_bytes", "size_bytes", "use", text="Size of the file system of the ledger, or of Spark's folder."
)
class FileSystemMeasured(Event, frozen=True):
    use: labels.FileSystemUse
    free_bytes: int
    size_bytes: int


@counted("http_denied", "reason")
class HttpDenied(Event, frozen=True):
    """HTTP requests and TLS handshakes that were refused, by reason."""

    reason: labels.HttpDenial


@measured("loop_lag_seconds", LAG_BUCKETS)
class LoopLagMeasured(Event, frozen=True):
    """How late the event loop ran a timer."""

    seconds: float


@measured("garbage_collection_seconds", LAG_BUCKETS, "scope")
class GarbageCollected(Event, frozen=True):
    """Collections of cyclic garbage, during which the event loop waits, by what they look at."""

    scope: labels.CollectionScope
    seconds: float


@shown("clock_step_held_seconds", "seconds")
class ClockStepHeld(Event, frozen=True):
    """Step of this machine's clock that the daemon does not follow yet; negative: backward, 0: none."""

    seconds: float


@shown("ledger_time_ahead_seconds", "ahead_seconds", "shard")
class LedgerTimeCompared(ShardEvent, frozen=True):
    """How far the newest chunk of a shard led here is ahead of this machine's clock. Nothing expires meanwhile."""

    ahead_seconds: float


class StatusCollected(Event, frozen=True):
    """The status of all shards was taken at ``now_seconds`` of the loop's clock."""

    shards: tuple[ShardStatus, ...]
    now_seconds: float


EVENT_TYPES: Final = frozenset((*Event.__subclasses__(), *ShardEvent.__subclasses__())) - {ShardEvent}


class NoopObserver:
    def observe(self, event: Event) -> None:
        """See `metrics.events.Observer`."""
