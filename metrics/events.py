"""Events that the daemon reports to its observer: what has happened, as frozen values.

An event is reported and forgotten. A ledger entry is committed and replayed. Where both exist for
one fact they share a name (`events.SegmentGranted`, `entries.SegmentGranted`). Pure: no metric is
defined here.

Rules:

1. Names are in the past tense. Units are part of the field name.
2. Every subclass of `Event` is defined in this module, so that `EVENT_TYPES` is complete.
3. An observer neither blocks nor raises for a value.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from headgate.model.entries import LeaveReason, ReleaseReason
from headgate.views.backlogs import BacklogInfo
from metrics import label_values as labels
from metrics.status import ShardStatus


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened in the daemon."""


class Observer(Protocol):
    """Receives every event of the daemon."""

    def observe(self, event: Event) -> None:
        """Record ``event``. Does not block, and does not raise for any value in it."""


# Ingestion


class BatchJudged(Event, frozen=True):
    shard: int
    verdict: labels.BatchVerdict


class BatchCommitted(Event, frozen=True):
    """An accepted batch became durable, ``seconds`` after its verdict."""

    shard: int
    seconds: float


class ChunkCommitted(Event, frozen=True):
    """A chunk became durable. Its creation in the object store took ``seconds``."""

    shard: int
    seconds: float
    size_bytes: int
    records: int


class BarrierDelayed(Event, frozen=True):
    """A refusal waits, so that it shares an empty chunk with others."""

    shard: int


class IngestQueueResized(Event, frozen=True):
    """The number of accepted bytes in the pending chunk changed to ``size_bytes``."""

    shard: int
    size_bytes: int


class NamedProducerLimitSet(Event, frozen=True):
    """The settings allow ``producers`` named producers per shard."""

    producers: int


class IngestQueueLimitSet(Event, frozen=True):
    """The settings allow ``size_bytes`` of accepted bytes per shard."""

    size_bytes: int


class MalformedMessageReceived(Event, frozen=True):
    reason: labels.MalformedReason


class OversizedMessageWithheld(Event, frozen=True):
    """A reply or push was not sent because it exceeds the protocol's limit."""


class ForeignAnnouncementSeen(Event, frozen=True):
    """The leader found another announcement than its own at the broker, and published its own again."""

    shard: int


class ClientIdConflictSeen(Event, frozen=True):
    """A client connected although a newer program uses its client id."""


class AccessDenied(Event, frozen=True):
    """A request was refused because its user has no right to it."""


class QuotaExceeded(Event, frozen=True):
    """A request was refused because its user, or the owner of the topic, has reached a quota."""

    quota: labels.Quota


class ReplyDelayed(Event, frozen=True):
    """A reply waits because its user has spent a rate."""

    shard: int


class DelayedRepliesChanged(Event, frozen=True):
    """``replies`` replies wait because their users have spent a rate."""

    shard: int
    replies: int


class RequestWithoutEpochRejected(Event, frozen=True):
    """A client that is too old to send a leader epoch tried to produce."""

    shard: int


class RequestLimitReached(Event, frozen=True):
    """A request was refused as ``unavailable`` because as many of its kind as the limit permits wait."""

    limit: labels.RequestLimit


class DeviceRecordStored(Event, frozen=True):
    shard: int


class DeviceMessageRejected(Event, frozen=True):
    reason: labels.DeviceRejectionReason


class DeviceConfirmationEnded(Event, frozen=True):
    """An MQTT device asked for a confirmation of its message."""

    outcome: labels.DeviceConfirmationOutcome


class PendingDeviceRecordsChanged(Event, frozen=True):
    """``records`` records of MQTT devices are accepted and not durable yet."""

    shard: int
    records: int


class DeviceSessionsCounted(Event, frozen=True):
    shard: int
    state: labels.DeviceSessionState
    sessions: int


# Leadership


class TermStarted(Event, frozen=True):
    shard: int
    leader_epoch: int


class TermEnded(Event, frozen=True):
    """This daemon's term on a shard ended. ``reason`` is ``handover`` or an event of the leadership table."""

    shard: int
    reason: str


