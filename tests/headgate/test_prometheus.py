"""The collector of clients' metrics."""

from prometheus_client import CollectorRegistry, generate_latest

from headgate.client.producer import Producer
from headgate.prometheus import ClientCollector
from tests.support.worlds.one_shard_programs import client, orders, reader

QUEUE = {"subscription": "jobs", "type": "QUEUE"}


async def test_the_values_of_a_producer_and_a_consumer():
    async with (
        orders(segments=1) as (world, _),
        Producer(client(world, "p")) as producer,
        reader(world, **QUEUE) as consumer,
    ):
        registry = CollectorRegistry()
        registry.register(ClientCollector({"in": producer, "out": consumer}))
        for value in (b"1", b"2", b"3"):
            await producer.send_and_wait("orders", b"a", value)
        waiting = await producer.send("orders", b"a", b"4")
        buffered = producer.metrics().buffered_bytes
        await waiting
        records = await consumer.get_many(2, timeout_seconds=5)
        lag_seconds = consumer.metrics().lag_seconds
        await consumer.negative_acknowledge(records[0])
        records = [await anext(consumer) for _ in range(3)]
        for record in records:
            await consumer.acknowledge(record)
        await consumer.acknowledge(records[0])
        await consumer.flush()
        found = {
            line.partition("{")[0].removeprefix("headgate_"): float(line.split()[-1])
            for line in generate_latest(registry).decode().splitlines()
            if not line.startswith("#")
        }
    seconds = found.pop("producer_commit_seconds_total")
    assert 0.001 * 4 < seconds < 1
    assert 0 < lag_seconds < 5
    assert 0 < buffered < 100
    assert {
        "producer_committed_records_total": 4,
        "producer_failed_records_total": 0,
        "producer_unknown_records_total": 0,
        "producer_rejected_records_total": 0,
        "producer_committed_bytes_total": 4 * buffered,
        "producer_committed_batches_total": 4,
        "producer_sent_batches_total": 4,
        "producer_retried_batches_total": 0,
        "producer_epoch_bumps_total": 0,
        "producer_buffered_bytes": 0,
        "consumer_delivered_records_total": 5,
        "consumer_redelivered_records_total": 1,
        "consumer_acknowledged_records_total": 3,
        "consumer_rejected_acknowledgements_total": 0,
        "consumer_handler_calls_total": 0,
        "consumer_handler_seconds_total": 0,
        "consumer_held_segments": 1,
        "consumer_queued_records": 0,
        "consumer_lag_seconds": 0,
    } == found
