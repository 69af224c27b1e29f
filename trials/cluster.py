"""A cluster of real processes on this machine: ZooKeeper, an MQTT broker, Spark and any number of daemons.

The demo, the benchmarks and the system tests run on it. Every process can be stopped, killed, frozen and started again.
The cluster reserves all ports when it is created, so that a daemon can start before its servers, and each server and
daemon comes back on its port. Everything is on loopback and in one folder. Process NAME writes its log to ``NAME.log``.

`headgate up` shares the parts (controller.local.servers, controller.local.security), not this class: its daemon runs
inside its own process, and its ports stay the same across runs.

The servers of a ZooKeeper ensemble speak to each other without TLS. The limits suit one machine: a follower that is
silent for two seconds is dropped. A member serves once it is connected to a majority, so all are started at once.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec

from controller.local.certificates import ServerTls
from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper, probe
from controller.local.reserved_port import LOOPBACK, ReservedPort
from controller.local.security import ACCESS, LocalSecurity
from controller.local.servers import LocalServers
from controller.local.supervised_process import PROBE_TIMEOUT_SECONDS, ProcessSpec
from controller.settings.files import toml_document
from controller.settings.load import Settings
from controller.settings.sections import ClusterSettings, DrainSettings, LogSettings, SpreadSettings
from drain.checker.supervisor import LOG_NAME, DrainSupervisor, service_command
from headgate.errors import HeadgateError
from headgate.files.tls import client_context
from headgate.ledger.ledger import Ledger, if_exists
from headgate.model.entries import TermStarted
from headgate.process.child_process import ChildProcess, python_module
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import open_store
from headgate.transport.loopback import host_port

INIT_TICKS: Final = 60
"""Longest start of a follower: 30 s of half a second each, for a busy machine."""
SYNC_TICKS: Final = 4
SPARK_START_SECONDS = 600.0
"""Longest wait for Spark: about 8 s on an idle machine, 20 s of one core on a busy one. Its supervisor
restarts it earlier than that."""
STOP_SECONDS = 120.0
"""Longest wait for a process to end after SIGTERM; in this time a daemon hands over its shards. On an idle machine it
takes a second, on a busy one many times as long."""
READY_SECONDS = 300.0
"""Longest wait for a daemon to report itself ready."""
PROBE_INTERVAL_SECONDS = 0.1
ANSWER_SECONDS = 120.0
"""Longest wait for an answer over HTTP."""


class EnsembleServer(EmbeddedZooKeeper):
    _main_class = "quorum.QuorumPeerMain"

    def __init__(
        self, folder: Path, port: int, number: int, peer_ports: list[tuple[int, int]], tls: ServerTls | None = None
    ) -> None:
        """Prepare the server ``number`` (from 1). ``peer_ports``: of each server, for followers and for elections."""
        super().__init__(folder, port, tls=tls)
        self.number = number
        self._peer_ports = peer_ports

    async def leads(self) -> bool:
        """Return whether it leads its ensemble; False also while it does not answer."""
        if self.pid is None:
            return False
        context = None if self._tls is None else self._tls.client_context()
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                return b"Mode: leader" in await probe(self.port, context, b"srvr", 1024)
        return False

    async def _process_spec(self, port: int) -> ProcessSpec:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "data" / "myid").write_text(f"{self.number}\n")
        return await super()._process_spec(port)

    def _settings(self, port: int) -> str:
        return super()._settings(port) + ensemble_settings(self._peer_ports)


def ensemble_settings(peer_ports: list[tuple[int, int]]) -> str:
    """Return what the zoo.cfg of each member contains beside the settings of a server on its own."""
    host = f"[{LOOPBACK}]" if ":" in LOOPBACK else LOOPBACK
    servers = [f"server.{number}={host}:{ports[0]}:{ports[1]}" for number, ports in enumerate(peer_ports, 1)]
    return "".join(f"{line}\n" for line in (f"initLimit={INIT_TICKS}", f"syncLimit={SYNC_TICKS}", *servers))


def ensemble(
    folder: Path, servers: int, free_port: Callable[[], int], tls: ServerTls | None = None
) -> list[EnsembleServer]:
    """Return ``servers`` members that are not started; ``free_port`` returns another port each time."""
    peer_ports = [(free_port(), free_port()) for _ in range(servers)]
    return [
        EnsembleServer(folder / f"zookeeper-{number}", free_port(), number, peer_ports, tls)
        for number in range(1, servers + 1)
    ]


class LocalSpark:
    def __init__(self, folder: Path) -> None:
        """``folder``: that of the cluster."""
        self.socket = str(folder / "drain.sock")
        self._folder = folder / "spark"
        self._running = AsyncExitStack()
        self._supervisor: DrainSupervisor | None = None

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._supervisor is None else self._supervisor.pid

    async def start(self, ledger_url: str) -> None:
        """Start it, or start it again; return when it is ready to count ``ledger_url``. Raises HeadgateError."""
        await self.stop()
        ready = asyncio.Event()
        supervisor = self._supervisor = DrainSupervisor(
            command=service_command(ledger_url, self.socket, self._folder),
            socket=self.socket,
            folder=self._folder,
            on_state=lambda state, _: ready.set() if state == "ready" else None,
        )
        await self._running.enter_async_context(supervisor)
        try:
            async with asyncio.timeout(SPARK_START_SECONDS):
                await ready.wait()
        except TimeoutError:
            raise HeadgateError(
                f"Spark was not ready after {SPARK_START_SECONDS:g} s: {supervisor.reason}; "
                f"see its log {self._folder / LOG_NAME}"
            ) from None

    async def stop(self) -> None:
        await self._running.aclose()


@dataclass(frozen=True, slots=True)
class LocalDaemon:
    process: ChildProcess
    settings: Settings
    """The settings that the daemon was started with."""

    @property
    def http_address(self) -> str:
        """``host:port`` of its metrics and health."""
        return host_port(self.settings.http.host, self.settings.http.port)


class LocalCluster:
    """One cluster. Creating it reserves the ports, entering starts nothing, leaving ends every program and server.

    Args:
        folder: folder for everything; created if it is missing.
        name: name of the cluster.
        shards: number of shards.
        session_seconds: ZooKeeper session timeout: the time until a killed leader is succeeded.
        zookeeper_servers: number of ZooKeeper servers; more than one form an ensemble.
        broker_kind: ``mosquitto`` or ``amqtt``. Default: mosquitto if it is installed.
        ledger_url: URL of the ledger. Default: a folder in ``folder``.
        tls: encrypt all connections, and give every client a user, as `headgate up --tls` does.
        access: text of an access file, whose users are the only clients. Default: with TLS one user of each
            role, otherwise every client may do everything.
        environ: added to the environment of daemons and programs.
        sections: sections that replace those of `settings`, for every daemon.

    Raises:
        ConfigError: with TLS, a file of users or certificates in ``folder`` cannot be used.

    """

    program_python = sys.executable
    """Runs `start_program`; that of an environment with another version of the library."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "local",
        shards: int = 1,
        session_seconds: float = 4.0,
        zookeeper_servers: int = 1,
        broker_kind: str | None = None,
        ledger_url: str | None = None,
        tls: bool = False,
        access: str | None = None,
        environ: Mapping[str, str] | None = None,
        **sections: msgspec.Struct,
    ) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.shards = shards
        self.security: LocalSecurity | None = None
        if tls or access is not None:
            self.security = LocalSecurity(self.folder, name, tls=tls, access=access or ACCESS)
        self.session_seconds = session_seconds
        self.ledger_url = ledger_url or (self.folder / "store").as_uri()
        self.spark = LocalSpark(self.folder)
        self.environ = dict(environ or {})
        self.sections = sections
        self.daemons: dict[str, LocalDaemon] = {}
        self.programs: dict[str, ChildProcess] = {}
        """Everything that was started by name and not ended through this object, daemons included."""
        self._ports = ExitStack()
        self._http_ports: dict[str, int] = {}
        security = self.security
        zookeeper_tls = None if security is None else security.zookeeper_tls()
        self.zookeepers: Sequence[EmbeddedZooKeeper] = (
            [EmbeddedZooKeeper(self.folder / "zookeeper", self._free_port(), tls=zookeeper_tls)]
            if zookeeper_servers == 1
            else ensemble(self.folder, zookeeper_servers, self._free_port, zookeeper_tls)
        )
        self.broker = EmbeddedBroker(
            self.folder / "broker",
            self._free_port(),
            kind=broker_kind,
            tls=None if security is None else security.broker_tls(),
            access=None if security is None else security.broker_access,
        )

    @property
    def client_config_path(self) -> Path:
        return self.folder / "client.toml"

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        """The ZooKeeper server, or the first of an ensemble."""
        return self.zookeepers[0]

    async def __aenter__(self) -> Self:
        # A busy machine may need more than the 4 s after which a command reports that there is no connection.
        patient = msgspec.structs.replace(self.client_config(), broker_timeout_seconds=30.0)
        self.client_config_path.write_text(toml_document("", patient))
        try:
            await self.begin()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def begin(self) -> None:
        """Start what a kind of cluster has from the beginning; if that fails, everything ends."""

    async def __aexit__(self, *_: object) -> None:
        # SIGKILL, because a frozen process would not react to SIGTERM.
        await asyncio.gather(*(program.kill() for program in self.programs.values()))
        await self.spark.stop()
        await self.broker.stop()
        await asyncio.gather(*(server.stop() for server in self.zookeepers))
        self._ports.close()

    def client_config(self, broker_port: int | None = None, user: str | None = None) -> ClientConfig:
        """Return what ``user`` needs; None: one who may do everything. ``broker_port`` may be that of a proxy."""
        return self._servers().client_config(broker_port, user)

    # Servers

    async def start_servers(self) -> None:
        await asyncio.gather(*(server.start() for server in self.zookeepers))
        await self.broker.start()

    async def start_spark(self, ledger_url: str | None = None) -> None:
        """Start the Spark process that every daemon asks, or start it again; return when it is ready.

        Raises HeadgateError. ``ledger_url``: what it counts. Default: the ledger of this cluster.
        """
        await self.spark.start(ledger_url or self.ledger_url)

    # Daemons and programs, by name

    def settings(self, name: str) -> Settings:
        if name not in self._http_ports:
            self._http_ports[name] = self._free_port()
        return self._servers().settings(
            instance=name,
            drain=DrainSettings(socket=self.spark.socket, spawn=False),
            http_port=self._http_ports[name],
            session_seconds=self.session_seconds,
            # Users of this class decide which daemon leads.
            sections={"log": LogSettings(format="json"), "spread": SpreadSettings(enabled=False), **self.sections},
        )

    async def start_daemon(self, name: str) -> LocalDaemon:
        settings = self.settings(name)
        command = python_module("headgate", "run", "--config", str(self.write_settings(settings)))
        process = await ChildProcess.start(*command, log_path=self.log_path(name), environ=self.daemon_environ(name))
        self.programs[name] = process
        daemon = self.daemons[name] = LocalDaemon(process, settings)
        return daemon

    def daemon_environ(self, name: str) -> Mapping[str, str]:  # noqa: ARG002 - for overriding
        return self.environ

    async def start_program(self, name: str, *arguments: str) -> ChildProcess:
        """Start ``python ARGUMENTS…``, which imports nothing from the working folder."""
        self.programs[name] = await ChildProcess.start(
            *(self.program_python, "-u", "-P", *arguments), log_path=self.log_path(name), environ=self.environ
        )
        return self.programs[name]

    def write_settings(self, settings: Settings) -> Path:
        """Write the file that a daemon reads when it starts and at each SIGHUP; return its path."""
        path = self.folder / f"{settings.instance.name}.toml"
        path.write_text(toml_document("", settings))
        return path

    def reload(self, settings: Settings) -> None:
        self.write_settings(settings)
        self.programs[settings.instance.name].send_signal(signal.SIGHUP)

    async def stop(self, name: str) -> int:
        """Stop a program with SIGTERM, or kill it if it does not end in time; return its exit code."""
        process = self._remove(name)
        await process.stop(STOP_SECONDS)
        return await process.wait()

    async def kill(self, name: str) -> None:
        await self._remove(name).kill()

    def freeze(self, name: str) -> None:
        self.programs[name].freeze()

    def thaw(self, name: str) -> None:
        self.programs[name].thaw()

    def exited_programs(self) -> list[str]:
        return sorted(name for name, process in self.programs.items() if process.returncode is not None)

    def log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def get(self, daemon: str, path: str) -> bytes:
        """Return the body of an answer of a daemon over HTTP. Raises HeadgateError if there is none."""
        config, timeout = self.client_config(), aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        url = f"http{'s' * config.tls}://{self.daemons[daemon].http_address}{path}"
        trusted = client_context(ca_file=config.ca_file) if config.tls else True
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=trusted) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HeadgateError(f"{url}: {error!r}") from error
        if response.status != HTTPStatus.OK:
            raise HeadgateError(f"{url}: {response.status} {body[:200].decode(errors='replace').strip()}")
        return body

    async def until_ready(self, daemon: str) -> None:
        """Wait until a daemon reports itself ready. Raises HeadgateError if it does not in time."""
        problem: HeadgateError | None = None
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    try:
                        await self.get(daemon, "/readyz")
                    except HeadgateError as error:
                        problem = error
                        await asyncio.sleep(PROBE_INTERVAL_SECONDS)
                    else:
                        return
        except TimeoutError:
            raise HeadgateError(f"{daemon} was not ready after {READY_SECONDS:g} s: {problem}") from None

    # Ledger

    def ledger(self, shard: int = 0) -> Ledger:
        return Ledger(open_store(self.ledger_url), shard)

    async def past_leaders(self, shard: int = 0) -> list[str]:
        ledger, leaders, number = self.ledger(shard), [], 1
        while (chunk := await if_exists(ledger.read, number)) is not None:
            leaders += [entry.instance for entry in chunk.entries if isinstance(entry, TermStarted)]
            number += 1
        return leaders

    def _servers(self) -> LocalServers:
        return LocalServers(
            cluster=ClusterSettings(name=self.name, shards=self.shards),
            ledger_url=self.ledger_url,
            zookeepers=self.zookeepers,
            broker=self.broker,
            security=self.security,
        )

    def _remove(self, name: str) -> ChildProcess:
        self.daemons.pop(name, None)
        return self.programs.pop(name)

    def _free_port(self) -> int:
        return self._ports.enter_context(ReservedPort()).number


def last_line(path: Path) -> str:
    """Return the last line of a log, shortened."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:300] if lines else "it wrote nothing"
