"""A span for each commit of traced records, if the daemon runs with an OpenTelemetry SDK.

A producer's span ends with the reply. This one shows which part of that time was the write of the chunk. It is linked
to the span of each sampled record, up to `MAX_LINKS`. A leader without an SDK has none of this: nothing is asked for a
record or a chunk. With one, a chunk costs a look at the headers of its records. A fault of what is installed in it,
such as a sampler or a processor, costs spans and never the term.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from controller.context.leader_context import OnDurable, OnRecords, TraceCommits
from headgate.ledger.chunk import RecordColumns
from headgate.log.event_log import get_logger

MAX_LINKS: Final = 128
"""As many as an SDK keeps. Each takes some 5 µs of the event loop."""
SAMPLED: Final = tuple(b"%x" % digit for digit in range(1, 16, 2))
"""How a ``traceparent`` ends whose span is kept: the lowest of its flags is set."""
_extract = TraceContextTextMapPropagator().extract
log = get_logger(__name__)


def installed_tracing() -> TraceCommits | None:
    """Return what traces the commits of a term; None: the process has no SDK."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return tracing(trace.get_tracer("headgate"))


def tracing(tracer: Tracer) -> TraceCommits:
    """Return what traces the commits of a term with ``tracer``. A commit that fails has no span: it ends the term."""

    def trace_commits(shard: int, on_records: OnRecords, on_durable: OnDurable) -> tuple[OnRecords, OnDurable]:
        writing: list[Span] = []
        reported: set[type[Exception]] = set()

        @contextmanager
        def contained() -> Iterator[None]:
            try:
                yield
            except Exception as error:  # noqa: BLE001 - whatever an installed part raises
                if type(error) not in reported:
                    reported.add(type(error))
                    log.warning("commit.not_traced", shard=shard, reason=repr(error))

        def began(records: RecordColumns) -> None:
            on_records(records)
            if links := _links(records):
                attributes: dict[str, str | int] = {
                    "messaging.system": "headgate",
                    "messaging.operation.name": "commit",
                    "messaging.batch.message_count": len(records),
                    "headgate.shard": shard,
                }
                with contained():
                    writing.append(tracer.start_span("commit", context=Context(), links=links, attributes=attributes))

        def durable(chunk: int, data: bytes) -> None:
            while writing:
                span = writing.pop()
                with contained():
                    span.set_attribute("headgate.chunk", chunk)
                    span.end()
            on_durable(chunk, data)

        return began, durable

    return trace_commits


def _links(records: RecordColumns) -> list[Link]:
    headers = (header for each in records.headers for header in each)
    sampled = (value.decode("latin-1") for name, value in headers if name == "traceparent" and value.endswith(SAMPLED))
    spans = (trace.get_current_span(_extract({"traceparent": each}, Context())) for each in islice(sampled, MAX_LINKS))
    return [Link(context) for span in spans if (context := span.get_span_context()).is_valid]
