"""Metrics of the process and its dependencies: broker, object store, event loop."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final, get_args

from metrics import events
from metrics.label_values import BrokerConnectionKind, CollectionScope, HttpDenial, HttpLimit, StoreOperation
from metrics.metric_factory import MetricFactory

LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds by which the event loop was late. The leader misses deadlines above 0.25 s."""


def add_dependency_metrics(metrics: MetricFactory) -> None:
    _add_broker_metrics(metrics)
    metrics.count(
        events.ClientIdConflictSeen,
        "client_id_conflicts",
        "Connections of clients whose client id is used by a newer program, too.",
    )
    metrics.count(
        events.ForeignAnnouncementSeen,
        "foreign_announcements",
        "Announcements of this daemon's shards that another program replaced, and that were corrected, by shard.",
        shard=None,
    )
    metrics.count(
        events.AccessDenied,
        "access_denied",
        "Requests that were refused because their user has no right to them.",
    )
    metrics.count(
        events.StoreOperationFailed,
        "object_store_errors",
        "Failed operations of the object store, by operation.",
        operation=get_args(StoreOperation),
    )
    metrics.count(
        events.LogLinesLost,
        "log_lines_lost",
        "Lines that the log did not accept, for example because its disk is full. The daemon continues.",
        by="count",
    )
    _add_http_metrics(metrics)
    metrics.count(
        events.ReloadFailed,
        "reload_failures",
        "Signals to read the settings again that changed nothing, because settings or a file were unusable.",
    )
    expiry = metrics.removable_gauge(
        "certificate_expiry_timestamp_seconds",
        "When a certificate of the daemon expires, in seconds since 1970.",
        "use",
    )
    metrics.on(events.CertificateRead, lambda event: expiry.labels(event.use).set(event.expires_at_seconds))
    _add_file_system_metrics(metrics)
    metrics.time(events.LoopLagMeasured, "loop_lag_seconds", "How late the event loop ran a timer.", LAG_BUCKETS)
    metrics.time(
        events.GarbageCollected,
        "garbage_collection_seconds",
        "Collections of cyclic garbage, during which the event loop waits, by what they look at.",
        LAG_BUCKETS,
        scope=get_args(CollectionScope),
    )
    build = metrics.gauge("build_info", "Always 1. The labels name the versions.", version=None, python=None)
    build.child(version("headgate"), platform.python_version()).set(1)


def _add_broker_metrics(metrics: MetricFactory) -> None:
    broker = metrics.gauge("broker_connected", "1 while the MQTT broker is connected.").child()
    metrics.on(events.BrokerConnected, lambda _: broker.set(1))
    metrics.on(events.BrokerDisconnected, lambda _: broker.set(0))
    metrics.count(
        events.BrokerSessionTakenOver,
        "broker_sessions_taken_over",
        "Connections that the broker accepted and soon ended, from the third in a row: another program uses the "
        "client id of the daemon, or of a session for MQTT devices (connection).",
        connection=get_args(BrokerConnectionKind),
    )
    metrics.count(
        events.BrokerDroppedMessages,
        "broker_messages_dropped",
        "Messages that the broker dropped for a slow or absent reader since this daemon first saw its counter. Every "
        "daemon counts the same ones.",
        by="messages",
    )


def _add_http_metrics(metrics: MetricFactory) -> None:
    metrics.count(
        events.HttpLimitReached,
        "http_limit_reached",
        "HTTP connections that were closed to accept another one (connections), failures to accept one for lack of "
        "file descriptors (descriptors), status pages that were refused because too many are open (streams), and that "
        "were dropped because they took no data (slow_stream).",
        limit=get_args(HttpLimit),
    )
    streams = metrics.gauge("http_streams", "Status pages that are open and kept current.").child()
    metrics.on(events.HttpStreamsChanged, lambda event: streams.inc(event.change))
    metrics.count(
        events.HttpDenied,
        "http_denied",
        "HTTP requests and TLS handshakes that were refused, by reason.",
        reason=get_args(HttpDenial),
    )


def _add_file_system_metrics(metrics: MetricFactory) -> None:
    free = metrics.removable_gauge(
        "file_system_free_bytes",
        "Bytes that the daemon may still write to the file system of the ledger, or of Spark's folder.",
        "use",
    )
    size = metrics.removable_gauge(
        "file_system_size_bytes", "Size of the file system of the ledger, or of Spark's folder.", "use"
    )

    def set_space(event: events.FileSystemMeasured) -> None:
        free.labels(event.use).set(event.free_bytes)
        size.labels(event.use).set(event.size_bytes)

    metrics.on(events.FileSystemMeasured, set_space)
