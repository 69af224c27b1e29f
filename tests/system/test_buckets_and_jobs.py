"""A ledger in a bucket: children are released when Spark beside the daemon, or a scheduled job, has counted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from controller.settings.sections import DrainSettings
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import (
    RUN_ID,
    TEST_SECONDS,
    CommandResult,
    command_line,
    jsonl,
    processes_of,
    start,
    wait_until,
)
from tests.support.servers.s3_server import BUCKET, SECRET, S3Server, s3_server

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

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
            environ={RUN_ID: self.run_id} | s3.environment(),
        )
        settings = DrainSettings(socket=self.drain_socket, folder=str(folder / "drain"), master="local[1]", **drain)
        self.sections["drain"] = settings
        self._reading: list[asyncio.Task[CommandResult]] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.start_servers()
        await self.start_daemon("daemon")
        return self

    async def __aexit__(self, *_: object) -> None:
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self.stop("daemon")
        await super().__aexit__()

    async def split_with_records(self) -> None:
        """Create a topic of one segment with ten records, split it, and store ten more in its children."""
        await self.commands.succeed("topic", "create", "t", "--segments", "1", seconds=60)
        await self.commands.succeed(
            "produce", "t", "--key-field", "id", stdin=jsonl({"id": f"k{n}", "n": 0} for n in range(10))
        )
        await self.commands.succeed("topic", "split", "t", "0")
        await self.commands.succeed(
            "produce", "t", "--key-field", "id", stdin=jsonl({"id": f"k{n}", "n": 1} for n in range(10))
        )

    def consume(self, subscription: str) -> asyncio.Task[CommandResult]:
        """Start a consumer that reads until it has caught up."""
        options = (subscription, "--type", "stream", "--from", "earliest", "--exit-when-caught-up")
        self._reading.append(asyncio.create_task(self.commands.succeed("consume", "t", *options, seconds=120)))
        return self._reading[-1]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def order(result: CommandResult) -> dict[str, list[int]]:
    """Return the values of each key, in the order of delivery."""
    found: dict[str, list[int]] = {}
    for record in result.records():
        found.setdefault(record["value"]["id"], []).append(record["value"]["n"])
    return found


async def test_daemon_clients_and_spark_agree_on_a_bucket_and_never_show_its_secret(tmp_path: Path, s3: S3Server):
    async with BucketCluster(tmp_path / "spark", s3) as cluster:
        await cluster.split_with_records()
        reading = cluster.consume("s")
        while not reading.done():
            # Other users can read the list of processes at any time.
            assert SECRET not in str([command_line(process) for process in processes_of(cluster.run_id)])
            await asyncio.wait({reading}, timeout=1)
        assert order(reading.result()) == IN_ORDER

    files = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert {"daemon.log", "drain.log"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.nightly
async def test_a_daemon_without_spark_releases_children_when_a_job_has_counted(tmp_path: Path, s3: S3Server):
    folder = tmp_path / "jobs"
    async with BucketCluster(folder, s3, results=f"s3://{BUCKET}/jobs/of a cluster") as cluster:
        await cluster.split_with_records()
        reading = cluster.consume("s")

        async def children_wait() -> bool:
            # A list, because the reader may not have registered yet.
            listing = (await cluster.commands.succeed("subscription", "list", "t", "--json")).out
            assert not reading.done(), "nothing has been counted yet"
            return '"blocked"' in listing

        await wait_until(children_wait, "the children wait for their parent", 30)
        running = processes_of(cluster.run_id)
        assert [each for each in running if "drain.service" in " ".join(command_line(each))] == []
        while not reading.done():
            job = await start(
                *("--ledger", cluster.ledger_url, "--out", cluster.ledger_url, "--master", "local[1]"),
                program=("-m", "headgate", "drain", "job"),
                out=cluster.folder / "job.out",
                env=cluster.environ,
            )
            assert await job.ended(60) == 0, job.errors()
            await asyncio.wait({reading}, timeout=10)

        assert order(reading.result()) == IN_ORDER
