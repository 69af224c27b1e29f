"""The object reader on Spark's workers returns the same rows as a folder, and its errors name objects."""

import gc
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.chunk_writer.builder import ChunkBuilder
from drain.backlog.aggregates import FACT_COLUMNS, FACTS
from drain.backlog.job import BacklogJob, count_on
from drain.compaction.job import CompactionJob, CompactionSettings
from drain.spark.chunks import LedgerChunks
from drain.spark.object_reader import (
    DEFAULT_LIMITS,
    ObjectError,
    ReadLimits,
    decode_object,
    read_in_tasks,
    read_objects,
    rows_of,
)
from headgate.storage.object_store import MAX_CHUNK_BYTES, open_store
from tests.support.samples.chunks import add_record, small_chunk
from tests.support.samples.ledgers import RandomLedger, WrittenLedger
from tests.support.samples.object_formats import corrupt, of_older_format, sealed, truncate
from tests.support.servers.s3_server import SECRET

SEVENTH = "chunks/shard=0003/000000000007.parquet"
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
ROWS = pa.schema(
    [*FACTS, ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("stored_at_ms", pa.int64())]
)


@pytest.fixture
def ledger(tmp_path: Path) -> RandomLedger:
    written = RandomLedger(tmp_path / "one folder", seed=7, shard=3)
    written.grow(20)
    return written


def rows_read(url: str, paths: list[str], limits: ReadLimits = DEFAULT_LIMITS) -> pa.Table:
    return pa.Table.from_batches(read_objects(url, list(dict.fromkeys(paths).items()), FACTS, limits))


def paths_of(ledger: WrittenLedger) -> list[str]:
    return [str(ledger.path(number).relative_to(ledger.root)) for number in range(1, ledger.state.chunk + 1)]


def expected_rows(ledger: WrittenLedger) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for number in range(1, ledger.state.chunk + 1):
        rows = pq.read_table(ledger.path(number), columns=list(FACT_COLUMNS), partitioning=None).to_pylist()
        found += (row for row in rows if row["fact"] is not None)
        chunk = {"fact": "chunk", "end_offset": number, "timestamp_ms": number * 1000}
        found.append(dict.fromkeys(FACT_COLUMNS) | chunk)
    return [row | {"shard": ledger.shard} for row in found]


def is_chunk(row: dict[str, object]) -> bool:
    return row["fact"] == "chunk"


def test_small_objects_share_tasks_when_there_are_many() -> None:
    limits = ReadLimits(objects_per_task=64)

    assert [limits.tasks(objects, cores=4) for objects in (0, 1, 64, 65, 192, 4_000)] == [0, 1, 1, 2, 3, 4]


def records_chunk(**limits: int) -> bytes:
    builder = ChunkBuilder(**limits)
    for offset in range(3):
        add_record(builder, offset, 5, b"v", (("a", "é".encode()),) * offset)
    return builder.encode(shard=3, number=7, leader_epoch=1, at_ms=9)


def test_packed_records_are_the_rows_of_the_columns_if_the_chunk_states_nothing_else() -> None:
    chunks = records_chunk(), records_chunk(packed_max_bytes=0), small_chunk(packed_max_bytes=4096)[1]
    packed, columns, others = (decode_object(each, SEVENTH, None, ROWS) for each in chunks)

    assert (True, False, False) == (packed.is_packed, columns.is_packed, others.is_packed)
    assert rows_of([columns], ROWS) == rows_of([packed], ROWS)


@pytest.mark.parametrize("packed", [[[1]] * 7, [1] * 7, [[1, 1, 1]] * 6], ids=["fewer", "no columns", "fewer columns"])
def test_packed_records_that_do_not_fit_the_header_are_named(packed: object) -> None:
    with patch("controller.chunk_writer.builder.pack_records", return_value=msgspec.msgpack.encode(packed)):
        data = records_chunk()
    with pytest.raises(ObjectError, match=f"^{SEVENTH} has unreadable packed records$"):
        decode_object(data, SEVENTH, None, ROWS)


def test_of_objects_read_together_the_wrong_one_is_named(ledger):
    path = ledger.path(1)
    table = pq.read_table(path, partitioning=None)
    place = table.column_names.index("offset")
    path.write_bytes(sealed(table.set_column(place, "offset", pa.array(["no number"] * len(table)))))

    with pytest.raises(ObjectError, match=r"^chunks/shard=0003/000000000001\.parquet: "):
        rows_read(ledger.url, paths_of(ledger))


@pytest.mark.parametrize("small_bytes", [DEFAULT_LIMITS.small_object_bytes, 0], ids=["concurrently", "one at a time"])
def test_every_fact_of_every_object_is_read_once_in_order(ledger, small_bytes):
    limits = ReadLimits(objects_per_task=6, max_concurrent_fetches=3, small_object_bytes=small_bytes, rows_per_batch=10)

    found = rows_read(ledger.url, paths_of(ledger), limits).to_pylist()
    assert sorted(expected_rows(ledger), key=is_chunk) == sorted(found, key=is_chunk)


