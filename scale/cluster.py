"""The cluster of a trial, the processes of its clients, and what all of them use.

One ZooKeeper server, mosquitto, a folder as the object store, and daemons that spread the shards. What is not the
default is named where `ScaleCluster` is made.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from controller.settings.sections import SnapshotSettings, SpreadSettings, SubscriptionSettings
from headgate.errors import HeadgateError
from scale.clients import PROCESSES
from scale.sizes import scaled
from trials.cluster import ANSWER_SECONDS, LocalCluster, last_line
from trials.ordered_process import OrderedProcess

SNAPSHOT_SECONDS: Final = 5.0
"""Between two snapshot jobs of a daemon: the trial is too short for the default of 30."""
SNAPSHOT_CHUNKS: Final = 200
SETTLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Usage:
    pid: int
    memory_bytes: int
    processor_seconds: float


class ScaleCluster(LocalCluster):
    """Entering starts nothing."""

    def __init__(self, folder: Path, scale: float, *, spark: bool) -> None:
        """``spark``: whether Spark, which the daemons ask, is started as well."""
        self.sizes = scaled(scale)
        super().__init__(
            folder,
            name="scale",
            shards=self.sizes.shards,
            session_seconds=6.0,
            broker_kind="mosquitto",
            spread=SpreadSettings(settle_seconds=SETTLE_SECONDS),
            snapshots=SnapshotSettings(min_chunks=SNAPSHOT_CHUNKS, min_interval_seconds=SNAPSHOT_SECONDS),
            subscriptions=SubscriptionSettings(
                heartbeat_interval_seconds=self.sizes.heartbeat_seconds, grace_seconds=self.sizes.grace_seconds
            ),
        )
        self.has_spark = spark
        self.names = [f"daemon-{number + 1}" for number in range(self.sizes.daemons)]
        self._scale = scale
        self._clients: list[OrderedProcess] = []
        self._running_clients = AsyncExitStack()

    async def __aexit__(self, *_: object) -> None:
        await self._running_clients.aclose()
        await super().__aexit__()

    async def start_daemons(self) -> None:
        await asyncio.gather(*(self.start_daemon(name) for name in self.names if name not in self.daemons))

    def require_running(self) -> None:
        """Raise HeadgateError if a daemon ended on its own."""
        if ended := self.exited_programs():
            raise HeadgateError(f"{ended[0]} ended on its own: {last_line(self.log_path(ended[0]))}")

    async def start_clients(self) -> None:
        """Start the processes of the clients; return when they are connected."""
        for number in range(PROCESSES):
            words, log_path = (str(self.client_config_path), str(self._scale)), self.log_path(f"clients-{number}")
            process, _ = await OrderedProcess.start(
                self._running_clients, "scale.clients", *words, str(number), log_path=log_path
            )
            self._clients.append(process)

    async def order(self, word: str) -> list[Any]:
        return await asyncio.gather(*(each.order(word) for each in self._clients))

    def usage(self) -> dict[str, list[Usage]]:
        """Return what each kind of process uses: ``daemon``, ``broker``, ``zookeeper``, ``clients``."""
        pids: dict[str, list[int | None]] = {
            "daemon": [daemon.process.pid for daemon in self.daemons.values()],
            "broker": [self.broker.pid],
            "zookeeper": [self.zookeeper.pid],
            "clients": [each.pid for each in self._clients],
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
        values = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
        # The upper half counts elections, which are no writes.
        return {"nodes": int(values["Node count"]), "writes": int(values["Zxid"], 16) & 0xFFFFFFFF}


def _usage(pid: int) -> Usage:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Usage(
            pid, process.memory_info().rss, times.user + times.system + times.children_user + times.children_system
        )
    except psutil.NoSuchProcess:
        return Usage(pid, 0, 0.0)
