"""A cluster for benchmarks: ZooKeeper, mosquitto and daemons in a temporary folder.

The processes of a benchmark that need their own event loop, such as a peer, run beside it. Spark runs
only for benchmarks that wait for drains. One shard, because more shards would measure the same work several times.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.harness.raw_client import RawClient
from controller.settings.files import toml_document
from headgate import Admin
from headgate.client.connection import Client
from headgate.protocol.codec import LeaderAnnouncement
from trials.cluster import LocalCluster
from trials.ordered_process import OrderedProcess

TOPIC, SHARD, SEGMENTS = "bench", 0, 4
HONEST, HOSTILE, HOSTILE_TOPIC = "honest", "hostile", "theirs"
"""Users of a secured cluster. The hostile one has rights to its own topic only, and looks at all."""
ACCESS = f"""
[[users.{HONEST}]]
role = "administrator"
[[users.{HOSTILE}]]
role = "producer"
topics = ["{HOSTILE_TOPIC}"]
[[users.{HOSTILE}]]
role = "consumer"
topics = ["{HOSTILE_TOPIC}"]
[[users.{HOSTILE}]]
role = "device"
topics = ["{HOSTILE_TOPIC}"]
[[users.{HOSTILE}]]
role = "observer"
"""
SESSION_SECONDS = 2.0
"""ZooKeeper session timeout: the shortest that a daemon accepts. Only benchmarks of leader changes wait for it."""
START_SECONDS = 90.0


class BenchCluster(LocalCluster):
    """One shard, one topic, and as many daemons as are started. Entering starts everything."""

    def __init__(self, daemons: int = 1, *, drain: bool = False, **options: Any) -> None:
        """``daemons`` are started at first, named d1, d2 and so on; ``drain`` adds a warm Spark process.

        ``options`` are for `LocalCluster`.
        """
        self._drain = drain
        self._first_daemons = [f"d{number + 1}" for number in range(daemons)]
        self._temporary = tempfile.TemporaryDirectory(prefix="headgate-bench-")
        super().__init__(
            Path(self._temporary.name),
            name="bench",
            session_seconds=SESSION_SECONDS,
            broker_kind="mosquitto",
            **options,
        )

    async def begin(self) -> None:
        """Start everything, and create the topic."""
        await self.start_servers()
        if self._drain:
            await self.start_spark()
        for name in self._first_daemons:
            await self.start_daemon(name)
        async with asyncio.timeout(START_SECONDS), Admin(self.client_config()) as admin:
            await admin.create_topic(TOPIC, segments=SEGMENTS)

    async def __aexit__(self, *_: object) -> None:
        with self._temporary:
            await super().__aexit__()

    async def watcher(self, stack: AsyncExitStack) -> Client:
        """Return a client that watches the leader, once it knows one; it is open until ``stack`` is closed."""
        client = await stack.enter_async_context(Client.from_config(self.client_config(), "watcher"))
        known = asyncio.Event()
        client.on_leader(SHARD, lambda _: known.set())
        await client.watch_leader(SHARD)
        async with asyncio.timeout(START_SECONDS):
            await known.wait()
        return client


class SecuredBenchCluster(BenchCluster):
    """A `BenchCluster` with access control and TLS, and with a topic for the hostile user."""

    def __init__(self) -> None:
        super().__init__(access=ACCESS, tls=True)

    async def begin(self) -> None:
        """Start everything, and create both topics."""
        await super().begin()
        async with asyncio.timeout(START_SECONDS), Admin(self.client_config()) as admin:
            await admin.create_topic(HOSTILE_TOPIC)

    def raw_client(self, client_id: str) -> RawClient:
        """Return a connection of the honest user without a client library, such as that of a device."""
        return RawClient.from_config(self.client_config(), client_id)

    async def start_hostile(self, stack: AsyncExitStack, seconds: float) -> OrderedProcess:
        """Start bench.harness.attacker until ``stack`` is closed; it rests, and will attack for ``seconds``."""
        config = self.folder / "hostile.toml"
        config.write_text(toml_document("", self.client_config(user=HOSTILE)))
        process, _ = await OrderedProcess.start(stack, "bench.harness.attacker", str(config), str(seconds))
        return process


def leader_epoch(client: Client) -> int:
    """Return the epoch of the leader that ``client`` knows."""
    known: LeaderAnnouncement | None = client.leader(SHARD)
    assert known is not None, "no leader is known"
    return known.leader_epoch


def percentile(values: list[float], fraction: float) -> float:
    """Return the smallest of ``values`` that at least ``fraction`` (0 to 1) of them do not exceed."""
    assert values, "nothing was measured"
    ranked = sorted(values)
    return ranked[max(0, -(-int(fraction * 10_000) * len(ranked) // 10_000) - 1)]
