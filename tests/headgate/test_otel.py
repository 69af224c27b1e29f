"""Traces and metrics of clients through an OpenTelemetry SDK in memory, with the real leader of a shard."""

import subprocess
import sys
from unittest.mock import Mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span

from controller.chunk_writer.commit_spans import MAX_LINKS, installed_tracing, tracing
from headgate import BatchPolicy, RequestRejectedError, RetryPolicy
from headgate.client.client_metrics import described
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.otel import Tracing, context_of, observe_clients
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, create, orders, reader


class Spans:
    """A provider, and what it has exported by name."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name):
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def linked(span):
    return [link.context.span_id for link in span.links]


@pytest.mark.parametrize("batch", [None, BatchPolicy(max_records=2)], ids=["single", "batches"])
async def test_spans_of_a_record_are_linked_from_its_producer_over_the_commit_to_its_handler(batch):
    spans, world, current = Spans(), OneShard(), []
    world.trace_commits = tracing(spans.provider.get_tracer("leader"))

    async def handle(_):
        current.append(get_current_span().get_span_context().span_id)

    async with world.leader():
        await create(world, segments=1)
        async with Producer(client(world, "p"), interceptors=[Tracing(spans.provider)]) as producer:
            await producer.send_and_wait("orders", b"a", b"1", headers={"kind": b"x", "traceparent": b"copied"})
            await producer.send_and_wait("orders", b"b", b"2")
        async with reader(world, interceptors=[Tracing(spans.provider)]) as consumer:
            await consumer.run(handle, batch=batch, until_caught_up=True)
    sent, processed, commits = (spans.named(name) for name in ("send orders", "process orders", "commit"))
    first, second = (span.get_span_context() for span in sent)
    assert [[first.span_id], [second.span_id]] == [linked(span) for span in commits]
    assert current == [span.get_span_context().span_id for span in processed]
    if batch is None:
        assert [[first.span_id], [second.span_id]] == [linked(span) for span in processed]
        assert [first.trace_id, second.trace_id] == [span.get_span_context().trace_id for span in processed]
        assert [first.span_id, second.span_id] == [span.parent.span_id for span in processed]
        assert ("0", "0:1") == tuple(
            processed[1].attributes[f"messaging.{each}"] for each in ("destination.partition.id", "message.id")
        )
    else:
        assert [[first.span_id, second.span_id]] == [linked(span) for span in processed]
        assert (None, 2) == (processed[0].parent, processed[0].attributes["messaging.batch.message_count"])
    assert (SpanKind.PRODUCER, SpanKind.CONSUMER) == (sent[0].kind, processed[0].kind)
    names = {
        "messaging.system": "headgate",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.subscription.name": "billing",
        "messaging.client.id": "c",
    }
    assert names.items() <= processed[0].attributes.items()
    assert ("send", 1) == tuple(
        sent[0].attributes[f"messaging.{each}"] for each in ("operation.type", "message.body.size")
    )


async def test_an_error_of_a_handler_or_a_send_is_in_its_span_and_tracing_itself_fails_no_record():
    spans, world, found = Spans(), OneShard(), []
    settings = ProducerSettings(max_record_bytes=100)

    async def handle(record):
        found.append(record)
        if len(found) == 1:
            raise ValueError("once")

    async with world.leader():
        await create(world, segments=1)
        async with Producer(client(world, "p"), settings=settings, interceptors=[Tracing(spans.provider)]) as producer:
            with pytest.raises(RequestRejectedError):
                await producer.send("orders", b"a", b"x" * 101)
            await producer.send_and_wait("orders", b"a", b"x" * 99)  # no space for a header
            with pytest.raises(RequestRejectedError, match="unknown"):
                await producer.send_and_wait("unknown", b"a", b"")
        async with reader(world, interceptors=[Tracing(spans.provider)]) as consumer:
            await consumer.run(handle, retry=RetryPolicy(attempts=2), until_caught_up=True)
    assert [()] * 2 == [record.headers for record in found]
    assert not get_current_span(context_of(found[0])).get_span_context().is_valid
    for name, errors in {
        "send orders": ["RequestRejectedError", None],
        "send unknown": ["RequestRejectedError"],
        "process orders": ["ValueError", None],
    }.items():
        ended = [(span.attributes.get("error.type"), span.status.status_code) for span in spans.named(name)]
        assert [(error, StatusCode.ERROR if error else StatusCode.UNSET) for error in errors] == ended


async def test_without_an_sdk_records_get_no_header_and_commits_no_span():
    found = []
    assert installed_tracing() is None
    none = Tracing(NoOpTracerProvider())
    async with orders(segments=1) as (world, _):
        async with Producer(client(world, "p"), interceptors=[none]) as producer:
            await producer.send_and_wait("orders", b"a", b"1")
        async with reader(world, interceptors=[none]) as consumer:
            await consumer.run(found.append, until_caught_up=True)
    assert [()] == [record.headers for record in found]


async def test_a_commit_links_to_a_limited_number_of_sampled_records_and_a_faulty_processor_fails_none():
    spans, world = Spans(), OneShard()
    faulty = Mock(on_start=Mock(side_effect=[None, OSError("full")]), on_end=Mock(side_effect=OSError("full")))
    spans.provider.add_span_processor(faulty)
    world.trace_commits = tracing(spans.provider.get_tracer("leader"))
    parents = [b"00-%032x-%016x-%02x" % (n, n, 1 + n % 2 * 2) for n in range(1, MAX_LINKS + 3)]
    unsampled = [b"00-%032x-%016x-02" % (7, 7), b"nonsense-01"]
    async with world.leader():
        await create(world, segments=1)
        for group in (unsampled, parents, parents[:1]):
            async with Producer(client(world, f"p{len(group)}")) as producer:
                for parent in group:
                    await producer.send("orders", b"a", b"", headers={"traceparent": parent})
    (commit,) = spans.named("commit")
    assert (2, 1) == (faulty.on_start.call_count, faulty.on_end.call_count)
    assert list(range(1, MAX_LINKS + 1)) == linked(commit)


async def test_every_metric_of_a_client_is_an_instrument():
    memory = InMemoryMetricReader()
    async with orders(segments=1) as (world, _), Producer(client(world, "p")) as producer, reader(world) as consumer:
        clients = {"in": producer, "out": consumer}
        observe_clients(clients, MeterProvider([memory]))
        await producer.send_and_wait("orders", b"a", b"1")
        await consumer.run(lambda _: None, until_caught_up=True)
        (scope,) = memory.get_metrics_data().resource_metrics[0].scope_metrics
        found = {
            (each.name, point.attributes["messaging.client.id"]): point.value
            for each in scope.metrics
            for point in each.data.data_points
        }
        del clients["in"], clients["out"]
        assert memory.get_metrics_data() is None, "a client that the program removed is not reported"
    assert len(list(described())) == len(found)
    assert (1, 1) == (
        found["headgate.producer.committed_records", "in"],
        found["headgate.consumer.handler_calls", "out"],
    )


@pytest.mark.parametrize(("module", "missing"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")])
def test_a_missing_extra_is_one_line_and_only_where_its_module_is_imported(module, missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import headgate.client.producer, headgate.sync; import headgate.{module}"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert f": python3 -m pip install '{missing.replace('_', '-')}" in found.stderr
    assert 1 == found.stderr.count("Error: "), found.stderr
