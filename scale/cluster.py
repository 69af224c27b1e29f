"""The cluster of a trial, the processes of its clients, and what all of them use.

One ZooKeeper server, mosquitto, a folder as the object store, and daemons that spread the shards. What is not the
default is named where `ScaleCluster` is made.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from controller.settings.sections import SnapshotSettings, SpreadSettings, StandbySettings, SubscriptionSettings
from headgate.errors import HeadgateError
from headgate.process.child_command import python_module
from headgate.process.parent_death_signal import with_parent_death_signal
from scale.clients import Shares
from scale.sizes import Sizes
from trials.cluster import ANSWER_SECONDS, LocalCluster, last_line

SNAPSHOT_SECONDS: Final = 5.0
"""Between two snapshot jobs of a daemon: the trial is too short for the default of 30."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Of one line of a process of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What the user asked for besides the sizes."""

    processes: int
    connections: int
    """Of all processes of clients together."""
    in_flight: int
    """Openings of producers that are under way at the same time, over all processes."""
    settle_seconds: float
    rest_seconds: float
    """How long processes are looked at while nothing but heartbeats is asked of them."""
    snapshot_chunks: int
    standby_bytes: int
    spark: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process and the children that it has awaited."""

    pid: int
    memory_bytes: int
    processor_seconds: float


class ScaleCluster(LocalCluster):
    """Entering starts nothing."""

    def __init__(self, folder: Path, sizes: Sizes, options: TrialOptions) -> None:
        super().__init__(
            folder,
            name="scale",
            shards=sizes.shards,
            session_seconds=6.0,
            broker_kind="mosquitto",
            spread=SpreadSettings(settle_seconds=options.settle_seconds),
            snapshots=SnapshotSettings(min_chunks=options.snapshot_chunks, min_interval_seconds=SNAPSHOT_SECONDS),
            standby=StandbySettings(memory_bytes=options.standby_bytes),
            subscriptions=SubscriptionSettings(
                heartbeat_interval_seconds=sizes.heartbeat_seconds, grace_seconds=sizes.grace_seconds
            ),
        )
        self.sizes = sizes
        self.options = options
        self.names = [f"daemon-{number + 1}" for number in range(sizes.daemons)]
        self.clients: list[ClientProcess] = []

    async def __aexit__(self, *_: object) -> None:
        for each in self.clients:
            await each.kill()
        await super().__aexit__()

    async def start_daemons(self) -> None:
        """Start all daemons that do not run."""
        await asyncio.gather(*(self.start_daemon(name) for name in self.names if name not in self.daemons))

    def require_running(self) -> None:
        """Raise HeadgateError if a daemon ended on its own."""
        if ended := self.exited_programs():
            raise HeadgateError(f"{ended[0]} ended on its own: {last_line(self.log_path(ended[0]))}")

    async def start_clients(self) -> None:
        """Start the processes of the clients; return when they are connected."""
        options = self.options
        for number in range(options.processes):
            shares = Shares(
                sizes=asdict(self.sizes),
                number=number,
                processes=options.processes,
                connections=max(1, options.connections // options.processes),
                in_flight=max(1, options.in_flight // options.processes),
            )
            self.clients.append(
                await ClientProcess.start(self.client_config_path, shares, self.log_path(f"clients-{number}"))
            )
        for each in self.clients:
            await each.answer()

    async def order(self, word: str) -> list[dict[str, Any]]:
        """Give all processes of clients an order; return their answers."""
        return await asyncio.gather(*(each.order(word) for each in self.clients))

    def progress(self) -> tuple[int, int]:
        """Return how much of the present order the processes of clients have done, and of how much."""
        done, of = zip(*(each.progress for each in self.clients), strict=True)
        return sum(done), sum(of)

    def usage(self) -> dict[str, list[Usage]]:
        """Return what each kind of process uses: ``daemon``, ``broker``, ``zookeeper``, ``clients``."""
        pids: dict[str, list[int | None]] = {
            "daemon": [daemon.process.pid for daemon in self.daemons.values()],
            "broker": [self.broker.pid],
            "zookeeper": [self.zookeeper.pid],
            "clients": [each.pid for each in self.clients],
        }
        return {kind: [_usage(pid) for pid in each if pid is not None] for kind, each in pids.items()}

    async def zookeeper_numbers(self) -> dict[str, int]:
        """Return ZooKeeper's count of nodes, and of the writes since it started."""
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(self.zookeeper.host, self.zookeeper.port)
            try:
                writer.write(b"srvr")
                answer = (await reader.read(-1)).decode()
            finally:
                writer.close()
        return read_srvr(answer)


def read_srvr(answer: str) -> dict[str, int]:
    """Return ``nodes`` and ``writes`` from the answer to ``srvr``."""
    values = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    # The upper half counts elections, which are no writes.
    return {"nodes": int(values["Node count"]), "writes": int(values["Zxid"], 16) & 0xFFFFFFFF}


class ClientProcess:
    """A running scale.clients."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.progress = (0, 0)
        """How much of the present order is done, and of how much."""
        self._process = process
        self._log_path = log_path

    @classmethod
    async def start(cls, config: Path, shares: Shares, log_path: Path) -> ClientProcess:
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *with_parent_death_signal(
                    *python_module("scale.clients", str(config), msgspec.json.encode(shares).decode())
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=MAX_ANSWER_BYTES,
            )
        return cls(process, log_path)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def order(self, word: str) -> dict[str, Any]:
        """Give an order and return its answer."""
        assert self._process.stdin is not None, "started with a pipe"
        self.progress = (0, 0)
        self._process.stdin.write(json.dumps({"do": word}).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """Return the next answer. Raises HeadgateError if the process has ended."""
        assert self._process.stdout is not None, "started with a pipe"
        while line := await self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if "done" not in answer:
                return answer
            self.progress = (answer["done"], answer["of"])
        code = await self._process.wait()
        raise HeadgateError(f"a process of clients ended with code {code}: {last_line(self._log_path)}")

    async def kill(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def _usage(pid: int) -> Usage:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Usage(
            pid, process.memory_info().rss, times.user + times.system + times.children_user + times.children_system
        )
    except psutil.NoSuchProcess:
        return Usage(pid, 0, 0.0)
