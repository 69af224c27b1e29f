"""ZooKeeper and an MQTT broker as child processes, for `headgate up` and local clusters.

ZooKeeper comes from the jars that PySpark ships, so it needs only Java. The broker is mosquitto if it is installed,
else amqtt. Both listen on loopback only and store their data in a given folder. With TLS they have no other port. To
use more than one machine, run your own servers: see deploy/.

A server that dies is restarted (controller.local.supervised_process). Its port stays reserved while it is down
(controller.local.reserved_port).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import structlog

from controller.local.broker_access import BrokerAccess
from controller.local.private_file import write_private_file
from controller.local.reserved_port import LOOPBACK, ReservedPort, port_is_free
from controller.local.supervised_process import ProcessSpec, ProcessStartError, SupervisedProcess
from drain.spark.java import find_java
from headgate.process.child_process import python_module
from headgate.transport.loopback import host_port

if TYPE_CHECKING:
    # `headgate doctor` asks for a broker on machines without what makes certificates.
    from controller.local.certificates import ServerTls

MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""Free space that a server's folder must have: enough for the logs and snapshots of a small cluster."""
PORT_ATTEMPTS: Final = 3
"""Attempts to start on a free port. Where a port cannot be reserved, another process may take it first."""
ZOOKEEPER_JARS: Final = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*")
ZOOKEEPER_KEY_STORE: Final = "server.pem"
"""A certificate and its key in one file, as ZooKeeper reads them."""
MOSQUITTO_SETTINGS: Final = {
    # The protocol's own windows bound everything. The broker's limits drop acknowledged messages silently, so they
    # are set explicitly, and high.
    "max_queued_messages": "100000",
    "max_queued_bytes": "268435456",
    "max_inflight_messages": "1000",
    # More than the protocol's largest message. message_size_limit would drop messages silently, acknowledged ones, too.
    "max_packet_size": "5242880",
    # Above what all sessions may queue: at this limit mosquitto refuses everything, deliveries included.
    "memory_limit": "2147483648",
    # Replies are small and awaited: do not delay them by 40 ms.
    "set_tcp_nodelay": "true",
    # Retained announcements survive a restart, and most queued messages of devices a crash.
    "persistence": "true",
    "autosave_interval": "10",
}
"""A test keeps this in step with deploy/mosquitto.conf."""
MOSQUITTO_ENVIRON: Final = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "67108864"}
"""glibc would return the buffer of a large message to the system, and mosquitto spends two thirds of its
processor time for large batches on the page faults of the next one. Other C libraries ignore these. Likewise kept in
step."""
INSTALLED_IN: Final = str(Path(__file__).resolve().parents[2])
"""Where this very package is."""
NOT_AUTHORIZED: Final = b"\x05"
"""MQTT 3.1.1's return code for a client without a valid user name."""

log = structlog.get_logger(__name__)