def test_a_column_that_an_older_object_lacks_is_null(ledger):
    path = ledger.path(1)
    table = pq.read_table(path, partitioning=None)
    path.write_bytes(sealed(table.drop_columns(["bucket"])))

    (column,) = {*rows_read(ledger.url, paths_of(ledger)[:1]).column("bucket").to_pylist()}
    assert column is None


def foreign(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([], schema=pa.schema([("fact", pa.string())])), path)


def misplaced(path: Path) -> None:
    shutil.copy(path.with_name("000000000001.parquet"), path)


def huge(path: Path) -> None:
    os.truncate(path, MAX_CHUNK_BYTES + 1)


def of_an_older_version(path: Path) -> None:
    path.write_bytes(of_older_format(path.read_bytes()))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (of_an_older_version, "has format 1, this version of headgate reads format 5; run the version that wrote it$"),
        (truncate, "have no checksum"),
        (corrupt, "is damaged: .* checksum"),
        (foreign, "have no checksum: headgate did not write them"),
        (huge, f"has {MAX_CHUNK_BYTES + 1} bytes, and a chunk has at most {MAX_CHUNK_BYTES}$"),
        (misplaced, "states that it is chunk 1 of shard 3"),
        (Path.unlink, "No such file"),
    ],
    ids=["older", "truncated", "corrupted", "foreign", "huge", "misplaced", "missing"],
)
def test_an_invalid_object_fails_with_its_name(ledger, damage, reason):
    damage(ledger.path(2))

    with pytest.raises(ObjectError, match=rf"^chunks/shard=0003/000000000002\.parquet.*{reason}") as caught:
        rows_read(ledger.url, paths_of(ledger))
    assert "\n" not in str(caught.value)


async def copied(ledger: WrittenLedger, url: str) -> None:
    store = open_store(url)
    for path in paths_of(ledger):
        await store.create(path, (ledger.root / path).read_bytes())


def job_on(spark, url: str) -> BacklogJob:
    chunks = LedgerChunks(url)
    return BacklogJob(chunks, count_on(spark, chunks), max_chunks_per_job=15)


@pytest.mark.spark
def test_a_task_leaves_no_file_and_the_garbage_collector_of_a_worker_looks_at_no_task_and_no_module(spark):
    def read(_):
        yield pa.RecordBatch.from_pylist([{"enabled": int(gc.isenabled()), "frozen": gc.get_freeze_count()}])

    schema = pa.schema([("enabled", pa.int64()), ("frozen", pa.int64())])
    items = [f"chunks/shard=0001/{number:012d}.parquet" for number in range(65_536)]
    rows = [read_in_tasks(spark, items, 1, read, schema, [read_in_tasks.__module__]).toArrow() for _ in range(5)]
    (*_, last) = pa.concat_tables(rows).to_pylist()

    assert (last["enabled"], last["frozen"] > 10_000) == (0, True)
    assert not any(Path(spark.sparkContext._temp_dir).iterdir())


@pytest.mark.spark
@pytest.mark.engines
async def test_a_bucket_is_compacted_like_a_folder(spark, s3, ledger):
    s3.make_bucket("compacted")
    url = "s3://compacted/a prefix"
    await copied(ledger, url)
    found = []
    for each in (url, ledger.url):
        assert {} == (await job_on(spark, each).run([3])).failures
        compaction = CompactionJob(each, spark, CompactionSettings(10, 0, widest=1, fanout=2), now_ms=lambda: 10**12)
        for manifest in await compaction.run(3):
            items = [(item.topic_id, item.segment, item.first_offset, item.checksum) for item in manifest.objects]
            found.append((each, manifest.range, items))
    half = len(found) // 2

    assert half == 3
    assert [rest for _, *rest in found[:half]] == [rest for _, *rest in found[half:]]


@pytest.mark.spark
@pytest.mark.engines
async def test_a_bucket_and_a_folder_give_the_same_result_and_an_error_names_its_object(spark, s3, ledger):
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
    assert len(set(read)) == ledger.state.chunk == len(read) - 2, "the last one of both jobs again, for its header"

    ledger.grow(2)
    broken, sound = paths_of(ledger)[-2:]
    await open_store(url).create(broken, b"no chunk")
    await open_store(url).create(sound, (ledger.root / sound).read_bytes())
    outcome = await job_on(spark, url).run([3])

    assert list(outcome.failures) == [3]
    assert outcome.failures[3].startswith(f"Spark could not count: {broken} is damaged: ")
    assert SECRET not in outcome.failures[3]
