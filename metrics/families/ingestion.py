"""Metrics of ingestion: batches, chunks, the ingest queue, and MQTT devices."""

from __future__ import annotations

from typing import Final, get_args

from metrics import events
from metrics.label_values import (
    BatchVerdict,
    DeviceConfirmationOutcome,
    DeviceRejectionReason,
    DeviceSessionState,
    MalformedReason,
    Quota,
    RequestLimit,
)
from metrics.metric_factory import MetricFactory

BATCH_VERDICTS: Final = get_args(BatchVerdict)
COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: from half a millisecond on a local disk to the time after which the outcome of a write
is unknown."""
SIZE_BUCKETS: Final = (1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6)
"""Bytes of a chunk: from a term chunk to a full ingest queue."""


def add_ingestion_metrics(metrics: MetricFactory) -> None:
    """Create the metrics of ingestion. A term's end resets what its leader held in memory."""
    metrics.count(
        events.BatchJudged, "batches_judged", "Batches judged, by verdict.", shard=None, verdict=BATCH_VERDICTS
    )
    metrics.time(
        events.BatchCommitted,
        "batch_commit_seconds",
        "Time from a batch's verdict to its durable chunk.",
        COMMIT_BUCKETS,
    )
    _add_chunk_metrics(metrics)
    _add_message_metrics(metrics)
    _add_quota_metrics(metrics)
    _add_gauges(metrics)
    _add_device_metrics(metrics)


def _add_message_metrics(metrics: MetricFactory) -> None:
    metrics.count(
        events.MalformedMessageReceived,
        "messages_malformed",
        "Messages that do not follow the protocol, by reason.",
        reason=get_args(MalformedReason),
    )
    metrics.count(
        events.OversizedMessageWithheld,
        "messages_too_large",
        "Replies and pushes that were not sent because they exceed the protocol's limit.",
    )
    metrics.count(
        events.RequestWithoutEpochRejected,
        "requests_without_epoch",
        "Batches rejected because they contain no leader epoch.",
        shard=None,
    )
    metrics.count(
        events.RequestLimitReached,
        "requests_over_limit",
        "Requests refused because as many of their kind as the limit permits wait. Clients repeat them.",
        limit=get_args(RequestLimit),
    )


def _add_gauges(metrics: MetricFactory) -> None:
    """Create the gauges of what a leader holds in memory."""
    queue = metrics.gauge_of(
        events.IngestQueueResized,
        "size_bytes",
        "ingest_queue_bytes",
        "Accepted bytes waiting for the object store.",
        shard=None,
    )
    metrics.gauge_of(
        events.IngestQueueLimitSet,
        "size_bytes",
        "ingest_queue_limit_bytes",
        "Accepted bytes that may wait for the object store, per shard.",
    )
    in_flight = metrics.gauge("batches_in_flight", "Accepted batches that are not durable yet.", shard=None)
    waiting = metrics.gauge(
        "requests_waiting", "Large queries and commands that are being answered, or wait for that.", shard=None
    )
    producers = metrics.gauge("producers", "Known producers, named and anonymous.", shard=None)
    metrics.gauge_of(
        events.NamedProducerLimitSet,
        "producers",
        "named_producers_limit",
        "Named producers that are allowed, per shard.",
    )
    named = metrics.gauge("named_producers", "Named producers, which are kept until they are deleted.", shard=None)

    def set_held(event: events.StatusCollected) -> None:
        for shard in event.shards:
            producers.child(shard.shard).set(shard.producers)
            named.child(shard.shard).set(shard.named_producers)
            in_flight.child(shard.shard).set(shard.in_flight_batches)
            waiting.child(shard.shard).set(shard.waiting_requests)
            queue.child(shard.shard).set(shard.queue_bytes)

    def reset(event: events.TermEnded) -> None:
        queue.child(event.shard).set(0)
        in_flight.child(event.shard).set(0)
        waiting.child(event.shard).set(0)

    metrics.on(events.StatusCollected, set_held)
    metrics.on(events.TermEnded, reset)


def _add_chunk_metrics(metrics: MetricFactory) -> None:
    metrics.count(events.ChunkCommitted, "records_stored", "Records in durable chunks.", by="records", shard=None)
    metrics.count(events.ChunkCommitted, "chunks_stored_bytes", "Bytes of durable chunks.", by="size_bytes", shard=None)
    metrics.count(
        events.BarrierDelayed,
        "barriers_delayed",
        "Refusals that waited, at most a second, to share an empty chunk.",
        shard=None,
    )
    metrics.time(
        events.ChunkCommitted, "chunk_commit_seconds", "Time to create a chunk in the object store.", COMMIT_BUCKETS
    )
    metrics.time(events.ChunkCommitted, "chunk_size_bytes", "Size of a chunk.", SIZE_BUCKETS, field="size_bytes")


def _add_quota_metrics(metrics: MetricFactory) -> None:
    metrics.count(
        events.QuotaExceeded,
        "quota_exceeded",
        "Requests that were refused because a user has reached a quota.",
        quota=get_args(Quota),
    )
    metrics.count(
        events.ReplyDelayed,
        "replies_delayed",
        "Replies that waited, at most a second, because their user has spent a rate.",
        shard=None,
    )
    waiting = metrics.gauge_of(
        events.DelayedRepliesChanged,
        "replies",
        "replies_waiting",
        "Replies that wait because their users have spent a rate.",
        shard=None,
    )
    metrics.on(events.TermEnded, lambda event: waiting.child(event.shard).set(0))


def _add_device_metrics(metrics: MetricFactory) -> None:
    metrics.count(
        events.DeviceRecordStored, "device_records_stored", "Records of MQTT devices in durable chunks.", shard=None
    )
    metrics.count(
        events.DeviceMessageRejected,
        "device_messages_rejected",
        "Messages of MQTT devices that were dropped, by reason.",
        reason=get_args(DeviceRejectionReason),
    )
    metrics.count(
        events.DeviceConfirmationEnded,
        "device_confirmations",
        "Confirmations that MQTT devices asked for: sent, not sent, or refused because of their response topic.",
        outcome=get_args(DeviceConfirmationOutcome),
    )
    pending = metrics.gauge_of(
        events.PendingDeviceRecordsChanged,
        "records",
        "device_records_pending",
        "Records of MQTT devices that are not durable yet.",
        shard=None,
    )
    metrics.on(events.TermEnded, lambda event: pending.child(event.shard).set(0))
    metrics.gauge_of(
        events.DeviceSessionsCounted,
        "sessions",
        "device_sessions",
        "MQTT sessions at the broker, one per topic with records: subscribed, missing although wanted, or ending.",
        shard=None,
        state=get_args(DeviceSessionState),
    )
