"""The outside systems of `headgate up`: a real ZooKeeper and an MQTT broker, as child processes of ours.

ZooKeeper comes out of the jars that PySpark ships, so nothing needs to be installed but Java. The broker is mosquitto
where it is on the PATH, else amqtt. Both listen on the loopback only, without passwords, and keep what they keep in a
folder of ours. For more than one machine, run real ones: see deploy/.

Each is kept running by controller.local.supervised_process and keeps its port over restarts, which nobody else gets
meanwhile (controller.local.reserved_port).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import structlog

from controller.local.reserved_port import LOOPBACK, ReservedPort, port_is_free
from controller.local.supervised_process import ProcessSpec, ProcessStartError, SupervisedProcess
from drain.spark.java import find_java

HOST: Final = LOOPBACK
MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""Free space a server's folder must have: logs and snapshots of a small cluster, with room to spare."""
PORT_ATTEMPTS: Final = 3
"""A free port can be taken by somebody else between choosing and using it, where it cannot be held."""
ZOOKEEPER_JARS: Final = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*")
MOSQUITTO_SETTINGS: Final = {
    # Everything is bounded by the windows of the protocol above; the broker's own limits drop messages that were
    # confirmed to their sender, without a word. So they are set high, and explicitly.
    "max_queued_messages": "100000",
    "max_queued_bytes": "268435456",
    "max_inflight_messages": "1000",
    # A little more than the largest message of the protocol (older name: message_size_limit).
    "max_packet_size": "5242880",
    # Replies are small and awaited: do not hold them back for 40 ms.
    "set_tcp_nodelay": "true",
    # Retained announcements outlive a restart.
    "persistence": "true",
    "autosave_interval": "60",
}
"""Kept in step with deploy/mosquitto.conf by a test."""

log = structlog.get_logger(__name__)


class EmbeddedZooKeeper:
    """A ZooKeeper server of our own."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """``folder`` is made if it is missing; ``port`` 0 means any free one."""
        self._folder = folder.absolute()
        self._port = port
        self._server: SupervisedProcess | None = None
        self._reserved_port: ReservedPort | None = None

    @property
    def address(self) -> str:
        """``host:port``, for kazoo."""
        return f"{HOST}:{self._port}"

    @property
    def process(self) -> int | None:
        """The process id; None while it is down."""
        return None if self._server is None else self._server.pid

    async def restart(self) -> None:
        """Stop it and start it again on the same port and data; returns when it is ready."""
        assert self._server is not None, "not open"
        await self._server.restart()

    async def __aenter__(self) -> Self:
        """Start it; returns when it serves.

        Raises:
            ProcessStartError: it cannot run here; the text says why.
            ConfigError: there is no Java that fits.

        """
        _prepare_folder("ZooKeeper", self._folder)
        home = await asyncio.to_thread(find_java, self._folder / "java")
        classpath = zookeeper_classpath()
        self._server, self._reserved_port = await _start_on_free_port(
            "ZooKeeper", self._port, lambda port: self._process_spec(home, classpath, port)
        )
        self._port = self._reserved_port.number
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        with self._reserved_port or contextlib.nullcontext():
            if self._server is not None:
                await self._server.__aexit__()

    def _process_spec(self, home: Path, classpath: str, port: int) -> ProcessSpec:
        config = self._folder / "zoo.cfg"
        _write(config, zookeeper_config(self._folder / "data", port))
        command = [
            str(home / "bin" / "java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            # In KiB. The default sets 64 MiB aside at once.
            "-Dzookeeper.preAllocSize=1024",
            "-Dzookeeper.4lw.commands.whitelist=srvr",
            "-Dorg.apache.logging.log4j.level=WARN",
            "-cp",
            classpath,
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(config),
        ]
        return ProcessSpec("ZooKeeper", command, self._folder / "zookeeper.log", lambda: _is_zookeeper_ready(port))


class EmbeddedBroker:
    """An MQTT broker of our own."""

    def __init__(self, folder: Path, port: int = 0, *, kind: str | None = None) -> None:
        """``kind`` is ``mosquitto`` or ``amqtt``; None takes mosquitto if it is on the PATH."""
        self.host = HOST
        self.kind = kind or ("mosquitto" if find_mosquitto() else "amqtt")
        self._folder = folder.absolute()
        self._port = port
        self._server: SupervisedProcess | None = None
        self._reserved_port: ReservedPort | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def process(self) -> int | None:
        """The process id; None while it is down."""
        return None if self._server is None else self._server.pid

    async def restart(self) -> None:
        """Stop it and start it again on the same port; returns when it is ready."""
        assert self._server is not None, "not open"
        await self._server.restart()

    async def __aenter__(self) -> Self:
        """Start it; returns when it serves. Raises ProcessStartError with the reason if it cannot run here."""
        _prepare_folder(self.kind, self._folder)
        self._server, self._reserved_port = await _start_on_free_port(self.kind, self._port, self._process_spec)
        self._port = self._reserved_port.number
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        with self._reserved_port or contextlib.nullcontext():
            if self._server is not None:
                await self._server.__aexit__()

    def _process_spec(self, port: int) -> ProcessSpec:
        environ = {}
        if self.kind == "mosquitto":
            program = find_mosquitto()
            if program is None:
                raise ProcessStartError("there is no mosquitto on the PATH: install it, or use amqtt")
            config = self._folder / "mosquitto.conf"
            _write(config, mosquitto_config(self._folder, port))
            command = [program, "-c", str(config)]
        else:
            command = [sys.executable, "-m", "controller.local.embedded_broker", str(port)]
            # The child must find this very package, however we were started.
            environ["PYTHONPATH"] = os.pathsep.join(
                [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        return ProcessSpec(
            self.kind, command, self._folder / f"{self.kind}.log", lambda: _is_broker_ready(port), environ=environ
        )


# --- what they are told -----------------------------------------------------------------------------------------------


def zookeeper_classpath() -> str:
    """Return the jars of PySpark that ZooKeeper needs, as a class path. Raises ProcessStartError if there are none."""
    found = importlib.util.find_spec("pyspark")
    places = list(found.submodule_search_locations or []) if found else []
    jars = [jar for place in places for name in ZOOKEEPER_JARS for jar in sorted(Path(place).glob(f"jars/{name}.jar"))]
    if not any(jar.name.startswith("zookeeper-3") for jar in jars):
        raise ProcessStartError(
            "ZooKeeper's jar is not among pyspark's: install pyspark, or use a ZooKeeper of your own"
        )
    return ":".join(str(jar) for jar in jars)


def zookeeper_config(data_folder: Path, port: int) -> str:
    """Return a zoo.cfg."""
    settings = {
        "dataDir": str(data_folder),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "admin.enableServer": "false",
        # Sessions from one second on: the default of two ticks would allow no less than four.
        "tickTime": "500",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def mosquitto_config(folder: Path, port: int) -> str:
    """Return a mosquitto.conf."""
    settings = {
        "listener": f"{port} {HOST}",
        "allow_anonymous": "true",
        # As root it would become another user, who cannot write here, and whom the tether to us does not bind.
        **({"user": "root"} if os.geteuid() == 0 else {}),
        "persistence_location": f"{folder}/",
        "log_dest": "stderr",
        **MOSQUITTO_SETTINGS,
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def find_mosquitto() -> str | None:
    """Return the path of the mosquitto program; Debian keeps it where only root's PATH looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


