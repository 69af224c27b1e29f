"""Reading chunks from an object store on Spark's workers: the same rows as from a folder, and errors that name objects."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from drain.backlog.counting import aggregate_chunks
from drain.backlog.job import BacklogJob
from drain.spark import object_data_source as objects
from drain.spark.chunks import LedgerChunks
from drain.spark.fact_source import SparkFiles, StoreObjects, fact_source
from drain.spark.object_data_source import ObjectError, ObjectReader, ObjectSource
from drain.spark.schemas import FACT_COLUMNS, FACTS
from drain.spark.spark_schemas import spark_schema
from headgate.ledger.chunk import SCHEMA
from headgate.storage.object_store import open_store
from tests.support.ledgers import RandomLedger, WrittenLedger
from tests.support.object_formats import with_format
from tests.support.s3_server import SECRET


@pytest.fixture
def ledger(tmp_path: Path) -> RandomLedger:
    written = RandomLedger(tmp_path / "one folder", seed=7, shard=3)
    written.grow(20)
    return written


def rows_read(url: str, paths: list[str]) -> pa.Table:
    reader = ObjectReader(url, paths, to_arrow_schema(spark_schema(FACTS)))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches)


def paths_of(ledger: WrittenLedger) -> list[str]:
    return [str(ledger.path(number).relative_to(ledger.root)) for number in range(1, ledger.state.chunk + 1)]


def expected_rows(ledger: WrittenLedger) -> list[dict[str, object]]:
    found = [
        row | {"shard": ledger.shard}
        for number in range(1, ledger.state.chunk + 1)
        for row in pq.read_table(ledger.path(number), columns=list(FACT_COLUMNS), partitioning=None).to_pylist()
    ]
    return [row for row in found if row["fact"] is not None]


@pytest.mark.parametrize("whole_bytes", [objects.MAX_WHOLE_READ_BYTES, 0], ids=["whole", "by ranges"])
def test_every_fact_of_every_object_is_read_once_in_order(ledger, monkeypatch, whole_bytes):
    monkeypatch.setattr(objects, "MAX_WHOLE_READ_BYTES", whole_bytes)
    monkeypatch.setattr(objects, "OBJECTS_PER_TASK", 6)
    monkeypatch.setattr(objects, "MAX_CONCURRENT_FETCHES", 3)
    monkeypatch.setattr(objects, "ROWS_PER_BATCH", 10)

    assert expected_rows(ledger) == rows_read(ledger.url, paths_of(ledger)).to_pylist()


def test_a_column_that_an_older_object_lacks_is_null(ledger):
    path = ledger.path(1)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.drop_columns(["bucket"]), path)

    (column,) = {*rows_read(ledger.url, paths_of(ledger)[:1]).column("bucket").to_pylist()}
    assert column is None


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoilt_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def foreign(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([], schema=SCHEMA), path)


def misplaced(path: Path) -> None:
    shutil.copy(path.with_name("000000000001.parquet"), path)


def of_an_older_version(path: Path) -> None:
    path.write_bytes(with_format(path.read_bytes(), 1))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_an_older_version, "has format 1, this version of headgate reads format 2; run the version that wrote it$"),
        (cut_short, "Parquet"),
        (spoilt_inside, "."),
        (foreign, "headgate did not write"),
        (misplaced, "states that it is chunk 1 of shard 3"),
        (Path.unlink, "not found"),
    ],
    ids=["older", "cut short", "spoilt inside", "foreign", "misplaced", "missing"],
)
def test_an_object_that_is_not_its_chunk_is_refused_by_name(ledger, spoil, reason):
    spoil(ledger.path(2))

    with pytest.raises(ObjectError, match=rf"^ledger/shard=0003/000000000002\.parquet.*{reason}") as told:
        rows_read(ledger.url, paths_of(ledger))
    assert "\n" not in str(told.value)


def test_a_bucket_is_read_by_our_reader_and_a_folder_by_spark_itself():
    assert isinstance(fact_source("file:///folder"), SparkFiles)
    assert isinstance(fact_source("s3://bucket/prefix"), StoreObjects)
    with_jars = fact_source("s3://bucket/some folder", "spark")
    assert with_jars.path(3, 7) == "s3a://bucket/some folder/ledger/shard=0003/000000000007.parquet"


def test_what_travels_to_workers_needs_nothing_of_headgate_there():
    """They may run where headgate is not installed: the module goes along, by value."""
    objects.cloudpickle.register_pickle_by_value(objects)
    data = objects.cloudpickle.dumps(ObjectSource)

    assert b"drain.spark.object_data_source" not in data.replace(
        b"__module__\x94\x8c\x1edrain.spark.object_data_source", b""
    )
    assert pickle.loads(data).name() == ObjectSource.name()


async def copied(ledger: WrittenLedger, url: str) -> None:
    store = open_store(url)
    for path in paths_of(ledger):
        await store.create(path, (ledger.root / path).read_bytes())


def job_on(spark, url: str) -> BacklogJob:
    chunks = LedgerChunks(url)

    async def count(batches):
        return await asyncio.to_thread(aggregate_chunks, spark, chunks.source, batches)

    return BacklogJob(chunks, count, max_chunks_per_job=15)


@pytest.mark.spark
@pytest.mark.engines
async def test_a_bucket_and_a_folder_come_to_the_same_result_and_a_fault_is_named(spark, s3, ledger):
    s3.make_bucket("counted")
    url = "s3://counted/a prefix"
    await copied(ledger, url)
    from_folder = await job_on(spark, ledger.url).run([3])
    s3.requests.clear()
    from_bucket = await job_on(spark, url).run([3])

    assert from_bucket.failures == {}
    assert from_bucket.results == from_folder.results
    assert await LedgerChunks(url).shards() == [3]
    read = [path for method, path in s3.requests if method == "GET" and path.endswith(".parquet")]
    steps = 2  # of each the last object's time is looked at beside Spark
    assert len(read) == ledger.state.chunk + steps

    ledger.grow(2)
    broken, sound = paths_of(ledger)[-2:]
    await open_store(url).create(broken, b"no chunk")
    await open_store(url).create(sound, (ledger.root / sound).read_bytes())
    outcome = await job_on(spark, url).run([3])

    assert list(outcome.failures) == [3]
    assert outcome.failures[3].startswith(f"Spark could not count: {broken}: ")
    assert SECRET not in outcome.failures[3]
