"""Topics as a source and a sink of real Spark queries, on one cluster and in one session."""

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from controller.settings.sections import CompactionSettings, DrainSettings, SnapshotSettings
from drain.spark.session import build_session
from headgate.spark import HeadgateDataSource
from headgate.sync import Admin, Consumer, Producer
from tests.support.servers.class_archive import SMALL_JVM
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tls: bool, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path_factory.mktemp("cluster"), shards=1) as made:
        await made.start_leader()
        yield made


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    extra = {
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HEADGATE_CONFIG", str(cluster.client_config_path))
        session = build_session(master="local[2,2]", wrapper_folder=folder / "java", extra=extra)
        session.dataSource.register(HeadgateDataSource)
        yield session
        session.stop()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.client_config()) as made:
        yield made


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.client_config()) as made:
        yield made


class Keys:
    """Sends records of seven keys, each of which counts, to a new topic."""

    def __init__(self, producer: Producer, admin: Admin, topic: str, segments: int = 1) -> None:
        admin.create_topic(topic, segments=segments)
        self.sent = 0
        self._producer = producer
        self._topic = topic

    def send(self, count: int) -> None:
        for n in range(self.sent, self.sent + count):
            headers = [("n", b"%d" % n)] if n % 2 else []
            self._producer.send(self._topic, b"k%d" % (n % 7), b"%d" % n, headers=headers, timestamp_ms=10**12 + n)
        self._producer.flush()
        self.sent += count


def finish(query: DataStreamWriter) -> None:
    """Run ``query`` until it has read everything.

    Spark gives its Python process ten seconds to start, which are too few on a busy machine: start the query again.
    """
    for attempt in range(6):
        try:
            query.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if attempt == 5 or "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


