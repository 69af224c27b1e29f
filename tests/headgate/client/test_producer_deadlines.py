"""A producer with a scripted leader, in virtual time: when records expire, and what closing reports."""

import asyncio

import pytest

from headgate.client.producer import Producer, RecordMetadata
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError, NoLeaderError
from tests.support.fakes.scripted_leader import send_all
from tests.support.waiting import until

pytestmark = pytest.mark.looptime


SHORT = ProducerSettings(batch_bytes=1, request_timeout_seconds=1, delivery_timeout_seconds=3, max_in_flight=2)


async def test_records_of_several_topics_expire_at_their_own_deadlines(cluster):
    """Batches that wait for their turn expire, too, and none earlier than its records."""
    settings = ProducerSettings(request_timeout_seconds=1, delivery_timeout_seconds=10)
    loop = asyncio.get_running_loop()
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        await producer.open("orders")
        cluster.broker.stop()
        outcomes = []
        for _ in range(100):
            for topic in ("orders", "payments", "returns"):
                delivery = await producer.send(topic, b"key", b"value", headers={"trace": b"1"})
                outcomes.append(asyncio.ensure_future(_timed_outcome(delivery, loop.time())))
            await asyncio.sleep(0.03)
        results = await asyncio.gather(*outcomes)

    assert {DeliveryFailedError} == {type(what) for what, _ in results}
    assert all(10 <= after < 10.02 for _, after in results)
    assert 0 == producer.metrics().buffered_bytes


async def test_a_record_that_waited_for_buffer_space_expires_before_younger_ones(cluster):
    """It is buffered behind them, and does not share their batch."""
    settings = ProducerSettings(
        request_timeout_seconds=1, delivery_timeout_seconds=10, buffer_bytes=300, guaranteed_bytes=1
    )
    loop = asyncio.get_running_loop()
    results = []

    async def timed(value: bytes) -> None:
        began = loop.time()
        delivery = await producer.send("orders", b"k", value)
        results.append(await _timed_outcome(delivery, began))

    async def send_younger(first) -> None:
        await first
        await timed(b"younger")

    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await producer.open("orders")
        leader.script.append("delay")
        first = await producer.send("orders", b"k", bytes(250))
        sending = [asyncio.ensure_future(send_younger(first)), asyncio.ensure_future(timed(b"waited"))]
        await asyncio.sleep(0.5)
        leader.answers = False
        await asyncio.gather(*sending)

    assert [DeliveryFailedError, DeliveryUnknownError] == [type(what) for what, _ in results]
    assert all(10 <= after < 10.02 for _, after in results)


async def _timed_outcome(delivery, began: float) -> tuple[RecordMetadata | HeadgateError, float]:
    """Return the outcome, and after how many seconds it was known."""
    try:
        outcome = await delivery
    except HeadgateError as error:
        outcome = error
    return outcome, asyncio.get_running_loop().time() - began


async def test_close_with_a_timeout_reports_every_record(cluster):
    settings = ProducerSettings(batch_bytes=1, max_in_flight=2)
    async with cluster.leader() as leader:
        producer = Producer(cluster.client(), settings=settings)
        await producer.__aenter__()
        await (await producer.send("orders", b"key", b"value"))
        leader.answers = False
        deliveries = await send_all(producer, 5)
        began = asyncio.get_running_loop().time()
        report = await producer.close(timeout_seconds=2)
        assert 2 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.1)
    assert (1, 3, 2) == (report.committed_records, report.failed_records, report.unknown_records)
    assert all(delivery.done() for delivery in deliveries)
    assert 0 == producer.metrics().buffered_bytes
    with pytest.raises(HeadgateError):
        await producer.send("orders", b"key", b"late")


async def test_leaving_the_block_flushes(cluster):
    async with cluster.leader():
        async with Producer(cluster.client()) as producer:
            delivery = await producer.send("orders", b"key", b"value")
        assert delivery.done()
    assert [b"value"] == cluster.stored


async def test_opening_without_a_leader_is_bounded(cluster):
    async with cluster.leader() as leader, Producer(cluster.client(), settings=SHORT) as producer:
        leader.answers = False
        with pytest.raises(NoLeaderError, match="shard 0 of cluster 'test'"):
            await producer.open("orders")


async def test_a_record_that_expires_names_the_refusal_of_the_broker(cluster):
    client = cluster.client()
    async with cluster.leader() as leader, Producer(client, settings=SHORT) as producer:
        await producer.open("orders")
        cluster.broker.refusal = "the broker refuses user till"
        cluster.broker.drop("client")
        with pytest.raises(
            DeliveryFailedError, match="sent; shard 0: cannot reach the broker: the broker refuses user"
        ):
            await (await producer.send("orders", b"key", b"value"))
        cluster.broker.refusal, leader.answers = None, False
        await until(lambda: client.transport.connected)
        client.cluster_watch.refused("the broker refuses the requests")
        with pytest.raises((DeliveryFailedError, DeliveryUnknownError), match="; shard 0: the broker refuses the requ"):
            await (await producer.send("orders", b"key", b"value"))
        leader.answers = True
        await (await producer.send("orders", b"key", b"value"))
        await until(lambda: client.cluster_watch.refusal is None)
