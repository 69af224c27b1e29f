"""The servers and processes of one demo run, in a folder of its own, on free ports of the loopback interface.

Starts: ZooKeeper, an MQTT broker, the Spark process, two daemons, one producer, the consumers. Everything is a child
of this process and ends with it. Nothing is decided here; demo.scenario tells what happens when.
"""

from __future__ import annotations

import asyncio
import os
import sys
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
    SubscriptionSettings,
    ZooKeeperSettings,
)
from drain.checker.supervisor import DrainSupervisor
from headgate.config import ClientConfig
from headgate.errors import HeadgateError
from headgate.parent_death_signal import with_parent_death_signal

CLUSTER = "demo"
SHARDS = 2
TOPIC = "telemetry"
GRACE_SECONDS = 6.0
START_SECONDS = 90.0
"""Longest wait for Spark: about 8 s on an idle machine."""
STOP_SECONDS = 20.0
"""Longest wait for a process that was asked to end; then it is killed."""


class DemoCluster:
    """Everything that runs during the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_path = folder / "client.toml"
        self.ledger_url = f"file://{folder / 'store'}"
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.broker_kind = ""
        self._stack = AsyncExitStack()
        self._broker: EmbeddedBroker | None = None
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._drain_socket = f"unix:{folder / 'drain.sock'}"

    async def __aenter__(self) -> Self:
        try:
            self._zookeeper = await self._stack.enter_async_context(EmbeddedZooKeeper(self.folder / "zookeeper"))
            self._broker = await self._stack.enter_async_context(EmbeddedBroker(self.folder / "broker"))
            self.broker_kind = self._broker.kind
            spark_ready = asyncio.Event()
            await self._stack.enter_async_context(
                DrainSupervisor(
                    ledger_url=self.ledger_url,
                    socket=self._drain_socket,
                    folder=self.folder / "spark",
                    on_state=lambda state, _: spark_ready.set() if state == "ready" else None,
                ),
            )
            async with asyncio.timeout(START_SECONDS):
                await spark_ready.wait()
        except TimeoutError:
            await self._stack.aclose()
            log = self.folder / "spark" / "drain.log"
            raise HeadgateError(f"Spark was not ready within {START_SECONDS:g} s; its log is {log}") from None
        except BaseException:
            await self._stack.aclose()
            raise
        config = self.client_config()
        self.config_path.write_text(
            f'cluster = "{config.cluster}"\nbroker_host = "{config.broker_host}"\n'
            f'broker_port = {config.broker_port}\nledger_url = "{config.ledger_url}"\n',
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.processes):
            await self.stop(name)
        await self._stack.aclose()

    def client_config(self) -> ClientConfig:
        """Return what a client of this cluster needs."""
        assert self._broker is not None, "the cluster is not up"
        return ClientConfig(
            cluster=CLUSTER,
            broker_host=self._broker.host,
            broker_port=self._broker.port,
            ledger_url=self.ledger_url,
        )

    async def start_daemon(self, name: str) -> None:
        """Start a daemon; it logs to ``NAME.log``."""
        assert self._broker is not None, "the cluster is not up"
        assert self._zookeeper is not None, "the cluster is not up"
        settings = Settings(
            cluster=ClusterSettings(name=CLUSTER, shards=SHARDS),
            instance=InstanceSettings(name=name),
            zookeeper=ZooKeeperSettings(hosts=self._zookeeper.address, session_timeout_seconds=4),
            broker=BrokerSettings(host=self._broker.host, port=self._broker.port),
            ledger=LedgerSettings(url=self.ledger_url),
            drain=DrainSettings(socket=self._drain_socket, spawn=False),
            http=HttpSettings(port=0),
            subscriptions=SubscriptionSettings(
                grace_seconds=GRACE_SECONDS, heartbeat_interval_seconds=1.5, revoke_timeout_seconds=15
            ),
            log=LogSettings(format="json"),
        )
        path = self.folder / f"{name}.toml"
        path.write_text(settings_text("One daemon of the demo.", settings))
        self.processes[name] = await start_daemon(path, self.log(name))

    async def start_producer(self, rate: int) -> None:
        """Start the producer."""
        await self._start(
            "producer",
            *("-m", "demo.producer", "--config", str(self.config_path), "--topic", TOPIC),
            *("--rate", str(rate), "--out", str(self.output_path("producer"))),
        )

    async def start_consumer(self, name: str, subscription: str, kind: str) -> None:
        """Start one consumer of ``subscription``."""
        await self._start(
            name,
            *("-m", "demo.consumer", "--config", str(self.config_path), "--topic", TOPIC, "--name", name),
            *("--subscription", subscription, "--type", kind, "--out", str(self.output_path(name))),
        )

    async def stop(self, name: str) -> int:
        """Ask a process to end and return its exit code; one that does not in time is killed."""
        process = self.processes.pop(name)
        await end_processes([process], STOP_SECONDS)
        return await process.wait()

    async def kill(self, name: str) -> None:
        """End a process with SIGKILL: no goodbye, no flush."""
        process = self.processes.pop(name)
        process.kill()
        await process.wait()

    def exited_processes(self) -> list[str]:
        """Return the names of processes that ended although nobody asked them to."""
        return sorted(name for name, process in self.processes.items() if process.returncode is not None)

    def output_path(self, name: str) -> Path:
        """Return where a producer or consumer writes down what it saw."""
        return self.folder / f"{name}.notes"

    def log(self, name: str) -> Path:
        """Return where a process logs."""
        return self.folder / f"{name}.log"

    async def _start(self, name: str, *arguments: str) -> None:
        with self.log(name).open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *with_parent_death_signal(sys.executable, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
