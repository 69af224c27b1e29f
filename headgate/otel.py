"""Traces of records, and metrics of clients, through OpenTelemetry: the extra ``otel``.

    producer = Producer(config, interceptors=[Tracing()])
    consumer = Consumer(config, topic="orders", subscription="billing", interceptors=[Tracing()])
    observe_clients({"orders": producer, "billing": consumer})

Only the API is needed. Without an SDK, or with one that samples nothing, records get no header and no span is kept.

1. `Producer.send` makes a span that ends with the outcome of the record, and adds its W3C ``traceparent`` header.
   A header of this name that the program gives, e.g. of a record that it copies, is replaced. A record that is refused
   with the header is sent without it: tracing fails no record.
2. Each call of the handler of `Consumer.run` makes a span that is linked to those of its records. With one record it is
   also a child of its span.
3. Names follow OpenTelemetry's conventions for messaging (1.38, in development).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from headgate.client.client_metrics import PREFIXES, Measured, described
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.interceptors import Handle, Interceptor, OutgoingRecord, Send
from headgate.client.producing.record_batch import Delivery
from headgate.errors import RequestRejectedError
from headgate.extras import install_extra

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(f"it needs opentelemetry-api: {install_extra('otel')}", name=error.name) from None

SCOPE: Final = "headgate"
SYSTEM: Final = "messaging.system"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def context_of(record: ConsumedRecord) -> Context:
    """Return the context in which ``record`` was sent, for a program that makes spans in a loop of its own."""
    carrier = {name: value.decode("latin-1") for name, value in record.headers if name in _PROPAGATOR.fields}
    return _PROPAGATOR.extract(carrier, Context())


class Tracing(Interceptor):
    """Makes a span for each record that is sent, and for each call of a handler."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        """``tracer_provider`` None: the global one."""
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)

    def intercept_send(self, send: Send) -> Send:
        """Rule 1."""

        async def traced(record: OutgoingRecord) -> Delivery:
            attributes = _attributes("send", record.topic) | {"messaging.message.body.size": len(record.value)}
            span = self._tracer.start_span(f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
            try:
                delivery = await _sent(send, record, span)
            except BaseException as error:
                _end(span, error)
                raise
            delivery.when_known(partial(_end, span))
            return delivery

        return traced

    def intercept_handle(self, handle: Handle, *, subscription: str, consumer: str) -> Handle:
        """Rule 2."""
        names = {"messaging.destination.subscription.name": subscription, "messaging.client.id": consumer}

        async def traced(records: list[ConsumedRecord]) -> object:
            first, contexts = records[0], [context_of(record) for record in records]
            attributes = _attributes("process", first.topic) | names
            if len(records) == 1:
                attributes["messaging.destination.partition.id"] = str(first.segment)
                attributes["messaging.message.id"] = f"{first.segment}:{first.offset}"
            else:
                attributes["messaging.batch.message_count"] = len(records)
            sent = [trace.get_current_span(each).get_span_context() for each in contexts]
            with self._tracer.start_as_current_span(
                f"process {first.topic}",
                context=contexts[0] if len(records) == 1 and sent[0].is_valid else None,
                kind=SpanKind.CONSUMER,
                links=[Link(each) for each in sent if each.is_valid],
                attributes=attributes,
            ) as span:
                try:
                    return await handle(records)
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise

        return traced


def _attributes(operation: str, topic: str) -> dict[str, str | int]:
    return {
        SYSTEM: SCOPE,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


async def _sent(send: Send, record: OutgoingRecord, span: Span) -> Delivery:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    if not carrier:
        return await send(record)
    kept = tuple(header for header in record.headers if header[0] not in _PROPAGATOR.fields)
    added = tuple((name, value.encode()) for name, value in carrier.items())
    try:
        return await send(replace(record, headers=kept + added))
    except RequestRejectedError:
        return await send(record)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def observe_clients(clients: Mapping[str, Measured], meter_provider: metrics.MeterProvider | None = None) -> None:
    """Report the metrics of ``clients``, a mapping that may change: ``messaging.client.id`` → the client.

    ``meter_provider`` None: the global one. An instrument is ``headgate.producer.`` or ``headgate.consumer.`` and the
    name of the value.
    """
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    create = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
    for kind, name, metric in described():
        observe = partial(_observations, clients, kind, name)
        create[metric.kind](f"{SCOPE}.{PREFIXES[kind]}.{name}", [observe], metric.unit, metric.text)


def _observations(clients: Mapping[str, Measured], kind: type, name: str, _: CallbackOptions) -> Iterator[Observation]:
    for client_id, client in list(clients.items()):
        values = client.metrics()
        if isinstance(values, kind):
            yield Observation(getattr(values, name), {SYSTEM: SCOPE, "messaging.client.id": client_id})
