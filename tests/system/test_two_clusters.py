"""A copy of a ledger is started beside the original, under its name and on its broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate import Consumer, Producer
from headgate.client.connection import Client
from headgate.errors import OtherHistoryError
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, metric, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    async with Cluster(tmp_path / "first", tls=False) as first, Cluster(tmp_path / "second", tls=False) as second:
        second.broker = first.broker
        await first.start_leader("a")
        await first.commands.succeed("topic", "create", "orders")
        yield first, second


async def send(producer: Producer, first: int, count: int) -> list[bytes]:
    sent = [b"%d" % number for number in range(first, first + count)]
    for delivery in [await producer.send("orders", value, value) for value in sent]:
        await delivery
        await asyncio.sleep(0.05)
    return sent


async def test_each_record_is_stored_by_the_cluster_that_its_client_found(clusters: tuple[Cluster, Cluster]) -> None:
    (first, second), read = clusters, list[bytes]()

    async def consume() -> None:
        async with Consumer(first.client_config(), topic="orders", subscription="all", start="earliest") as consumer:
            async for record in consumer:
                read.append(record.value)
                await consumer.acknowledge(record)

    loader = Client.from_config(first.client_config(), "load")
    async with Producer(loader, "loader") as producer:
        consuming = asyncio.create_task(consume())
        copied = await send(producer, 0, 20)
        await first.commands.succeed("ledger", "copy", first.ledger_url, second.ledger_url)
        await second.zookeeper.start()
        other = await second.start_daemon("b")
        await other.until_leading()
        await wait_until(lambda: other.log_entries("cluster.name_used_twice"), "it is reported")

        expected = {await cluster.ledger_id(): [*copied] for cluster in clusters}
        expected[await first.ledger_id()] += await send(producer, 20, 60)
        number, found = 80, set[bytes]()
        while len(found) < len(clusters):  # Both are described again and again.
            late = Client.from_config(second.client_config(), "late")
            async with Producer(late) as sender:
                sent = await send(sender, number, 3)
            found.add(late.cluster_watch.ledger)
            expected[late.cluster_watch.ledger] += sent
            number += 3

        for cluster in clusters:
            stored = sorted(value for _, value in await cluster.stored())
            assert sorted(expected[await cluster.ledger_id()]) == stored, "in one ledger, once"
        assert await metric(other.http_address, "headgate_messages_malformed_total", reason="other_ledger") > 0
        await wait_until(lambda: len(read) == len(expected[loader.cluster_watch.ledger]), "all are read")

        await first.stop("a")  # As if the copy was to take its place.
        moved = await send(producer, number, 60)
        with pytest.raises(OtherHistoryError, match="it began with the ledger"):
            await asyncio.wait_for(consuming, 60)
        assert sorted(expected[await second.ledger_id()] + moved) == sorted(value for _, value in await second.stored())
