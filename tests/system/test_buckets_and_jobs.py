"""A ledger in a bucket: children are released when Spark of the node, or a scheduled job, has counted."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from controller.settings.sections import DrainSettings
from headgate.process.background import cancel_and_wait
from tests.support.servers import programs
from tests.support.servers.cluster import Cluster
from tests.support.servers.node import ANY_PORTS, Node
from tests.support.servers.s3_server import BUCKET, SECRET, S3Server, s3_server

pytestmark = [pytest.mark.system, pytest.mark.timeout(programs.TEST_SECONDS)]

IN_ORDER = {f"k{n}": [0, 1] for n in range(10)}


class BucketCluster(Cluster):
    """One daemon and one shard on a prefix of a bucket."""

    def __init__(self, folder: Path, s3: S3Server, **drain: Any) -> None:
        self.run_id = uuid.uuid4().hex
        super().__init__(
            folder,
            shards=1,
            broker_kind="mosquitto",
            ledger_url=f"s3://{BUCKET}/{folder.name}/of a cluster",
            environ={programs.RUN_ID: self.run_id} | s3.environment(),
        )
        process = drain or {"socket": self.spark.socket, "master": "local[1]"}
        self.sections["drain"] = DrainSettings(folder=str(folder / "drain"), **process)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.start_servers()
        await self.start_daemon("daemon")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop("daemon")
        await super().__aexit__()


@contextlib.asynccontextmanager
async def reading_of_a_split_topic(
    commands: programs.ClientCommands,
) -> AsyncIterator[asyncio.Task[programs.CommandResult]]:
    """Create a topic of one segment with ten records, split it, and store ten more in its children; read them all."""
    await commands.succeed("topic", "create", "t", "--segments", "1", seconds=60)
    for n in range(2):
        records = programs.jsonl({"id": f"k{key}", "n": n} for key in range(10))
        await commands.succeed("produce", "t", "--key-field", "id", stdin=records)
        if n == 0:
            await commands.succeed("topic", "split", "t", "0")
    options = ("--type", "stream", "--from", "earliest", "--exit-when-caught-up")
    reading = asyncio.create_task(commands.succeed("consume", "t", "s", *options, seconds=120))
    try:
        yield reading
    finally:
        await cancel_and_wait(reading)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def files_with(content: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


def order(result: programs.CommandResult) -> dict[str, list[int]]:
    """Return the values of each key, in the order of delivery."""
    found: dict[str, list[int]] = {}
    for record in result.records():
        found.setdefault(record["value"]["id"], []).append(record["value"]["n"])
    return found


async def test_a_node_clients_and_spark_agree_on_a_bucket_and_never_show_its_secret(tmp_path: Path, s3: S3Server):
    node = Node(tmp_path, env=s3.environment())
    try:
        await node.up(*ANY_PORTS, "--shards", "1", "--ledger", f"s3://{BUCKET}/ledger/of a node")
        async with reading_of_a_split_topic(node.commands) as reading:
            while not reading.done():
                # Other users can read the list of processes at any time.
                assert SECRET not in str(
                    [programs.command_line(process) for process in programs.processes_of(node.run_id)]
                )
                await asyncio.wait({reading}, timeout=1)
            assert order(reading.result()) == IN_ORDER
        assert await node.down() == 0
    finally:
        await node.clean_up()

    assert {"daemon.log", "drain.log"} <= {path.name for path in files_with(b"", tmp_path)}
    assert files_with(SECRET.encode(), tmp_path) == []


@pytest.mark.nightly
async def test_a_daemon_without_spark_releases_children_when_a_job_has_counted(tmp_path: Path, s3: S3Server):
    folder = tmp_path / "jobs"
    async with (
        BucketCluster(folder, s3, results=f"s3://{BUCKET}/jobs/of a cluster") as cluster,
        reading_of_a_split_topic(cluster.commands) as reading,
    ):

        async def children_wait() -> bool:
            # A list, because the reader may not have registered yet.
            listing = (await cluster.commands.succeed("subscription", "list", "t", "--json")).out
            assert not reading.done(), "nothing has been counted yet"
            return '"blocked"' in listing

        await programs.wait_until(children_wait, "the children wait for their parent", 30)
        running = programs.processes_of(cluster.run_id)
        assert [each for each in running if "drain.service" in " ".join(programs.command_line(each))] == []
        while not reading.done():
            job = await programs.start(
                *("--ledger", cluster.ledger_url, "--out", cluster.ledger_url, "--master", "local[1]"),
                program=("-m", "headgate", "drain", "job"),
                out=cluster.folder / "job.out",
                env=cluster.environ,
            )
            assert await job.ended(60) == 0, job.errors()
            await asyncio.wait({reading}, timeout=10)

        assert order(reading.result()) == IN_ORDER