class TransferEnded(Event, frozen=True):
    """A transfer of a shard by this daemon ended, ``seconds`` after it stopped accepting requests for the successor."""

    shard: int
    reason: labels.TransferReason
    outcome: labels.TransferOutcome
    seconds: float


class ShardLoadReported(Event, frozen=True):
    shard: int
    load_bytes_per_second: int


class LedgerRestored(Event, frozen=True):
    """Before a term, the daemon read the last ``chunks`` chunks of a ledger and wrote its term chunk."""

    shard: int
    seconds: float
    chunks: int


class HeadAdvanced(Event, frozen=True):
    """``chunk`` is the newest durable chunk that this daemon knows of."""

    shard: int
    chunk: int


class ZooKeeperStateChanged(Event, frozen=True):
    state: labels.ZooKeeperState


class ZooKeeperRefused(Event, frozen=True):
    """ZooKeeper refuses this daemon's certificates, its user, or its rights to a node; or no longer."""

    refused: bool


class ForeignNodeFound(Event, frozen=True):
    """A node in ZooKeeper that no daemon of the cluster created was found, and is ignored."""


# Subscriptions


class ConsumerRegistered(Event, frozen=True):
    """A consumer joined, or replaced an earlier incarnation of itself."""


class ConsumerReconnected(Event, frozen=True):
    """A consumer reconnected within its grace period."""


class ConsumerDisconnected(Event, frozen=True):
    """A consumer stopped sending heartbeats, and its grace period began."""


class ConsumerRemoved(Event, frozen=True):
    reason: LeaveReason


class SegmentGranted(Event, frozen=True):
    """A consumer received a segment or a key-bucket range."""


class SegmentRevoked(Event, frozen=True):
    """A consumer was asked to release a segment or a key-bucket range."""


class HandoverFinished(Event, frozen=True):
    """A segment was granted again, ``seconds`` after its revocation. ``reason`` says how it was released."""

    seconds: float
    reason: ReleaseReason


class SegmentsDrained(Event, frozen=True):
    """``count`` segments became drained, ``waited_seconds`` after the last acknowledgement in one of them."""

    count: int
    waited_seconds: float


class AcknowledgementsOverLimit(Event, frozen=True):
    """``count`` acknowledgements of a QUEUE did not count, because they would open more gaps than are kept."""

    count: int


class SubscriptionSeekCompleted(Event, frozen=True):
    """A subscription was moved to another position."""


class SegmentWeightChanged(Event, frozen=True):
    change: labels.WeightChange


class DrainPollCompleted(Event, frozen=True):
    outcome: labels.PollOutcome


class BlockedSegmentsChanged(Event, frozen=True):
    """The number of blocked segments over all subscriptions rose or fell by ``change``."""

    change: int


# Layouts


class LayoutChanged(Event, frozen=True):
    """A segment was split or segments were merged, by a command or automatically."""

    kind: labels.LayoutChangeKind
    reason: labels.LayoutChangeReason


class SplitSuppressed(Event, frozen=True):
    """A limit prevents a segment from splitting. Reported once per segment and limit."""

    limit: labels.SplitLimit


class SegmentsPruned(Event, frozen=True):
    count: int


class PendingDeletionsCounted(Event, frozen=True):
    """``segments`` pruned segments still have data; the oldest deletion is ``overdue_seconds`` late."""

    shard: int
    segments: int
    overdue_seconds: float


class DataDeletionFailed(Event, frozen=True):
    """Deleting the data of pruned segments failed. The pruner retries."""


# Objects in the store


class SnapshotFound(Event, frozen=True):
    """The newest snapshot of a shard is that of ``chunk``."""

    shard: int
    chunk: int


class SnapshotOverdueMeasured(Event, frozen=True):
    """A snapshot has been due for ``seconds``; 0 if none is due, or if another daemon leads the shard."""

    shard: int
    seconds: float


class SnapshotJobFailed(Event, frozen=True):
    """A snapshot job failed for at least one shard."""


class SnapshotRejected(Event, frozen=True):
    """A snapshot was damaged or of another version, so that an older one was used."""

    shard: int


