"""A cluster of two daemons on one ZooKeeper, one broker and one ledger, so that one of them can be killed.

Without Spark: nothing here waits for a drain.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from controller.local.daemon_process import end_processes, settings_text, start_daemon
from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper
from controller.settings.load import (
    BrokerSettings,
    ClusterSettings,
    DrainSettings,
    HttpSettings,
    InstanceSettings,
    LedgerSettings,
    LogSettings,
    Settings,
    ZooKeeperSettings,
)
from headgate import Admin, ClientConfig
from headgate.ledger.ledger import Ledger
from headgate.model.entries import TermStarted
from headgate.storage.object_store import open_store
from tests.support.cluster import SESSION_SECONDS
from tests.support.programs import TIMEOUT_FACTOR, wait_until

CLUSTER = "two"


class TwoDaemons:
    """One shard, two daemons that contend for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = CLUSTER
        self.ledger_url = f"file://{folder / 'store'}"
        self.broker = EmbeddedBroker(folder / "broker", kind="mosquitto")
        self._zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        self._daemons: dict[str, asyncio.subprocess.Process] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._zookeeper)
            await stack.enter_async_context(self.broker)
            stack.push_async_callback(self._end_all)
            for name in ("one", "two"):
                await self.start(name)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def client_config(self) -> ClientConfig:
        """Return what a client of this cluster needs."""
        return ClientConfig(
            cluster=CLUSTER, broker_host=self.broker.host, broker_port=self.broker.port, ledger_url=self.ledger_url
        )

    async def create_topic(self, topic: str, segments: int) -> None:
        """Create a topic; returns once it is durable."""
        async with asyncio.timeout(30 * TIMEOUT_FACTOR), Admin(self.client_config()) as admin:
            await admin.create_topic(topic, segments=segments)

    async def start(self, name: str) -> None:
        """Start a daemon; it logs to ``NAME.log``."""
        settings = Settings(
            cluster=ClusterSettings(name=CLUSTER, shards=1),
            instance=InstanceSettings(name=name),
            zookeeper=ZooKeeperSettings(hosts=self._zookeeper.address, session_timeout_seconds=SESSION_SECONDS),
            broker=BrokerSettings(host=self.broker.host, port=self.broker.port),
            ledger=LedgerSettings(url=self.ledger_url),
            drain=DrainSettings(socket=f"unix:{self.folder}/drain.sock", spawn=False),
            http=HttpSettings(port=0),
            log=LogSettings(format="json"),
        )
        path = self.folder / f"{name}.toml"
        path.write_text(settings_text("", settings))
        self._daemons[name] = await start_daemon(path, self.folder / f"{name}.log")

    async def leader(self) -> str:
        """Return who began the newest reign, once somebody that runs has."""

        async def found() -> str | None:
            terms = await self.terms()
            return terms[-1] if terms and terms[-1] in self._daemons else None

        name = await wait_until(found, "somebody leads", 30)
        assert name is not None
        return name

    def freeze(self, name: str) -> None:
        """Stop a daemon where it stands."""
        self._daemons[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen daemon go on."""
        self._daemons[name].send_signal(signal.SIGCONT)

    async def kill(self, name: str) -> None:
        """End a daemon with SIGKILL."""
        process = self._daemons.pop(name)
        process.kill()
        await process.wait()

    async def terms(self) -> list[str]:
        """Return who led, in order."""
        ledger, terms, number = self._ledger(), [], 1
        while (chunk := await ledger.read_or_none(number)) is not None:
            terms += [entry.instance for entry in chunk.entries if isinstance(entry, TermStarted)]
            number += 1
        return terms

    async def records(self) -> list[tuple[int, int, bytes, bytes]]:
        """Return (segment, offset, key, value) of every record in the ledger, in its order."""
        ledger, records = self._ledger(), []
        for number in range(1, await ledger.newest() + 1):
            table = await ledger.read_records(number)
            columns = [table[name].to_pylist() for name in ("segment", "offset", "key", "value")]
            records += list(zip(*columns, strict=True))
        return records

    def _ledger(self) -> Ledger:
        return Ledger(open_store(self.ledger_url), 0)

    async def _end_all(self) -> None:
        for name in self._daemons:
            self.thaw(name)
        await end_processes(self._daemons.values(), 10 * TIMEOUT_FACTOR)
