"""Daemons are restarted or replaced by another version one after the other, under load. No request fails."""

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from controller.leadership.policy.feature_levels import LEVELS
from controller.settings.sections import SnapshotSettings, SpreadSettings
from headgate import Producer
from headgate.client.connection import Client
from headgate.ledger.checksum import SEAL_BYTES
from tests.support.servers.cluster import Cluster
from tests.support.servers.node import user_packages
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

LONG_SESSION_SECONDS = 40.0
"""No session of a stopped daemon ends meanwhile, so only a transfer can give a shard another leader in time."""
NAMES = ("a", "b", "c")
LATER = max(LEVELS) + 1
SEND_INTERVAL_SECONDS = 0.05


class MixedCluster(Cluster):
    """Daemons of this version, and `later` ones, which support one more feature level."""

    later: frozenset[str] = frozenset()

    def daemon_environ(self, name: str) -> Mapping[str, str]:
        added = user_packages() | {"HEADGATE_LATER_LEVEL": str(LATER)} if name in self.later else {}
        return {**super().daemon_environ(name), **added}

    async def replace(self, name: str, *, later: bool) -> None:
        """Replace a daemon by one of the other version, and wait until it follows."""
        self.later = self.later | {name} if later else self.later - {name}
        self.daemons[name].process.send_signal(signal.SIGTERM)
        assert await self.daemons[name].ended() == 0
        started = await self.start_daemon(name)
        await wait_until(lambda: started.reports(200, "cluster", "ok"), lambda: f"it follows: {started.log()}", 30)

    async def even(self) -> bool:
        return [await self.daemons[name].leads() for name in NAMES] == [1] * len(NAMES)

    async def empty(self, name: str) -> None:
        """Begin the maintenance of a daemon, after an operator has given it a shard."""
        await self.commands.succeed("shard", "transfer", "0", name)
        assert await self.daemons[name].leads() >= 1
        await self.commands.succeed("daemon", "drain", name)

        async def emptied() -> bool:
            return await self.daemons[name].leads() == 0

        await wait_until(emptied, "it leads nothing", 30)
        rows = (await self.commands.succeed("daemon", "list")).out.splitlines()
        assert any(row.split()[0] == name and "maintenance" in row for row in rows), rows

    def snapshot_fields(self) -> list[set[str]]:
        """Return the fields that each snapshot names, by chunk."""
        paths = sorted((self.folder / "store" / "snapshots").rglob("*.snapshot"), key=lambda path: path.name)
        files = [msgspec.msgpack.decode(path.read_bytes()[SEAL_BYTES:]) for path in paths]
        return [set(file["header"]["fields"]) for file in files]


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
async def test_daemons_are_replaced_and_taken_back_without_a_failed_request_until_the_level_is_raised(tmp_path: Path):
    """One of them in maintenance. Once the feature level is raised, an older daemon is refused."""
    snapshots = SnapshotSettings(min_chunks=20, min_interval_seconds=0.5)
    sections = {"shards": len(NAMES), "spread": SpreadSettings(settle_seconds=1), "snapshots": snapshots}
    async with MixedCluster(tmp_path, LONG_SESSION_SECONDS, **sections) as cluster:
        await cluster.start_servers()
        for name in NAMES:
            await cluster.start_daemon(name)
        await wait_until(cluster.even, "each daemon leads a shard", 60)
        topics = ["orders", "payments", "alarms", "visits"]
        for topic in topics:
            await cluster.commands.succeed("topic", "create", topic, "--segments", "2")
        stop = asyncio.Event()
        async with Producer(Client.from_config(cluster.client_config(), "load")) as producer:
            load = Load(producer)
            sending = asyncio.create_task(load.run(topics, stop))

            async def replace(name: str, *, later: bool) -> None:
                load.longest_seconds = 0.0
                await cluster.replace(name, later=later)
                await wait_until(lambda until=load.sent + 40: load.sent > until, "records are stored", 30)
                assert load.longest_seconds < LONG_SESSION_SECONDS / 2
                assert not sending.done(), sending.exception()

            for name in NAMES[:2]:
                await replace(name, later=True)
                await replace(name, later=False)
                await replace(name, later=True)
            refused = await cluster.commands.finish("cluster", "upgrade")
            assert f"feature level {LATER}: daemon c supports levels 1 to {LATER - 1}" in refused.error_message()
            await wait_until(cluster.even, "no shard is being transferred", 60)
            await cluster.empty("c")
            await replace("c", later=True)
            assert await cluster.daemons["c"].leads() == 0, "its maintenance outlasts its restart"
            await cluster.commands.succeed("daemon", "drain", "c", "--off")
            await wait_until(cluster.even, "each daemon leads a shard again", 60)
            assert (written := cluster.snapshot_fields())
            assert all("_Core.later" not in fields for fields in written)
            assert f"supports level {LATER}" in (await cluster.commands.succeed("cluster", "upgrade", "--dry-run")).out
            await cluster.commands.succeed("cluster", "upgrade")
            await wait_until(lambda: "_Core.later" in cluster.snapshot_fields()[-1], "the daemons know the level", 90)
            stop.set()
            await sending
        cluster.later = frozenset()
        older = await cluster.start_daemon("older")
        assert await older.ended() == 1
        assert f"headgate: the cluster has feature level {LATER}, and version" in older.log()

        values = Counter(int(value) for _, value in await cluster.stored())
    assert values == Counter(range(load.sent))
