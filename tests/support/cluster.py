"""Servers of our own and daemons against them, each of which can be killed, frozen and started again.

Ports are held from before anything runs until everything has ended: a daemon can be started before its servers, and
they come back where they were. Without Spark: nothing here waits for a drain.
"""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from controller.local.daemon_process import settings_text
from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper
from controller.local.reserved_port import LOOPBACK, ReservedPort
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
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import open_store
from tests.support.programs import CommandResult, RunningProgram, finish, get, metric, start, wait_until, whole_lines

SESSION_SECONDS = 4.0
"""Short, because what follows a kill begins after it; twice the shortest that a daemon takes, because on a busy machine
nobody must lose a session who was not frozen or killed."""
SHARDS = 2


class Daemon:
    """One `headgate run`."""

    def __init__(self, running: RunningProgram, settings: Settings) -> None:
        self.running = running
        self.settings = settings
        self.http = f"{settings.http.host}:{settings.http.port}"

    async def leads(self) -> int:
        """Return the number of shards that it leads; 0 if it does not answer."""
        return int(await metric(self.http, "headgate_shard_is_leader"))

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Return status and report of /readyz."""
        status, body = await get(self.http, "/readyz")
        return status, json.loads(body) if body else {}

    async def says(self, status: int, part: str, state: str) -> bool:
        """Whether /readyz answers with ``status``, and calls ``part`` so."""
        found, report = await self.health()
        return found == status and bool(report["components"][part]["state"] == state)

    async def until_leading(self, shards: int = SHARDS, seconds: float = 30.0) -> None:
        """Wait until it leads so many shards."""

        async def reached() -> bool:
            return await self.leads() == shards

        await wait_until(reached, lambda: f"it leads {shards} shards: {self.log_tail()}", seconds)

    def log_entries(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of its log with ``event`` in them."""
        return [json.loads(line) for line in whole_lines(self.running.err) if line.startswith("{") and event in line]

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.running.err.read_text()[-2000:]


class Cluster:
    """One cluster; entering starts nothing, leaving ends everything."""

    def __init__(self, folder: Path, session_seconds: float = SESSION_SECONDS, **sections: msgspec.Struct) -> None:
        """``sections``: settings of every daemon that shall not be the usual ones."""
        self.folder = folder
        self.sections = sections
        self.name = "test"
        self.session_seconds = session_seconds
        self.config = folder / "client.toml"
        self.ledger_url = f"file://{folder / 'store'}"
        self._ports = ExitStack()
        self.broker_port = self._free_port()
        self.zookeeper_port = self._free_port()
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper", self.zookeeper_port)
        self.broker = EmbeddedBroker(folder / "broker", self.broker_port)
        self._stack = AsyncExitStack()
        self._processes: list[RunningProgram] = []
        self._counts: list[list[int]] = [[] for _ in range(SHARDS)]
        self.config.write_text(
            f'cluster = "{self.name}"\nbroker_host = "{LOOPBACK}"\nbroker_port = {self.broker_port}\n'
            f'ledger_url = "{self.ledger_url}"\n'
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self._processes:
            # A frozen process does not hear SIGTERM.
            await running.kill()
        await self._stack.aclose()
        self._ports.close()

    async def start_zookeeper(self) -> None:
        """Start ZooKeeper; it ends with the cluster."""
        await self._stack.enter_async_context(self.zookeeper)

    async def start_broker(self) -> None:
        """Start the broker; it ends with the cluster."""
        await self._stack.enter_async_context(self.broker)

    async def start_servers(self) -> None:
        """Start both."""
        await self.start_zookeeper()
        await self.start_broker()

    async def start_daemon(self, name: str) -> Daemon:
        """Start a daemon; it logs to ``NAME.err``."""
        settings = self.settings(name, self._free_port())
        running = await start("run", "--config", str(self.write(settings)), out=self.folder / f"{name}.out")
        self._processes.append(running)
        return Daemon(running, settings)

    def settings(self, name: str, http_port: int) -> Settings:
        """Return what a daemon is started with."""
        settings = Settings(
            cluster=ClusterSettings(name=self.name, shards=SHARDS),
            instance=InstanceSettings(name=name),
            zookeeper=ZooKeeperSettings(
                hosts=f"{LOOPBACK}:{self.zookeeper_port}", session_timeout_seconds=self.session_seconds
            ),
            broker=BrokerSettings(host=LOOPBACK, port=self.broker_port),
            ledger=LedgerSettings(url=self.ledger_url),
            drain=DrainSettings(socket=f"unix:{self.folder}/drain.sock", spawn=False),
            http=HttpSettings(port=http_port),
            log=LogSettings(format="json"),
        )
        return settings.replace(**self.sections)

    def write(self, settings: Settings) -> Path:
        """Write the file that the daemon of this name reads when it starts, and again at each SIGHUP; return its path."""
        path = self.folder / f"{settings.instance.name}.toml"
        path.write_text(settings_text("", settings))
        return path

    def reload(self, daemon: Daemon, settings: Settings) -> None:
        """Give a daemon's file other settings, and tell it to read them."""
        self.write(settings)
        daemon.running.signal(signal.SIGHUP)

    def _free_port(self) -> int:
        return self._ports.enter_context(ReservedPort()).number

    async def command(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a client command."""
        return await finish("--config", str(self.config), *arguments, stdin=stdin, seconds=seconds)

    async def done(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a client command that must succeed."""
        finished = await self.command(*arguments, stdin=stdin, seconds=seconds)
        assert finished.code == 0, finished.err
        return finished

    async def running(self, name: str, *arguments: str) -> RunningProgram:
        """Start a client command; it prints to ``NAME.out`` and ``NAME.err``."""
        running = await start("--config", str(self.config), *arguments, out=self.folder / f"{name}.out")
        self._processes.append(running)
        return running

    async def stored(self) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of every record of every shard, in the order of its ledger."""
        found: list[tuple[bytes, bytes]] = []
        store = open_store(self.ledger_url)
        for shard in range(SHARDS):
            ledger = Ledger(store, shard)
            for number in range(1, await ledger.newest() + 1):
                table = await ledger.read_records(number)
                found += zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
        return found

    async def stored_count(self) -> int:
        """Return the number of records stored; fast, because chunks never change and are counted once."""
        store = open_store(self.ledger_url)
        for shard, counts in enumerate(self._counts):
            ledger = Ledger(store, shard)
            for number in range(len(counts) + 1, await ledger.newest() + 1):
                counts.append((await ledger.read_records(number)).num_rows)
        return sum(map(sum, self._counts))

    async def until_stored(self, count: int, seconds: float = 30.0) -> None:
        """Wait until the ledger holds at least so many records."""

        async def enough() -> bool:
            return await self.stored_count() >= count

        await wait_until(enough, f"{count} records are stored", seconds)
