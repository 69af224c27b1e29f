"""The embedded servers as real processes: start, kill, restart, orphaned children and failed starts."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.local import embedded
from controller.local.embedded import (
    INSTALLED_IN,
    EmbeddedBroker,
    EmbeddedZooKeeper,
    find_mosquitto,
    mosquitto_config,
    zookeeper_config,
)
from controller.local.reserved_port import ReservedPort
from controller.local.supervised_process import ProcessSpec, ProcessStartError, SupervisedProcess
from headgate.errors import ConfigError
from tests.support.waiting import until

pytestmark = pytest.mark.real_time

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here; CI installs it")
KINDS = [pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"]


async def answers(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_serves_until_it_is_stopped(tmp_path: Path, kind: str) -> None:
    async with EmbeddedBroker(tmp_path / "broker", kind=kind) as broker:
        pid = broker.pid
        assert pid is not None
        assert broker.kind == kind
        assert await answers(broker.host, broker.port)

    assert not runs(pid)
    assert not await answers(broker.host, broker.port)


@pytest.mark.contract
async def test_zookeeper_serves_and_restarts_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LC_ALL", "C")
    async with EmbeddedZooKeeper(tmp_path / "zoökeeper") as zookeeper:
        host, _, port = zookeeper.address.partition(":")
        first = zookeeper.pid
        assert await answers(host, int(port))

        await zookeeper.restart()

        second = zookeeper.pid
        assert zookeeper.address == f"{host}:{port}"
        async with ZooKeeperElections(
            zookeeper.address, root="/x", instance="a", session_timeout_seconds=2, on_event=lambda event: None
        ) as elections:
            assert await elections.registry.cluster_config({"shards": 1}) == {"shards": 1}
    assert None not in (first, second)
    assert [runs(first), runs(second)] == [False, False]
    assert 0 < size_of(tmp_path / "zoökeeper" / "data") < 4 << 20, "it allocates no large files"


@pytest.mark.contract
async def test_a_server_that_dies_is_restarted_and_that_is_logged(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path) as broker:
        first = broker.pid
        with capture_logs() as logs:
            os.kill(first, signal.SIGKILL)
            await until(lambda: broker.pid not in {None, first})
            await until(lambda: logs and logs[-1]["event"] == "server.restarted")

        assert [(entry["event"], entry.get("outcome")) for entry in logs] == [
            ("server.died", "signal SIGKILL"),
            ("server.restarted", None),
        ]
        assert await answers(broker.host, broker.port)


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
async def test_servers_do_not_outlive_a_killed_parent(tmp_path: Path, kind: str) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from controller.local.embedded import EmbeddedBroker\n"
        "async def main():\n"
        f"    async with EmbeddedBroker(Path(sys.argv[1]), kind={kind!r}) as broker:\n"
        "        print(broker.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    command, environ = (sys.executable, "-c", program, str(tmp_path)), {**os.environ, "PYTHONPATH": INSTALLED_IN}
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environ)
    child = int(await parent.stdout.readline())
    assert runs(child)
    # Ctrl-C at the terminal signals the process group of the terminal. The child has its own group.
    assert os.getpgid(child) == child

    parent.kill()
    await parent.wait()

    await until(lambda: not runs(child))


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessStartError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)"):
            await EmbeddedBroker(tmp_path, port).__aenter__()


@pytest.mark.contract
async def test_a_free_port_that_another_program_took_first_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Possible where a port cannot be reserved until the server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lost = ReservedPort()
        lost.close()
        lost.number = taken.getsockname()[1]
        offers = [lost]

        def reserve(port: int) -> ReservedPort:
            return offers.pop() if offers else ReservedPort(port)

        monkeypatch.setattr(embedded, "ReservedPort", reserve)
        with capture_logs() as logs:
            async with EmbeddedBroker(tmp_path) as broker:
                assert broker.port != lost.number
                assert await answers(broker.host, broker.port)
    assert [("server.port_taken", lost.number)] == [(each["event"], each["port"]) for each in logs]


async def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProcessStartError, match=r"ZooKeeper cannot use the folder .*/file/zookeeper: Not a directory"):
        await EmbeddedZooKeeper(tmp_path / "file" / "zookeeper").__aenter__()


async def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is simulated."""
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=refused))
    with pytest.raises(ProcessStartError, match=rf"cannot write {tmp_path}.*: Permission denied"):
        await EmbeddedBroker(tmp_path).__aenter__()


async def test_a_full_disk_is_reported_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 1 << 30, 5 << 20))
    with pytest.raises(ProcessStartError, match=r"needs 64 MiB in .*, but only 5 MiB are free"):
        await EmbeddedBroker(tmp_path).__aenter__()


async def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_java", Mock(side_effect=ConfigError("no Java 17 or 21 found")))
    with pytest.raises(ConfigError, match="no Java"):
        await EmbeddedZooKeeper(tmp_path).__aenter__()


async def test_a_missing_mosquitto_is_reported_with_the_command_that_installs_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(embedded, "find_mosquitto", lambda: None)
    with pytest.raises(ProcessStartError, match=r"mosquitto is not installed: install it, .*apt install mosquitto"):
        await EmbeddedBroker(tmp_path, kind="mosquitto").__aenter__()
    assert EmbeddedBroker(tmp_path).kind == "amqtt"


async def test_missing_jars_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ProcessStartError, match="install pyspark"):
        embedded.zookeeper_classpath()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo Unknown; exit 3", r"(?s)a server ended with exit code 3; the end of .*server\.log:\n  Unknown"),
        ("exec sleep 600", r"a server was not ready after 0.3 s; it wrote nothing to .*server\.log"),
    ],
    ids=["ends at once", "never serves"],
)
async def test_a_failed_start_ends_the_server_and_shows_the_end_of_its_log(tmp_path: Path, script: str, error: str):
    seconds = 60 if "exit" in script else 0.3
    command, log, never_ready = ["sh", "-c", script], tmp_path / "server.log", AsyncMock(return_value=False)
    server = SupervisedProcess(ProcessSpec("a server", command, log, never_ready, start_seconds=seconds))

    with pytest.raises(ProcessStartError, match=error):
        await server.__aenter__()

    assert server.pid is None


async def test_a_server_that_dies_soon_after_each_start_is_restarted_after_growing_pauses(tmp_path: Path) -> None:
    spec = ProcessSpec("a server", ["sleep", "600"], tmp_path / "server.log", AsyncMock(return_value=True))
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    async with SupervisedProcess(spec) as server:
        for _ in range(3):
            pid = server.pid
            began = loop.time()
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: server.pid not in {None, pid})
            pauses.append(loop.time() - began)

    assert all(pause > shortest for pause, shortest in zip(pauses, (0.2, 0.4, 0.8), strict=True))


def test_both_servers_listen_on_loopback_only(tmp_path: Path) -> None:
    assert "listener 1883 127.0.0.1\n" in mosquitto_config(tmp_path, 1883)
    config = zookeeper_config(tmp_path, 2181)
    assert "clientPortAddress=127.0.0.1\n" in config
    assert "admin.enableServer=false\n" in config