def find_mosquitto() -> str | None:
    """Return the path of the mosquitto program. Debian installs it where only root's PATH finds it."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class EmbeddedServer:
    """A server as a supervised child process. Entering starts it, leaving stops it; it can be started again."""

    def __init__(self, name: str, folder: Path, port: int, tls: ServerTls | None) -> None:
        """``folder`` is created if it is missing; ``port`` 0 means any free port, which a restart keeps."""
        self._tls = tls
        self.host = LOOPBACK
        self.name = name
        self.folder = folder.absolute()
        self.port = port
        self._server: SupervisedProcess | None = None
        self._reserved_port: ReservedPort | None = None

    @property
    def address(self) -> str:
        return host_port(self.host, self.port)

    @property
    def pid(self) -> int | None:
        """The process id; None while the server is down."""
        return None if self._server is None else self._server.pid

    async def start(self) -> None:
        """Start the server; return when it serves.

        Raises:
            ProcessStartError: it cannot run here; the text gives the reason.
            ConfigError: ZooKeeper finds no suitable Java.
        """
        _prepare_folder(self.name, self.folder)
        self._server, self._reserved_port = await self._start_on_free_port()
        self.port = self._reserved_port.number

    async def stop(self) -> None:
        """Stop the server if it runs, and release its port."""
        server, self._server = self._server, None
        with self._reserved_port or contextlib.nullcontext():
            if server is not None:
                await server.__aexit__()

    async def restart(self) -> None:
        """Stop the server and start it again on the same port and data; return when it serves."""
        assert self._server is not None, "not running"
        await self._server.restart()

    def reload(self) -> None:
        """Let the server read its files again. One that is down reads them when it starts."""
        if self.pid is not None:
            self._signal(signal.SIGHUP)

    def freeze(self) -> None:
        """Suspend the running server with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _process_spec(self, port: int) -> ProcessSpec:
        """Return how to run the server on ``port``."""
        raise NotImplementedError

    async def _start_on_free_port(self) -> tuple[SupervisedProcess, ReservedPort]:
        """Start the server; return it and its port, which stays reserved while the server is down."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            reserved = self._reserve_port()
            try:
                spec = await self._process_spec(reserved.number)
                return await SupervisedProcess(spec).__aenter__(), reserved
            except BaseException as error:
                reserved.close()
                # Another port helps only if this one was taken.
                port_taken = isinstance(error, ProcessStartError) and not port_is_free(reserved.number)
                if self.port != 0 or not port_taken or attempt == PORT_ATTEMPTS:
                    raise
                log.warning("server.port_taken", server=self.name, port=reserved.number, attempt=attempt)
        raise AssertionError("unreachable")

    def _reserve_port(self) -> ReservedPort:
        try:
            return ReservedPort(self.port)
        except OSError as error:
            raise ProcessStartError(
                f"{self.name} cannot listen on {self.address} ({error.strerror}): "
                "stop the program that uses the port, or choose another port"
            ) from error

    def _ready(
        self, probe: Callable[[int, ssl.SSLContext | None], Awaitable[bool]], port: int
    ) -> Callable[[], Awaitable[bool]]:
        context = None if self._tls is None else self._tls.client_context()
        return lambda: probe(port, context)

    def _signal(self, number: signal.Signals) -> None:
        assert self.pid is not None, "not running"
        os.kill(self.pid, number)


class EmbeddedZooKeeper(EmbeddedServer):
    """A ZooKeeper server. With TLS it admits only clients that have a certificate of the authority."""

    _main_class = "ZooKeeperServerMain"

    def __init__(self, folder: Path, port: int = 0, *, tls: ServerTls | None = None) -> None:
        super().__init__("ZooKeeper", folder, port, tls)

    async def _process_spec(self, port: int) -> ProcessSpec:
        home = await asyncio.to_thread(find_java, self.folder / "java")
        config = self.folder / "zoo.cfg"
        _write(config, self._settings(port))
        if self._tls is not None:
            files = self._tls.server
            key_store = files.key_file.read_text() + files.certificate_file.read_text()
            write_private_file(self.folder / ZOOKEEPER_KEY_STORE, key_store)
        command = [
            str(home / "bin" / "java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            # A few requests per second never repay the optimizing compiler, which takes a third of
            # the processor time of a start.
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            # In KiB. The default allocates 64 MiB at once.
            "-Dzookeeper.preAllocSize=1024",
            "-Dzookeeper.4lw.commands.whitelist=srvr",
            "-Dorg.apache.logging.log4j.level=WARN",
            "-cp",
            zookeeper_classpath(),
            f"org.apache.zookeeper.server.{self._main_class}",
            str(config),
        ]
        ready, environ = self._ready(_is_zookeeper_ready, port), {"LC_ALL": "C.UTF-8"}  # As Spark.
        return ProcessSpec("ZooKeeper", command, self.folder / "zookeeper.log", ready, environ=environ)

    def _settings(self, port: int) -> str:
        return zookeeper_config(self.folder, port, self._tls)


class EmbeddedBroker(EmbeddedServer):
    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        kind: str | None = None,
        tls: ServerTls | None = None,
        access: BrokerAccess | None = None,
    ) -> None:
        """``kind`` is ``mosquitto`` or ``amqtt``, by default mosquitto if it is installed. ``access``: its users."""
        self.kind = kind or ("mosquitto" if find_mosquitto() else "amqtt")
        self._access = access
        super().__init__(self.kind, folder, port, tls)

    async def _process_spec(self, port: int) -> ProcessSpec:
        environ = dict(MOSQUITTO_ENVIRON)
        if self.kind == "mosquitto":
            program = find_mosquitto()
            if program is None:
                raise ProcessStartError(
                    "mosquitto is not installed: install it, for example with 'apt install mosquitto' (Debian, "
                    "Ubuntu), 'dnf install mosquitto' (Fedora) or 'brew install mosquitto' (macOS)"
                )
            config = self.folder / "mosquitto.conf"
            _write(config, mosquitto_config(self.folder, port, self._tls, self._access))
            command = [program, "-c", str(config)]
        else:
            config = self.folder / "amqtt.json"
            _write(config, amqtt_config(port, self._tls, self._access))
            command = python_module("controller.local.embedded_broker", str(config))
            # The child must import this very package, however this process was started.
            environ["PYTHONPATH"] = os.pathsep.join([INSTALLED_IN, *filter(None, [os.environ.get("PYTHONPATH")])])
        return ProcessSpec(
            self.kind, command, self.folder / f"{self.kind}.log", self._ready(_is_broker_ready, port), environ=environ
        )


def zookeeper_classpath() -> str:
    """Return the class path of ZooKeeper in PySpark's jars. Raises ProcessStartError if they are missing."""
    found = importlib.util.find_spec("pyspark")
    folders = list(found.submodule_search_locations or []) if found else []
    jars = [
        jar for folder in folders for name in ZOOKEEPER_JARS for jar in sorted(Path(folder).glob(f"jars/{name}.jar"))
    ]
    if not any(jar.name.startswith("zookeeper-3") for jar in jars):
        raise ProcessStartError(
            "ZooKeeper's jar is not among pyspark's: install pyspark, or use a ZooKeeper of your own"
        )
    return ":".join(str(jar) for jar in jars)


