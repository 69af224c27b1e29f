"""Exactly-once ingestion in order, on real servers, despite lost messages, leader changes and deadlines.

Each test checks the ledger. Rules of the client's transport simulate network faults; SIGSTOP and SIGKILL simulate
machine faults.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from headgate import DeliveryUnknownError, Producer, ProducerSettings, RecordMetadata
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.fakes.fault_injecting_transport import dropped, pass_through
from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR, wait_until
from tests.support.worlds.ingest_environment import (
    IngestCluster,
    RequestSender,
    assert_stored_exactly,
    fault_transport_of,
    outcomes,
    send,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS), pytest.mark.asyncio(loop_scope="module")]

QUICK = ProducerSettings(batch_bytes=10, request_timeout_seconds=0.4)
"""Small batches and fast retries."""
DELIVERY_SECONDS = 2.5 * TIMEOUT_FACTOR
"""Delivery timeout for tests in which records expire; the others must arrive in time on a slow machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ingest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IngestCluster]:
    """Two daemons and two shards; a test that kills a daemon starts another."""
    async with IngestCluster(tmp_path_factory.mktemp("ingest")) as cluster:
        await cluster.start_servers()
        first = await cluster.start_daemon("first")
        await first.until_leading()
        await cluster.start_daemon("second")
        yield cluster


def some(rng: random.Random, probability: float, otherwise: Any = pass_through) -> Any:
    """A rule that drops messages with ``probability``."""
    return lambda message: dropped(message) if rng.random() < probability else otherwise(message)


def delayed_and_duplicated(rng: random.Random) -> Any:
    """A rule that delays messages by up to 60 ms, which reorders them, and duplicates a third."""
    return lambda message: [(rng.uniform(0.001, 0.06), message) for _ in range(1 + (rng.random() < 0.35))]


@pytest.mark.parametrize(
    "network_faults", ["replies dropped", "requests dropped", "delayed and duplicated", "all at once"]
)
async def test_every_record_is_stored_once_and_in_order_despite(network_faults: str, ingest: IngestCluster) -> None:
    topic, rng = await ingest.topic(), random.Random(network_faults)
    async with ingest.client() as client, Producer(client, settings=QUICK) as producer:
        transport = fault_transport_of(client)
        if network_faults in ("replies dropped", "all at once"):
            transport.on_reply = some(rng, 0.2)
        if network_faults in ("requests dropped", "all at once"):
            transport.on_request = some(rng, 0.2)
        if network_faults == "delayed and duplicated":
            transport.on_reply = transport.on_request = delayed_and_duplicated(rng)
        if network_faults == "all at once":
            transport.on_reply = transport.on_request = some(rng, 0.1, delayed_and_duplicated(rng))
        results = await outcomes(await send(producer, topic, range(200), pause_seconds=0.002))
        batches = [request.body for request in transport.requests if isinstance(request.body, m.ProduceBatch)]

    assert producer.metrics().retried_batches > 0 or network_faults == "delayed and duplicated"
    assert len({batch.sequence for batch in batches}) > 10
    await assert_stored_exactly(ingest, topic, range(200), results)


async def test_batches_sent_to_a_paused_leader_are_stored_once_by_its_successor(ingest: IngestCluster) -> None:
    """Its session expires, its successor stores the batch, and then the paused leader resumes with the same batch."""
    topic = await ingest.topic()
    async with ingest.client() as client, Producer(client, settings=QUICK) as producer:
        sender = RequestSender(client, 0)
        results = await outcomes(await send(producer, topic, range(20)))
        epoch, known = await sender.epoch(), client.leader(0)
        assert known is not None
        paused = ingest.daemons[known.instance]
        paused.process.freeze()
        deliveries = await send(producer, topic, range(20, 120))
        try:
            results += await outcomes(deliveries, 40)
            after = client.leader(0)
            assert after is not None
            assert (after.leader_epoch > epoch, after.instance != known.instance) == (True, True)
        finally:
            paused.process.thaw()

        async def follows() -> bool:
            return await paused.leads() == 0

        # It now receives the requests that were sent while it was paused.
        await wait_until(follows, "the paused daemon knows that it no longer leads")
        results += await outcomes(await send(producer, topic, range(120, 140)))

    await assert_stored_exactly(ingest, topic, range(140), results)


