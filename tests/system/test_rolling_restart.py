"""Three daemons share the shards and are restarted one after the other under load, one of them in maintenance.

No request fails.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.settings.sections import SpreadSettings
from headgate import Producer
from headgate.client.connection import Client
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

LONG_SESSION_SECONDS = 40.0
"""No session of a stopped daemon ends meanwhile, so only a transfer can give a shard another leader in time."""
NAMES = ("a", "b", "c")
SEND_INTERVAL_SECONDS = 0.05


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    spread = SpreadSettings(settle_seconds=1)
    async with Cluster(tmp_path, LONG_SESSION_SECONDS, shards=len(NAMES), spread=spread) as made:
        await made.start_servers()
        yield made


async def even(cluster: Cluster) -> bool:
    return [await cluster.daemons[name].leads() for name in NAMES] == [1] * len(NAMES)


async def empty(cluster: Cluster, name: str) -> None:
    """Begin the maintenance of a daemon, after an operator has given it a shard."""
    await cluster.commands.succeed("shard", "transfer", "0", name)
    assert await cluster.daemons[name].leads() >= 1
    await cluster.commands.succeed("daemon", "drain", name)

    async def emptied() -> bool:
        return await cluster.daemons[name].leads() == 0

    await wait_until(emptied, "it leads nothing", 30)
    rows = (await cluster.commands.succeed("daemon", "list")).out.splitlines()
    assert any(row.split()[0] == name and "maintenance" in row for row in rows), rows


class Load:
    """A producer that sends to a topic of each shard, and how long each record took to be stored."""

    def __init__(self, producer: Producer) -> None:
        self.sent = 0
        self.longest_seconds = 0.0
        self._producer = producer
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self, topics: list[str], stop: asyncio.Event) -> None:
        """Send until ``stop``; raises the first failure of a delivery."""
        async with asyncio.TaskGroup() as deliveries:
            while not stop.is_set():
                for topic in topics:
                    deliveries.create_task(self._send(topic, self.sent))
                    self.sent += 1
                await asyncio.sleep(SEND_INTERVAL_SECONDS)

    async def _send(self, topic: str, number: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await (await self._producer.send(topic, b"%d" % (number % 7), b"%d" % number))
        self.longest_seconds = max(self.longest_seconds, loop.time() - began)


@pytest.mark.nightly
async def test_a_rolling_restart_of_three_daemons_fails_no_request(cluster: Cluster) -> None:
    for name in NAMES:
        await cluster.start_daemon(name)
    await wait_until(lambda: even(cluster), "each daemon leads a shard", 60)
    topics = ["orders", "payments", "alarms", "visits"]
    for topic in topics:
        await cluster.commands.succeed("topic", "create", topic, "--segments", "2")
    stop = asyncio.Event()
    async with Producer(Client.from_config(cluster.client_config(), "load")) as producer:
        load = Load(producer)
        sending = asyncio.create_task(load.run(topics, stop))
        await wait_until(lambda: stored(load, 100), "records are stored", 30)
        for name in NAMES:
            load.longest_seconds = 0.0
            if name == NAMES[-1]:
                await empty(cluster, name)
            cluster.daemons[name].process.send_signal(signal.SIGTERM)
            assert await cluster.daemons[name].ended() == 0
            assert cluster.daemons[name].log_entries("transfer.completed"), "it had a shard"
            await wait_until(lambda until=load.sent + 40: stored(load, until), "records are stored", 30)
            assert load.longest_seconds < LONG_SESSION_SECONDS / 2
            assert not sending.done(), sending.exception()
            started = await cluster.start_daemon(name)
            await wait_until(lambda started=started: started.reports(200, "cluster", "ok"), "it follows", 30)
        assert await cluster.daemons[NAMES[-1]].leads() == 0, "its maintenance outlasts its restart"
        await cluster.commands.succeed("daemon", "drain", NAMES[-1], "--off")
        await wait_until(lambda: even(cluster), "each daemon leads a shard again", 60)
        stop.set()
        await sending

    values = Counter(int(value) for _, value in await cluster.stored())
    assert values == Counter(range(load.sent))


async def stored(load: Load, number: int) -> bool:
    return load.sent > number