def zookeeper_config(folder: Path, port: int, tls: ServerTls | None = None) -> str:
    plain = {"clientPort": str(port), "clientPortAddress": LOOPBACK}
    settings = {
        "dataDir": str(folder / "data"),
        **(plain if tls is None else _tls_zookeeper(port, tls, folder / ZOOKEEPER_KEY_STORE)),
        "admin.enableServer": "false",
        # Allows sessions from one second. The default tick allows no session below four seconds.
        "tickTime": "500",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
    }
    # Java reads Latin-1: any other character of a path would be another one there, without an escape as in JSON.
    return "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items())


def _tls_zookeeper(port: int, tls: ServerTls, key_store: Path) -> dict[str, str]:
    return {
        "secureClientPort": str(port),
        "secureClientPortAddress": LOOPBACK,
        # The default server has no TLS.
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(key_store),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(tls.ca_file),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none" if tls.client is None else "need",
        "ssl.enabledProtocols": "TLSv1.3,TLSv1.2",
    }


def mosquitto_config(folder: Path, port: int, tls: ServerTls | None = None, access: BrokerAccess | None = None) -> str:
    settings = {
        "listener": f"{port} {LOOPBACK}",
        # Without another setting, TLS 1.2 is the oldest version.
        **({} if tls is None else {"certfile": str(tls.server.certificate_file), "keyfile": str(tls.server.key_file)}),
        "allow_anonymous": "true" if access is None else "false",
        **({} if access is None else {"password_file": str(access.password_file), "acl_file": str(access.acl_file)}),
        # As root, mosquitto would change its user. That user cannot write here, and loses the parent death signal.
        **({"user": "root"} if os.geteuid() == 0 else {}),
        "persistence_location": f"{folder}/",
        "log_dest": "stderr",
        **MOSQUITTO_SETTINGS,
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def amqtt_config(port: int, tls: ServerTls | None, access: BrokerAccess | None) -> str:
    """Return amqtt's configuration, as JSON. Without ``access`` every client may do everything."""
    # An IPv6 address without brackets: amqtt splits at the last colon, and would leave them in.
    listener: dict[str, str | bool] = {"type": "tcp", "bind": f"{LOOPBACK}:{port}"}
    if tls is not None:
        files = tls.server
        listener |= {"ssl": True, "certfile": str(files.certificate_file), "keyfile": str(files.key_file)}
    plugins: dict[str, object] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    if access is not None:
        own = {"password_file": str(access.password_file), "acl_file": str(access.acl_file)}
        plugins = {"controller.local.embedded_broker.AccessPlugin": own}
    return json.dumps({"listeners": {"default": listener}, "plugins": plugins})


async def _is_zookeeper_ready(port: int, tls: ssl.SSLContext | None) -> bool:
    return b"Mode:" in await probe(port, tls, b"srvr", 1024)


async def _is_broker_ready(port: int, tls: ssl.SSLContext | None) -> bool:
    """Connect with MQTT: any other server on this port would accept a TCP connection as well.

    A broker that knows its users refuses this connection, and serves.
    """
    client_id = b"headgate-ready"
    body = b"\x00\x04MQTT\x04\x02\x00\x05" + len(client_id).to_bytes(2, "big") + client_id
    answer = await probe(port, tls, b"\x10" + bytes([len(body)]) + body, 4, goodbye=b"\xe0\x00")
    return answer[:1] == b"\x20" and answer[3:4] in {b"\x00", NOT_AUTHORIZED}


async def probe(
    port: int, tls: ssl.SSLContext | None, question: bytes, answer_bytes: int, goodbye: bytes = b""
) -> bytes:
    """Return the answer, cut short if the server closed the connection. Raises OSError."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
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


def _prepare_folder(name: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProcessStartError(f"{name} cannot use the folder {folder}: {error.strerror or error}") from error
    _write(folder / ".writable", "")
    if free_bytes < MIN_FREE_BYTES:
        raise ProcessStartError(
            f"{name} needs {MIN_FREE_BYTES >> 20} MiB in {folder}, but only {free_bytes >> 20} MiB are free: "
            "free some space, or choose another folder"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ProcessStartError(f"cannot write {path}: {error.strerror or error}") from error
