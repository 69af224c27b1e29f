"""A real cluster for benchmarks: ZooKeeper, mosquitto and daemons, in a temporary folder.

Everything is a process of its own on a free loopback port, is started by whoever measures, and ends with it. Spark only
where a benchmark waits for drains. One shard, so that nothing is measured twice over.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
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
from drain.checker.supervisor import DrainSupervisor
from headgate import Admin, ClientConfig
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.ledger.ledger import Ledger
from headgate.model.entries import TermStarted
from headgate.parent_death_signal import with_parent_death_signal
from headgate.protocol import messages as m
from headgate.storage.object_store import open_store

CLUSTER, TOPIC, SHARD, SEGMENTS = "bench", "bench", 0, 4
SESSION_SECONDS = 2.0
"""ZooKeeper's session: the shortest that a daemon takes, because only benchmarks about a change of leader wait for
it.
"""
START_SECONDS = 90.0
SPARK_SECONDS = 120.0
"""Starting and warming Spark takes some 20 s of a core."""
STOP_SECONDS = 20.0


class BenchCluster:
    """One shard, one topic, and as many daemons as are started. Use it as an async context manager."""

    def __init__(self, daemons: int = 1, *, drain: bool = False) -> None:
        """``daemons`` are started at once, named d1, d2 and so on; ``drain``: with a warm Spark process."""
        self._drain = drain
        self._stack = AsyncExitStack()
        self._first = [f"d{number + 1}" for number in range(daemons)]
        self._daemons: dict[str, asyncio.subprocess.Process] = {}
        self.folder = Path()
        self.ledger_url = ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
            self.ledger_url = f"file://{self.folder / 'store'}"
            self._zookeeper = await stack.enter_async_context(EmbeddedZooKeeper(self.folder / "zookeeper"))
            self._broker = await stack.enter_async_context(EmbeddedBroker(self.folder / "broker", kind="mosquitto"))
            if self._drain:
                await self._start_drain(stack)
            stack.push_async_callback(self._end_daemons)
            for name in self._first:
                await self.start(name)
            async with asyncio.timeout(START_SECONDS), Admin(self.config()) as admin:
                await admin.create_topic(TOPIC, segments=SEGMENTS)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def zookeeper_address(self) -> str:
        """Where its ZooKeeper listens, as host:port."""
        return self._zookeeper.address

    def config(self, port: int | None = None) -> ClientConfig:
        """Return what a client needs; ``port``: that of a delayed wire to the broker."""
        return ClientConfig(
            cluster=CLUSTER,
            broker_host=self._broker.host,
            broker_port=port or self._broker.port,
            ledger_url=self.ledger_url,
        )

    async def watcher(self, stack: AsyncExitStack) -> Client:
        """Return a client that follows who leads, open until ``stack`` ends, once it knows a leader."""
        client = await stack.enter_async_context(Client.from_config(self.config(), "watcher"))
        known = asyncio.Event()
        client.on_leader(SHARD, lambda _: known.set())
        await client.watch_leader(SHARD)
        async with asyncio.timeout(START_SECONDS):
            await known.wait()
        return client

    @property
    def drain_socket(self) -> str:
        """Where the Spark process listens, if there is one."""
        return f"unix:{self.folder / 'drain.sock'}"

    async def _start_drain(self, stack: AsyncExitStack) -> None:
        ready = asyncio.Event()
        await stack.enter_async_context(
            DrainSupervisor(
                ledger_url=self.ledger_url,
                socket=self.drain_socket,
                folder=self.folder / "spark",
                on_state=lambda state, _: ready.set() if state == "ready" else None,
            ),
        )
        async with asyncio.timeout(SPARK_SECONDS):
            await ready.wait()

    # --- daemons ------------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start a daemon; it logs to ``NAME.log``."""
        settings = Settings(
            cluster=ClusterSettings(name=CLUSTER, shards=1),
            instance=InstanceSettings(name=name),
            zookeeper=ZooKeeperSettings(hosts=self._zookeeper.address, session_timeout_seconds=SESSION_SECONDS),
            broker=BrokerSettings(host=self._broker.host, port=self._broker.port),
            ledger=LedgerSettings(url=self.ledger_url),
            drain=DrainSettings(socket=self.drain_socket, spawn=False),
            http=HttpSettings(port=0),
            log=LogSettings(format="json"),
        )
        path = self.folder / f"{name}.toml"
        path.write_text(settings_text("One daemon of a benchmark.", settings))
        self._daemons[name] = await start_daemon(path, self.folder / f"{name}.log")

    async def kill(self, name: str) -> None:
        """End a daemon with SIGKILL: no goodbye, no flush."""
        process = self._daemons.pop(name)
        process.kill()
        await process.wait()

    async def stop(self, name: str) -> None:
        """Ask a daemon to end, and wait until it has; one that does not in time is killed."""
        await end_processes([self._daemons.pop(name)], STOP_SECONDS)

    async def _end_daemons(self) -> None:
        await end_processes(self._daemons.values(), STOP_SECONDS)

    # --- other processes ----------------------------------------------------------------------------------------------

    async def delayed(self, stack: AsyncExitStack, delays_ms: list[int]) -> dict[int, int]:
        """Return delay each way in milliseconds → port of a wire to the broker, open until ``stack`` ends."""
        said = await self._start_helper(stack, "bench._delay", *(str(delay) for delay in delays_ms))
        return dict(zip(delays_ms, map(int, said.split()), strict=True))

    async def peer(self, stack: AsyncExitStack) -> None:
        """Start bench._peer until ``stack`` ends."""
        said = await self._start_helper(stack, "bench._peer")
        assert said == "ready", said

    async def _start_helper(self, stack: AsyncExitStack, module: str, *arguments: str) -> str:
        """Start ``module`` beside the broker, and return the line with which it says that it is there."""
        process = await asyncio.create_subprocess_exec(
            *with_parent_death_signal(
                sys.executable, "-m", module, self._broker.host, str(self._broker.port), *arguments
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        stack.push_async_callback(_end, process)
        assert process.stdout is not None, "its standard output is ours"
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise HeadgateError(f"{module} ended before it began")
        return line.decode().strip()

    # --- what is stored -----------------------------------------------------------------------------------------------

    async def terms(self) -> list[str]:
        """Return who led, in order."""
        ledger, terms, number = Ledger(open_store(self.ledger_url), SHARD), [], 1
        while (chunk := await ledger.read_or_none(number)) is not None:
            terms += [entry.instance for entry in chunk.entries if isinstance(entry, TermStarted)]
            number += 1
        return terms


def leader_epoch(client: Client) -> int:
    """Return the epoch of the leader that ``client`` knows."""
    known: m.LeaderAnnouncement | None = client.leader(SHARD)
    assert known is not None, "nobody leads"
    return known.leader_epoch


def percentile(values: list[float], share: float) -> float:
    """Return the smallest of ``values`` that at least ``share`` (0 to 1) of them do not exceed."""
    assert values, "nothing was measured"
    ranked = sorted(values)
    return ranked[max(0, -(-int(share * 10_000) * len(ranked) // 10_000) - 1)]


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None, "its standard input is ours"
    process.stdin.close()
    await process.wait()