async def test_a_used_sequence_stores_nothing_else_and_its_repetition_names_the_deleted_topic(
    ingest: IngestCluster,
) -> None:
    """Other content is invalid. A topic that was created again under the name has another id, and only new batches."""
    topic = await ingest.topic(segments=1)
    async with ingest.client() as client:
        sender = RequestSender(client, 0)
        first, second = await numbered(sender, topic, 2)
        original = await sender.ask(m.ProduceBatch, **first)
        changed = await sender.ask(m.ProduceBatch, **first | {"records": [m.Record(b"key-0", b"7", 0)]})
        elsewhere = await sender.ask(m.ProduceBatch, **first | {"topic": "nowhere"})
        await sender.ask(m.DeleteTopic, topic=topic, token=client.new_token())
        created = await sender.ask(m.CreateTopic, topic=topic, token=client.new_token(), segments=1)
        repeated = await sender.ask(m.ProduceBatch, **first)
        after = await sender.ask(m.ProduceBatch, **second)

    assert [("invalid", True)] * 2 == [(each.verdict, "other content" in each.reason) for each in (changed, elsewhere)]
    assert (original.topic_id, original.placements, True) == (
        repeated.topic_id,
        repeated.placements,
        repeated.duplicate,
    )
    assert original.topic_id != created.topic.topic_id == after.topic_id
    assert 0 == after.placements[0].first_offset


async def numbered(sender: RequestSender, topic: str, count: int, **opening: Any) -> list[dict[str, Any]]:
    """The fields of ``count`` batches of one record, under an identity of their own."""
    identity = await sender.ask(m.OpenProducer, token=sender.client.new_token(), **opening)
    return [
        {
            "topic": topic,
            "records": [m.Record(f"key-{sequence % 7}".encode(), b"%d" % sequence, 0)],
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "sequence": sequence,
        }
        for sequence in range(count)
    ]


@pytest.mark.parametrize("fate", ["stored", "lost"])
async def test_a_batch_in_flight_at_its_deadline_is_unknown_and_the_producer_continues(
    fate: str, ingest: IngestCluster
) -> None:
    """The batch or its reply is lost. Later batches have the next epoch and start at 0; a late copy is fenced."""
    topic = await ingest.topic()
    settings = ProducerSettings(batch_bytes=200, request_timeout_seconds=0.2, delivery_timeout_seconds=DELIVERY_SECONDS)
    async with ingest.client() as client, Producer(client, settings=settings) as producer:
        transport = fault_transport_of(client)
        assert all(isinstance(each, RecordMetadata) for each in await outcomes(await send(producer, topic, range(10))))
        if fate == "stored":
            transport.on_reply = dropped
        else:
            transport.on_request = dropped
        sent_before = len(transport.requests)
        unknown = await outcomes(await send(producer, topic, range(10, 12)))
        late = [each.body for each in transport.requests[sent_before:] if isinstance(each.body, m.ProduceBatch)]
        transport.on_request = transport.on_reply = pass_through
        results = await outcomes(await send(producer, topic, range(12, 40)))
        sender = RequestSender(client, 0)
        fields = {name: getattr(late[0], name) for name in ("topic", "records", "producer_id", "sequence")}
        copy = await sender.ask(m.ProduceBatch, **fields, producer_epoch=late[0].producer_epoch)
        entries = await ingest.entries()

    assert all(isinstance(each, DeliveryUnknownError) for each in unknown)
    assert all(isinstance(each, RecordMetadata) for each in results)
    assert "fenced" == copy.verdict
    epochs = [
        (entry.producer_epoch, entry.sequence)
        for _, entry in entries
        if isinstance(entry, e.RecordsStored) and entry.producer_id == late[0].producer_id
    ]
    assert (1, 0) in epochs
    assert sorted(set(epochs)) == epochs, "each epoch counts from 0, and epochs never decrease"
    stored = range(40) if fate == "stored" else [*range(10), *range(12, 40)]
    await assert_stored_exactly(ingest, topic, stored)


async def test_producing_resumes_after_seconds_without_a_leader(ingest: IngestCluster) -> None:
    """Both daemons are killed and a third one is started, without any action on the producer."""
    topic = await ingest.topic()
    async with ingest.client() as client, Producer(client, settings=QUICK) as producer:
        deliveries = await send(producer, topic, range(50))
        loop = asyncio.get_running_loop()
        for name in list(ingest.daemons):
            await ingest.kill(name)
        without_since = loop.time()
        deliveries += await send(producer, topic, range(50, 250), pause_seconds=0.025)
        pending = [each for each in deliveries if not each.done()]
        assert loop.time() - without_since >= 10 * QUICK.request_timeout_seconds
        assert len(pending) >= 200
        await ingest.start_daemon("third")
        results = await outcomes(deliveries, 40)
        began_again = loop.time()
        results += await outcomes(await send(producer, topic, range(250, 300)))
        assert loop.time() - began_again < 5 * TIMEOUT_FACTOR

    await assert_stored_exactly(ingest, topic, range(300), results)