# --- whether they serve -----------------------------------------------------------------------------------------------


async def _is_zookeeper_ready(port: int) -> bool:
    answer = await _probe(port, b"srvr", 1024)
    return b"Mode:" in answer


async def _is_broker_ready(port: int) -> bool:
    """Say an MQTT hello: another server on this port would accept a connection just as well."""
    client_id = b"headgate-ready"
    body = b"\x00\x04MQTT\x04\x02\x00\x05" + len(client_id).to_bytes(2, "big") + client_id
    answer = await _probe(port, b"\x10" + bytes([len(body)]) + body, 4, goodbye=b"\xe0\x00")
    return answer[:1] == b"\x20" and answer[3:4] == b"\x00"


async def _probe(port: int, question: bytes, answer_bytes: int, goodbye: bytes = b"") -> bytes:
    """Return the answer, or what there was of it. Raises OSError."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(question)
        try:
            answer = await reader.readexactly(answer_bytes)
        except asyncio.IncompleteReadError as error:
            answer = error.partial
        writer.write(goodbye)
        await writer.drain()
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


# --- whether they can run here ----------------------------------------------------------------------------------------


async def _start_on_free_port(
    name: str, port: int, make_spec: Callable[[int], ProcessSpec]
) -> tuple[SupervisedProcess, ReservedPort]:
    """Return the running server, and its port, which is held while it is down as well."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        reserved = _reserve_port(name, port)
        try:
            return await SupervisedProcess(make_spec(reserved.number)).__aenter__(), reserved
        except BaseException as error:
            reserved.close()
            # Worth another try only if it was the port.
            if not isinstance(error, ProcessStartError) or port != 0 or port_is_free(reserved.number):
                raise
            if attempt == PORT_ATTEMPTS:
                raise
            log.warning("server.port_taken", server=name, port=reserved.number, attempt=attempt)
    raise AssertionError("unreachable")


def _reserve_port(name: str, port: int) -> ReservedPort:
    try:
        return ReservedPort(port)
    except OSError as error:
        raise ProcessStartError(
            f"{name} cannot listen on {HOST}:{port} ({error.strerror}): stop what does, or choose another port"
        ) from error


def _prepare_folder(name: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProcessStartError(f"{name} cannot use the folder {folder}: {error.strerror or error}") from error
    _write(folder / ".writable", "")
    if free_bytes < MIN_FREE_BYTES:
        raise ProcessStartError(
            f"{name} needs {MIN_FREE_BYTES >> 20} MiB in {folder}, where {free_bytes >> 20} MiB are free: make room"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ProcessStartError(f"cannot write {path}: {error.strerror or error}") from error
