"""A cluster of two shards gets five under load: no request fails, and all topics outlast a restart of all daemons."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.settings.sections import SpreadSettings
from headgate import Admin, Consumer, Producer
from headgate.client.connection import Client
from headgate.errors import RequestRejectedError
from headgate.model.layout import ShardMap
from headgate.topic_dataset import dataset
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

PLACES = {name: ShardMap((2, 5)).candidates(name) for name in (f"topic-{number}" for number in range(200))}
"""Topic → its new place and its old one, if that is another."""
OLD = [name for name, places in PLACES.items() if len(places) > 1][:2]
NEW = [next(name for name, places in PLACES.items() if places[0] == shard and name not in OLD) for shard in (2, 3, 4)]
DAEMONS = ("a", "b")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, 10.0, shards=2, spread=SpreadSettings(settle_seconds=1)) as made:
        await made.start_servers()
        for name in DAEMONS:
            await made.start_daemon(name)
        await until_led(made, 2)
        yield made


async def until_led(cluster: Cluster, shards: int) -> None:
    async def led() -> bool:
        return sum([await each.leads() for each in cluster.daemons.values()]) == shards

    await wait_until(led, f"{shards} shards have leaders", 60)


class Load:
    """A named producer that sends to all topics, and a consumer of each."""

    def __init__(self, cluster: Cluster) -> None:
        self._config = cluster.client_config()
        self.topics = list(OLD)
        self.sent: Counter[str] = Counter()
        self.read: dict[str, list[int]] = {name: [] for name in OLD + NEW}
        self.stop = asyncio.Event()

    async def send(self) -> None:
        async with Producer(Client.from_config(self._config, "load"), "loader") as producer:
            deliveries = []
            while not self.stop.is_set():
                for topic in self.topics:
                    deliveries.append(await producer.send(topic, b"key", b"%d" % self.sent[topic]))
                    self.sent[topic] += 1
                await asyncio.sleep(0.02)
            await asyncio.gather(*deliveries)

    async def consume(self, topic: str) -> None:
        async with Consumer(self._config, topic=topic, subscription="all", start="earliest") as consumer:
            async for record in consumer:
                self.read[topic].append(int(record.value))
                await consumer.acknowledge(record)

    async def until_read(self, count: int) -> None:
        async def reached() -> bool:
            return all(len(self.read[topic]) >= count for topic in self.topics)

        await wait_until(reached, f"{count} records of each topic are read", 60)


async def restart(cluster: Cluster) -> None:
    for name in DAEMONS:
        cluster.daemons[name].process.send_signal(signal.SIGTERM)
    assert [await cluster.daemons[name].ended() for name in DAEMONS] == [0, 0]
    for name in DAEMONS:
        await cluster.start_daemon(name)
    await until_led(cluster, 5)


async def test_a_cluster_gets_more_shards_under_load(cluster: Cluster) -> None:
    load = Load(cluster)
    async with Admin(cluster.client_config()) as admin, asyncio.TaskGroup() as tasks:
        for topic in OLD:
            await admin.create_topic(topic, segments=2)
        consuming = {topic: tasks.create_task(load.consume(topic)) for topic in OLD}
        sending = tasks.create_task(load.send())
        await load.until_read(50)

        wrong = await cluster.commands.finish("cluster", "set-shards", "2")
        assert "the cluster has 2 shards, and the number can only rise, to at most 1024" in wrong.err
        planned = json.loads((await cluster.commands.succeed("cluster", "set-shards", "5", "--dry-run", "--json")).out)
        assert planned == {"shards": 5, "dry_run": True, "topics_with_several_places": 2}
        await cluster.commands.succeed("cluster", "set-shards", "5")
        await until_led(cluster, 5)

        for topic in NEW:  # The client was connected before the growth.
            assert (await admin.create_topic(topic)).shard == PLACES[topic][0]
        with pytest.raises(RequestRejectedError, match="already exists"):
            await admin.create_topic(OLD[0])
        assert {each.topic: each.shard for each in await admin.list_topics()} == {
            **{topic: PLACES[topic][1] for topic in OLD},
            **{topic: PLACES[topic][0] for topic in NEW},
        }
        load.topics += NEW
        consuming |= {topic: tasks.create_task(load.consume(topic)) for topic in NEW}
        await load.until_read(100)

        await restart(cluster)
        await load.until_read(max(map(len, load.read.values())) + 50)

        load.stop.set()
        await sending
        for topic in load.topics:
            load.topics = [topic]
            await load.until_read(load.sent[topic])
            assert load.read[topic] == list(range(load.sent[topic])), "each record once, in order"
            assert dataset(topic, cluster.client_config()).num_rows == load.sent[topic]
        for task in consuming.values():
            task.cancel()
        # What is deleted on its old shard is created on the new one, and this client finds it there.
        await admin.delete_topic(OLD[0], force=True)
        assert (
            (await admin.create_topic(OLD[0])).shard == (await admin.describe_topic(OLD[0])).shard == PLACES[OLD[0]][0]
        )
    assert "is intact: 5 shards" in (await cluster.commands.succeed("ledger", "check", cluster.ledger_url)).err