class ForeignObjectsFound(Event, frozen=True):
    """A listing showed ``count`` objects among the chunks of a shard whose names are not those of chunks."""

    shard: int
    count: int


class ObjectsCounted(Event, frozen=True):
    shard: int
    kind: labels.ObjectKind
    count: int


class CompactionAdvanced(Event, frozen=True):
    """Compaction covers all chunks up to ``chunk``; its objects hold ``size_bytes`` of keys and values."""

    shard: int
    chunk: int
    size_bytes: int


class ChunksDeleted(Event, frozen=True):
    shard: int
    count: int


class TrimFailed(Event, frozen=True):
    """A search for deletable chunks failed. The trimmer retries."""

    shard: int


# Drain service and backlogs


class DrainServiceStateChanged(Event, frozen=True):
    state: labels.DrainState


class DrainServiceRestarted(Event, frozen=True):
    """The daemon started the drain service again."""


class DrainCheckCompleted(Event, frozen=True):
    seconds: float


class DrainCheckFailed(Event, frozen=True):
    reason: labels.DrainFailure


class DrainWatermarkAdvanced(Event, frozen=True):
    """``chunk`` is the newest chunk that the drain service has counted."""

    shard: int
    chunk: int


class BacklogUpdated(Event, frozen=True):
    """The backlogs of all subscriptions of a shard, at ``now_ms`` of the leader's clock."""

    shard: int
    backlogs: tuple[BacklogInfo, ...]
    now_ms: int


# The daemon and what it depends on


class BrokerConnected(Event, frozen=True):
    """The connection to the MQTT broker was established."""


class BrokerDisconnected(Event, frozen=True):
    """The connection to the MQTT broker was lost."""


class BrokerSessionTakenOver(Event, frozen=True):
    """The broker accepts a connection of the daemon and ends it again and again."""

    connection: labels.BrokerConnectionKind


class BrokerDroppedMessages(Event, frozen=True):
    """The broker has dropped ``messages`` more, some of which it may have acknowledged."""

    messages: int


class StoreOperationSucceeded(Event, frozen=True):
    """The object store completed an operation. It says nothing about those of another kind."""

    operation: labels.StoreOperation


class StoreOperationFailed(Event, frozen=True):
    operation: labels.StoreOperation
    reason: str = ""


class LogLinesLost(Event, frozen=True):
    """The log did not accept lines, for example because its disk is full."""

    count: int


class HttpLimitReached(Event, frozen=True):
    """A connection was closed to accept another one, or none could be accepted for lack of file descriptors."""

    limit: labels.HttpLimit


class HttpStreamsChanged(Event, frozen=True):
    change: int


class ReloadFailed(Event, frozen=True):
    """SIGHUP was received, but settings or a file were unusable."""


class CertificateRead(Event, frozen=True):
    """The daemon's certificate for this use was read; it expires at this time, in seconds since 1970."""

    use: labels.CertificateUse
    expires_at_seconds: float


class FileSystemMeasured(Event, frozen=True):
    use: labels.FileSystemUse
    free_bytes: int
    size_bytes: int


class HttpDenied(Event, frozen=True):
    reason: labels.HttpDenial


class LoopLagMeasured(Event, frozen=True):
    """The event loop ran a timer ``seconds`` late."""

    seconds: float


class GarbageCollected(Event, frozen=True):
    """The garbage collector looked at all objects, or at the new ones, while the loop waited for ``seconds``."""

    scope: labels.CollectionScope
    seconds: float


class ClockStepHeld(Event, frozen=True):
    """The wall clock differs by ``seconds`` from the time that the daemon uses; 0: it does not."""

    seconds: float


class LedgerTimeCompared(Event, frozen=True):
    """The newest chunk of a shard led here is ``ahead_seconds`` ahead of this daemon's clock."""

    shard: int
    ahead_seconds: float


class StatusCollected(Event, frozen=True):
    """The status of all shards was taken at ``now_seconds`` of the loop's clock."""

    shards: tuple[ShardStatus, ...]
    now_seconds: float


EVENT_TYPES: Final = frozenset(Event.__subclasses__())
