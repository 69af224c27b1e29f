"""Metrics of the process and its dependencies: drain service, certificates, file systems."""

import platform
from importlib.metadata import version
from typing import get_args

from metrics import events
from metrics.label_values import DrainState
from metrics.metric_factory import MetricFactory, StateGauge


def add_dependency_metrics(metrics: MetricFactory) -> None:
    streams = metrics.gauge("http_streams", "Status pages that are open and kept current.").child()
    metrics.on(events.HttpStreamsChanged, lambda event: streams.inc(event.change))
    drain = metrics.gauge("drain_service_state", "1 for the state of the drain service.", state=get_args(DrainState))
    state = StateGauge(drain, "off")
    metrics.on(events.DrainServiceStateChanged, lambda event: state.set_state(event.state))
    expiry = metrics.removable_gauge(
        "certificate_expiry_timestamp_seconds",
        "When a certificate of the daemon expires, in seconds since 1970.",
        "use",
    )
    metrics.on(events.CertificateRead, lambda event: expiry.labels(event.use).set(event.expires_at_seconds))
    _add_file_system_metrics(metrics)
    build = metrics.gauge("build_info", "Always 1. The labels name the versions.", version=None, python=None)
    build.child(version("headgate"), platform.python_version()).set(1)


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