class Query:
    """A query with a checkpoint. Each run ends when everything is read, and keeps what its batches had."""

    def __init__(self, spark: SparkSession, checkpoint: Path, topic: str, **options: Any) -> None:
        self.batches: list[list[tuple[bytes, int]]] = []
        """Key and number of each record, by segment and offset."""
        self._spark = spark
        self._checkpoint = checkpoint
        self._topic = topic
        self._options = options

    def run(self) -> None:
        def keep(batch: DataFrame, _: int) -> None:
            rows = batch.orderBy("segment", "offset").select("key", "value").collect()
            self.batches.append([(bytes(row.key), int(row.value)) for row in rows])

        source = self._spark.readStream.format("headgate").options(**self._options).load(self._topic)
        writer = source.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        finish(writer)

    def require_each_once(self, count: int) -> None:
        by_key = defaultdict(list)
        for key, number in (record for batch in self.batches for record in batch):
            by_key[key].append(number)
        assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(count))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_query_has_each_record_once_and_in_order_while_the_topic_splits_merges_and_is_pruned(
    spark: SparkSession, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    keys = Keys(producer, admin, "orders", segments=2)
    query = Query(spark, tmp_path, "orders", maxRecordsPerTrigger=25, subscription="sums")
    keys.send(40)
    admin.split("orders", 0)
    keys.send(20)
    query.run()
    query.require_each_once(60)
    assert all(1 <= len(batch) <= 25 for batch in query.batches)
    assert [0] == [each.records for each in admin.backlog("orders")]

    assert (0,) == admin.prune_topic("orders").segments, "its end is acknowledged"
    keys.send(10)
    assert [10] == [each.records for each in admin.backlog("orders")], "of a query that does not run"
    admin.split("orders", 1)
    admin.merge("orders", 3, 4)
    keys.send(20)
    query.run()
    query.require_each_once(90)
    assert [0] == [each.records for each in admin.backlog("orders")]


def test_a_batch_reads_between_two_positions_the_columns_that_a_schema_names(
    spark: SparkSession, admin: Admin, producer: Producer, cluster: Cluster
) -> None:
    keys = Keys(producer, admin, "events")
    keys.send(4)
    producer.send("events", b"k4", b"4", timestamp_ms=2**63 - 1)
    producer.flush()
    with Consumer(
        cluster.client_config(), topic="events", subscription="s", type="CHECKPOINT", start="earliest"
    ) as consumer:
        consumer.get_many(3, 60)
        token = consumer.positions
    read = spark.read.format("headgate")

    rows = read.load("events").orderBy("offset").collect()
    assert [0, 1, 2, 3, 4] == [row.offset for row in rows]
    assert (b"k1", b"1", [("n", b"1")], 10**9 + 0.001, 0) == (
        *rows[1][:3],
        rows[1].timestamp.timestamp(),
        rows[1].segment,
    )
    assert (None, None) == (rows[0].headers, rows[4].timestamp)
    some = read.schema("offset long, value binary")
    after = some.option("startingOffsets", token).load("events").collect()
    before = some.option("startingOffsets", "2026-01-01T00:00Z").option("endingOffsets", token).load("events").collect()
    assert ({0, 1, 2, 3, 4}, len(after) + len(before)) == ({row.offset for row in after + before}, 5)
    assert after
    assert before
    with pytest.raises(
        PySparkException, match="endingOffsets is before startingOffsets in segment 0 of 'events', at 0"
    ):
        some.option("startingOffsets", token).option("endingOffsets", "earliest").load("events").collect()


def test_a_query_whose_records_are_gone_or_of_another_topic_says_so(
    spark: SparkSession, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    keys = Keys(producer, admin, "metrics")
    keys.send(5)
    query = Query(spark, tmp_path / "kept", "metrics")
    query.run()
    keys.send(5)
    admin.split("metrics", 0)
    admin.prune_topic("metrics")
    keys.send(5)
    with pytest.raises(
        Exception, match="segment 0 of topic 'metrics' was read up to offset 5, and pruned since: records"
    ):
        query.run()
    passing = Query(spark, tmp_path / "kept", "metrics", failOnDataLoss=False)
    passing.run()
    assert [10, 11, 12, 13, 14] == sorted(number for batch in passing.batches for _, number in batch)

    admin.delete_topic("metrics")
    admin.create_topic("metrics")
    with pytest.raises(
        Exception, match=r"topic 'metrics' was deleted and created again: .* the present one has the id"
    ):
        query.run()
    with pytest.raises(Exception, match="topic 'metrixs' does not exist; did you mean 'metrics'"):
        spark.read.format("headgate").load("metrixs").collect()


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass one batch on, and fail, in the first attempt of each task."""
    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if number and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt")
        yield batch


@pytest.mark.nightly
def test_a_write_stores_each_row_once_although_each_task_fails_once(spark: SparkSession, admin: Admin) -> None:
    admin.create_topic("written", segments=2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 20)
    rows = spark.range(0, 100, numPartitions=2).selectExpr("concat('k', id % 5) AS key", "string(id) AS value")
    for _ in range(2):
        rows.mapInArrow(failing_once, rows.schema).write.format("headgate").mode("append").save("written")

    stored = spark.read.format("headgate").load("written").selectExpr("string(value)").collect()
    assert sorted(2 * list(range(100))) == sorted(int(row[0]) for row in stored)
    assert {"spark-written-0", "spark-written-1"} == {each.producer for each in admin.list_producers()}
    with pytest.raises(Exception, match="topic 'writen' does not exist; did you mean 'written'"):
        rows.write.format("headgate").mode("append").save("writen")


def test_a_repeated_batch_of_a_query_is_stored_once(
    spark: SparkSession, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    admin.create_topic("to", segments=2)
    keys = Keys(producer, admin, "from")

    def copy(rows: str = "true") -> list[int]:
        source = spark.readStream.format("headgate").option("maxRecordsPerTrigger", 10).load("from").where(rows)
        columns = source.select("key", "value", "headers", "timestamp")
        writer = columns.writeStream.format("headgate").option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.option("topic", "to"))
        return sorted(int(row.value) for row in spark.read.format("headgate").load("to").collect())

    keys.send(25)
    assert list(range(25)) == copy()
    (tmp_path / "checkpoint/commits/2").unlink()
    (tmp_path / "checkpoint/commits/.2.crc").unlink()
    with pytest.raises(StreamingQueryException, match="5 rows are stored, and the repeated task has 0"):
        copy("offset < 0")
    keys.send(5)
    assert list(range(30)) == copy()
    for kind in ("offsets", "commits"):
        folder = tmp_path / "checkpoint" / kind
        shutil.copy(folder / "3", folder / "4")
    keys.send(1)
    with pytest.raises(StreamingQueryException, match="at batch 5, and the ledger has its batches up to 3: an older"):
        copy()


@pytest.mark.nightly
@pytest.mark.parametrize("subscribed", [True, False], ids=["with a subscription of the name", "without one"])
def test_a_query_leaves_the_subscriptions_alone_of_a_topic_that_was_created_again_while_it_runs(
    spark: SparkSession, admin: Admin, producer: Producer, tmp_path: Path, subscribed: bool
) -> None:
    """Retention would delete what nothing has read, or keep permanently what nothing will read."""
    keys = Keys(producer, admin, "twice")
    keys.send(20)

    def create_again(_: DataFrame, batch: int) -> None:
        if batch == 0:
            admin.delete_topic("twice")
            admin.create_topic("twice")
            keys.send(20)
            if subscribed:
                admin.create_subscription("twice", "sums", type="QUEUE", start="earliest")

    source = spark.readStream.format("headgate").options(subscription="sums", maxRecordsPerTrigger=10).load("twice")
    writer = source.writeStream.foreachBatch(create_again).option("checkpointLocation", str(tmp_path))
    finish(writer)
    found = [each.subscription for each in admin.list_subscriptions("twice")]
    assert (["sums"] if subscribed else []) == found
    assert not subscribed or [20] == [each.records for each in admin.backlog("twice", "sums")]
    with pytest.raises(Exception, match="topic 'twice' was deleted and created again"):
        finish(writer)
    admin.delete_topic("twice")


@pytest.mark.nightly
def test_a_query_creates_its_subscription_again_if_it_was_deleted(
    spark: SparkSession, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    """Retention would keep nothing for it."""
    Keys(producer, admin, "kept").send(40)

    def delete(_: DataFrame, batch: int) -> None:
        if batch == 0:
            admin.delete_subscription("kept", "sums")

    source = spark.readStream.format("headgate").options(subscription="sums", maxRecordsPerTrigger=10).load("kept")
    finish(source.writeStream.foreachBatch(delete).option("checkpointLocation", str(tmp_path)))
    assert [("sums", 0)] == [(each.subscription, each.records) for each in admin.backlog("kept")]


PROGRAM = """
import sys
from pathlib import Path

from drain.spark.session import build_session
from headgate.spark import HeadgateDataSource

folder = Path(sys.argv[1])
session = build_session(master="local[2]", wrapper_folder=folder / "java", extra={"spark.local.dir": str(folder / "s")})
session.dataSource.register(HeadgateDataSource)
read = session.readStream.format("headgate").options(config=sys.argv[2], maxRecordsPerTrigger=50).load(sys.argv[3])
write = read.writeStream.format("parquet").option("path", str(folder / "out"))
write.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
"""
KILLS = 20


class Driver:
    """Runs `PROGRAM`, whose checkpoint and output are in ``folder``."""

    def __init__(self, folder: Path, cluster: Cluster, topic: str) -> None:
        self._folder = folder
        self._command = (str(folder / "query.py"), str(folder), str(cluster.client_config_path), topic)
        self.log = folder / "query.log"
        (folder / "query.py").write_text(PROGRAM)

    def batches(self, kind: str = "commits") -> int:
        return len(list(self._folder.glob(f"checkpoint/{kind}/[0-9]*")))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start it, and kill it at the end."""
        with self.log.open("ab") as out:
            program = await asyncio.create_subprocess_exec(
                sys.executable, *self._command, stdout=out, stderr=out, start_new_session=True
            )
        try:
            yield program
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            await program.wait()


@pytest_asyncio.fixture
async def compacting(tls: bool, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster whose chunks are compacted as soon as they are counted, and deleted a minute later."""
    async with Cluster(tmp_path / "cluster", shards=1) as made:
        folder = str(tmp_path / "drain")
        made.sections["drain"] = DrainSettings(socket=made.spark.socket, folder=folder, master="local[1]")
        made.sections["compaction"] = CompactionSettings(min_chunks=8, delay_seconds=0.0, delete_delay_seconds=60.0)
        made.sections["snapshots"] = SnapshotSettings(min_chunks=25, min_interval_seconds=1.0)
        await made.start_leader()
        yield made


@pytest.mark.nightly
@pytest.mark.timeout(KILLS * TEST_SECONDS)
async def test_no_record_is_lost_or_doubled_over_kills_of_the_driver(
    spark: SparkSession, compacting: Cluster, tmp_path: Path
) -> None:
    """Meanwhile the topic is split, and its chunks are compacted and deleted."""
    rng, config = random.Random(7), str(compacting.client_config_path)
    driver = Driver(tmp_path, compacting, "killed")
    first_chunks: list[str] = []
    """The oldest one that is not kept for good, at each kill."""
    with Admin(compacting.client_config()) as admin, Producer(compacting.client_config()) as producer:
        keys = Keys(producer, admin, "killed", segments=2)
        while len(first_chunks) < KILLS or len({*first_chunks}) < 3:
            for _ in range(12):
                keys.send(10)
            active = [each.segment for each in admin.describe_topic("killed").segments if each.state == "active"]
            admin.split("killed", rng.choice(active))
            before = driver.batches()
            async with driver.started():
                await wait_until(lambda: driver.batches() > before, driver.log.read_text, 60)  # noqa: B023
                await asyncio.sleep(rng.random())  # chance, and no condition
            first_chunks.append(sorted(compacting.folder.glob("store/chunks/*/*"))[1].name)
    read = spark.readStream.format("headgate").option("config", config).load("killed")
    write = read.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    finish(write.option("checkpointLocation", str(tmp_path / "checkpoint")))
    stored = [int(row.value) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert list(range(keys.sent)) == sorted(stored)


@pytest.mark.nightly
async def test_a_killed_query_does_not_continue_in_a_topic_that_was_created_again(
    spark: SparkSession, cluster: Cluster, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    """Nor with the batch that it had begun: other records are at its offsets."""
    driver, keys = Driver(tmp_path, cluster, "again"), Keys(producer, admin, "again", segments=2)

    def filled() -> int:
        keys.send(1000)
        return admin.describe_topic("again").topic_id

    old = filled()
    async with driver.started():
        await wait_until(lambda: driver.batches("offsets") > driver.batches() > 0, driver.log.read_text, 60)
    admin.delete_topic("again")
    admin.create_topic("again", segments=2)
    new, committed = filled(), driver.batches()
    async with driver.started() as program:
        assert await program.wait() == 1

    reason = f"is of the topic with the id {old}, and the present one has the id {new}, and other records"
    assert reason in driver.log.read_text()
    assert committed == driver.batches()
    assert max(int(row.value) for row in spark.read.parquet(str(tmp_path / "out")).collect()) < 1000
