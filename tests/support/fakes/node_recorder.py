"""A daemon and servers that only record what `headgate up` and `headgate run` do with them."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from controller.local.broker_access import BrokerAccess
from controller.local.certificates import ServerTls
from controller.settings.load import Settings
from metrics.health import Health
from tests.support.fakes.cli_client import FakeCluster, InProcessContext
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.waiting import until

LEDGER = '[access]\nopen = true\n[ledger]\nurl = "file:///var/lib/headgate/ledger"\n'
"""The least that a settings file must say."""
ANY_PORTS = ("--mqtt-port", "0", "--zookeeper-port", "0", "--http-port", "0")


class NodeRecorder:
    """Events in order, and instructions for the fakes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.observer = RecordingObserver()
        self.tls: dict[str, ServerTls | None] = {}
        self.settings: list[Settings] = []
        self.signal: int | None = signal.SIGTERM
        """Sent to this process once the daemon runs; None: the daemon ends, with ``failure`` if that is set."""
        self.failure: Exception | None = None
        self.before_signal: Callable[[], None] = lambda: None
        """Called in the daemon, before it sends the signal."""
        self.healths = [Health(True, "", ())]
        """What the daemon is, one after the other. It sends the signal once it has said the last one."""
        self.health_at_stop, self.stop_seconds = self.healths[0], 0.01
        self.reloaded: list[Settings] = []
        self.drain_state = ("starting", "the Spark process is starting")
        self.topic_check: Callable[[], Awaitable[None]]
        """Runs where a client command checks that its topic exists."""


class FakeServer:
    """Replaces the embedded ZooKeeper and broker."""

    host, kind = "127.0.0.1", "mosquitto"

    def __init__(self, recorder: NodeRecorder, name: str, port: int, tls: ServerTls | None) -> None:
        self.recorder, self.name, self.port = recorder, name, port
        recorder.tls[name] = tls
        self.address = f"127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        self.recorder.events.append(f"{self.name} up")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.recorder.events.append(f"{self.name} down")

    def reload(self) -> None:
        self.recorder.events.append(f"{self.name} reloaded")


class FakeDaemon:
    """Replaces the daemon: runs until it is stopped, and records that."""

    http = SimpleNamespace(address="127.0.0.1:9464")

    def __init__(self, recorder: NodeRecorder, settings: Settings) -> None:
        self.recorder = recorder
        self.instruments = recorder.observer
        recorder.settings.append(settings)

    @property
    def drain(self) -> SimpleNamespace:
        return SimpleNamespace(state=self.recorder.drain_state)

    def health(self) -> Health:
        return self.recorder.healths.pop(0) if len(self.recorder.healths) > 1 else self.recorder.healths[0]

    def reload(self, read: Settings) -> None:
        self.recorder.reloaded.append(read)

    async def run(self, stop: asyncio.Event) -> None:
        self.recorder.events.append("daemon up")
        await asyncio.sleep(0.01)
        await until(lambda: len(self.recorder.healths) == 1)
        if self.recorder.signal is None:
            if self.recorder.failure is not None:
                raise self.recorder.failure
            return
        self.recorder.before_signal()
        os.kill(os.getpid(), self.recorder.signal)
        if self.recorder.signal == signal.SIGHUP:
            # Handlers run in order, so the second one sees the effect of the first.
            os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        # A handover takes a moment, during which the servers must still run.
        self.recorder.healths = [self.recorder.health_at_stop]
        await asyncio.sleep(self.recorder.stop_seconds)
        self.recorder.events.append("daemon down")


class NodeContext(InProcessContext):
    """Commands get fakes of the daemon and its servers."""

    def __init__(self, cluster: FakeCluster, recorder: NodeRecorder) -> None:
        super().__init__(cluster)
        self.recorder = recorder

    def require_machine(self, _: Path) -> None:
        """The fakes need nothing."""

    async def move_ledger(self, settings: Settings, before: str) -> None:
        self.recorder.events.append(f"{before} is now {settings.ledger.url}")

    def new_daemon(self, settings: Settings) -> Any:
        return FakeDaemon(self.recorder, settings)

    def new_zookeeper(self, _: Path, port: int, tls: ServerTls | None) -> Any:
        return FakeServer(self.recorder, "zookeeper", port, tls)

    def new_broker(self, _: Path, port: int, tls: ServerTls | None, access: BrokerAccess | None) -> Any:
        assert (tls is None) == (access is None)
        return FakeServer(self.recorder, "broker", port, tls)

    async def start_daemon(self, config: Path, _: Path) -> Any:
        self.recorder.events.append(f"second daemon up: {config}")
        return FakeProcess(self.recorder)

    async def answer(self, _: Any) -> Any:
        await self.recorder.topic_check()


class FakeProcess:
    """Replaces the process of a further daemon."""

    pid = 7

    def __init__(self, recorder: NodeRecorder) -> None:
        self.recorder = recorder

    async def wait(self) -> int:
        return 1

    def send_signal(self, number: int) -> None:
        self.recorder.events.append(f"second daemon gets {signal.Signals(number).name}")

    async def stop(self, timeout_seconds: float) -> bool:
        self.recorder.events.append("second daemon down")
        return timeout_seconds > 0
