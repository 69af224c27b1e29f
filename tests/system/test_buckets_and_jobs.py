"""A ledger in a bucket, counted by Spark beside the daemon or by a job that somebody else runs: children are released."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio

from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper
from tests.support.programs import (
    MARK,
    TEST_SECONDS,
    CommandResult,
    RunningProgram,
    command_line,
    finish,
    jsonl,
    marked,
    start,
    wait_until,
)
from tests.support.s3_server import BUCKET, SECRET, S3Server, s3_server

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(TEST_SECONDS)]

SETTINGS = """\
[cluster]
name = "{cluster}"
shards = 1
[zookeeper]
hosts = "{zookeeper}"
[broker]
host = "{host}"
port = {port}
[ledger]
url = "{ledger_url}"
[drain]
socket = "unix:{folder}/d.sock"
folder = "{folder}/drain"
master = "local[1]"
{drain}
[http]
port = 0
[log]
format = "json"
"""
CLIENT = 'cluster = "{cluster}"\nbroker_host = "{host}"\nbroker_port = {port}\nledger_url = "{ledger_url}"\n'


class SharedServers:
    """One ZooKeeper, one broker and one bucket; each test has a cluster of its own on them."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.env = {MARK: self.mark} | s3.environment()
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        self.broker = EmbeddedBroker(folder / "broker", kind="mosquitto")

    def cluster(self, name: str, drain: str = "") -> Cluster:
        return Cluster(self, name, drain)


class Cluster:
    """One daemon on a prefix of the bucket."""

    def __init__(self, servers: SharedServers, name: str, drain: str) -> None:
        self.servers = servers
        self.folder = servers.folder / name
        self.folder.mkdir()
        self.ledger_url = f"s3://{BUCKET}/{name}/of a cluster"
        known = {
            "cluster": name,
            "zookeeper": servers.zookeeper.address,
            "host": servers.broker.host,
            "port": servers.broker.port,
            "ledger_url": self.ledger_url,
            "folder": self.folder,
            "drain": drain.format(ledger_url=self.ledger_url),
        }
        (self.folder / "headgate.toml").write_text(SETTINGS.format(**known))
        (self.folder / "client.toml").write_text(CLIENT.format(**known))
        self._daemon: RunningProgram | None = None
        self._reading: list[asyncio.Task[CommandResult]] = []

    async def __aenter__(self) -> Self:
        self._daemon = await start(
            *("run", "--config", str(self.folder / "headgate.toml")),
            out=self.folder / "daemon.out",
            env=self.servers.env,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._daemon is not None, "entered"
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._daemon.process.returncode is None:
            await self._daemon.terminate()

    async def done(self, *arguments: str, stdin: bytes = b"", seconds: float = 60) -> CommandResult:
        command = ("--config", str(self.folder / "client.toml"), *arguments)
        finished = await finish(*command, stdin=stdin, env=self.servers.env, seconds=seconds)
        assert finished.code == 0, finished.err
        return finished

    async def split_with_records(self) -> None:
        """Make a topic of one segment with ten records, split it, and store ten more in its children."""
        await self.done("topic", "create", "t", "--segments", "1")
        await self.done("produce", "t", "--key-field", "id", stdin=jsonl({"id": f"k{n}", "n": 0} for n in range(10)))
        await self.done("topic", "split", "t", "0")
        await self.done("produce", "t", "--key-field", "id", stdin=jsonl({"id": f"k{n}", "n": 1} for n in range(10)))

    def consume(self, subscription: str) -> asyncio.Task[CommandResult]:
        """Start to read until everything has come."""
        options = ("--subscription", subscription, "--type", "stream", "--from", "earliest", "--exit-when-caught-up")
        self._reading.append(asyncio.create_task(self.done("consume", "t", *options, seconds=120)))
        return self._reading[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedServers]:
    async with AsyncExitStack() as stack:
        made = SharedServers(tmp_path_factory.mktemp("b"), stack.enter_context(s3_server()))
        await stack.enter_async_context(made.zookeeper)
        await stack.enter_async_context(made.broker)
        yield made


def order(finished: CommandResult) -> dict[str, list[int]]:
    """Return what came of each key, in order."""
    found: dict[str, list[int]] = {}
    for record in finished.records():
        found.setdefault(record["value"]["id"], []).append(record["value"]["n"])
    return found


IN_ORDER = {f"k{n}": [0, 1] for n in range(10)}


async def test_daemon_clients_and_spark_agree_on_a_bucket_and_nobody_shows_its_secret(servers: SharedServers):
    async with servers.cluster("spark") as cluster:
        await cluster.split_with_records()
        reading = cluster.consume("s")
        while not reading.done():
            # Whoever looks at the list of processes at any time must not find it there.
            assert SECRET not in str([command_line(process) for process in marked(servers.mark)])
            await asyncio.wait({reading}, timeout=1)
        assert order(reading.result()) == IN_ORDER

    logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert {"daemon.err", "drain.log"} <= {path.name for path in logs}
    assert [path for path in logs if SECRET.encode() in path.read_bytes()] == []


async def test_a_daemon_without_spark_releases_children_when_a_job_has_counted(servers: SharedServers):
    async with servers.cluster("jobs", 'results = "{ledger_url}"') as cluster:
        await cluster.split_with_records()
        reading = cluster.consume("s")

        async def parent_is_read() -> bool:
            # A list, because the reader may not have registered yet.
            told = (await cluster.done("subscription", "list", "t", "--json")).out
            assert not reading.done(), "nothing has been counted yet"
            return '"blocked"' in told

        await wait_until(parent_is_read, "the children wait", 30)
        assert [each for each in marked(servers.mark) if "drain.service" in " ".join(command_line(each))] == []
        while not reading.done():
            job = await start(
                *("--ledger", cluster.ledger_url, "--out", cluster.ledger_url, "--master", "local[1]"),
                program=("-m", "drain.backlog.job"),
                out=cluster.folder / "job.out",
                env=servers.env,
            )
            assert await job.ended(60) == 0, job.err.read_text()
            await asyncio.wait({reading}, timeout=10)

        assert order(reading.result()) == IN_ORDER
