"""The backlog job on real Spark: which chunks it reads, what it publishes, and what it rejects."""

import asyncio
import json
import re
import shutil
from unittest.mock import AsyncMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain import command_line
from drain.backlog import job as job_module
from drain.backlog.counting import Counted
from drain.backlog.job import BacklogJob, count_on, main
from drain.backlog.merge import outstanding
from drain.backlog.results import STATE, Result, encode_result, result_folder, result_path
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import JvmGoneError, RunError
from headgate.errors import HeadgateError, StoreUnavailableError
from tests.support.samples.ledgers import WrittenLedger
from tests.support.samples.object_formats import corrupt, sealed, truncate

pytestmark = [pytest.mark.spark, pytest.mark.engines]


class Counter:
    """Counts on real Spark, and records the chunks of each call."""

    def __init__(self, spark, chunks):
        self.chunks = chunks
        self._count = count_on(spark, chunks)
        self.read: list[list[int]] = []

    async def __call__(self, due):
        self.read.append([number for numbers in due.values() for number in numbers])
        return await self._count(due)


@pytest.fixture
def ledger(tmp_path):
    """One topic with one segment, a subscription, and three records, in two chunks."""
    written = WrittenLedger(tmp_path / "one folder")
    topic = written.topic()
    written.subscribe(topic, "STREAM")
    written.commit()
    written.store(topic, 0, 3)
    written.commit()
    return written


def job_of(spark, ledger, **settings):
    chunks = LedgerChunks(ledger.url)
    counter = Counter(spark, chunks)
    return BacklogJob(chunks, counter, **settings), counter


def left(outcome, shard=0):
    return [row.records for row in outstanding(outcome.results[shard].rows)]


def published(ledger, shard=0):
    folder = ledger.root / result_folder(shard)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_a_run_reads_exactly_the_new_chunks(spark, ledger):
    job, counter = job_of(spark, ledger)
    first = await job.run([0])
    nothing_new = await job.run([0])
    ledger.acknowledge(1, 2, (0, 0, 2))
    ledger.commit()
    second = await job.run([0])

    assert counter.read == [[1, 2], [3]]
    assert (left(first), left(nothing_new), left(second)) == ([3], [3], [1])
    assert published(ledger) == ["000000000002.parquet", "000000000003.parquet"]


async def test_another_process_continues_from_the_published_result(spark, ledger):
    await job_of(spark, ledger)[0].run([0])
    ledger.store(1, 0, 4)
    ledger.commit()
    job, counter = job_of(spark, ledger)

    assert left(await job.run([0])) == [7]
    assert counter.read == [[3]]


async def test_a_long_ledger_is_counted_in_several_jobs(spark, ledger):
    for _ in range(3):
        ledger.store(1, 0, 1)
        ledger.commit()
    job, counter = job_of(spark, ledger, max_chunks_per_job=2)

    assert left(await job.run([0])) == [6]
    assert [len(paths) for paths in counter.read] == [2, 2, 1]


async def test_of_two_concurrent_runs_one_publishes_and_both_agree(spark, ledger):
    (first, _), (second, _) = job_of(spark, ledger), job_of(spark, ledger)
    outcomes = await asyncio.gather(first.run([0]), second.run([0]))

    assert outcomes[0].results == outcomes[1].results
    assert published(ledger) == ["000000000002.parquet"]


async def test_a_run_that_is_killed_before_publishing_leaves_nothing(spark, ledger, monkeypatch):
    await job_of(spark, ledger)[0].run([0])
    ledger.store(1, 0, 1)
    ledger.commit()

    with monkeypatch.context() as patched:
        patched.setattr(job_module, "publish_result", AsyncMock(side_effect=asyncio.CancelledError))
        with pytest.raises(asyncio.CancelledError):
            await job_of(spark, ledger)[0].run([0])
    assert published(ledger) == ["000000000002.parquet"]

    assert left(await job_of(spark, ledger)[0].run([0])) == [4]


def foreign(ledger):
    pq.write_table(pa.Table.from_pylist([], schema=pa.schema([("fact", pa.string())])), ledger.path(3))


def missing(ledger):
    ledger.path(3).rename(ledger.path(4))


def shorter_than_the_result(ledger):
    for number in (2, 3):
        ledger.path(number).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda ledger: truncate(ledger.path(3)), "000000000003.parquet is damaged: .* no checksum"),
        (lambda ledger: ledger.path(3).write_bytes(b"no chunk"), "000000000003.parquet is damaged: .* no checksum"),
        (foreign, "000000000003.parquet .* headgate did not write"),
        (
            lambda ledger: shutil.copy(ledger.path(2), ledger.path(3)),
            "000000000003.parquet states that it is chunk 2 of shard 0",
        ),
        (missing, "000000000003.parquet is missing, and 000000000004.parquet exists: a gap"),
        (shorter_than_the_result, "000000000002.parquet is counted but missing"),
        (lambda ledger: corrupt(ledger.path(3)), "000000000003.parquet is damaged: .* checksum"),
    ],
    ids=["truncated", "not Parquet", "foreign", "another chunk", "missing", "shorter than the result", "corrupted"],
)
async def test_a_damaged_ledger_fails_its_shard_only_and_names_the_object(spark, ledger, damage, reason):
    other = WrittenLedger(ledger.root, shard=1)
    job, _ = job_of(spark, ledger)
    await job.run([0])
    ledger.store(1, 0, 1)
    ledger.commit()
    other.commit()
    damage(ledger)

    outcome = await job.run([0, 1])

    assert list(outcome.failures) == [0]
    assert re.search(reason, outcome.failures[0])
    assert outcome.results[1].watermark == 1
    assert published(ledger) == ["000000000002.parquet"]


def with_metadata(metadata):
    return sealed(pa.Table.from_pylist([], schema=STATE.with_metadata(metadata)))


async def test_objects_with_other_names_are_skipped(spark, ledger):
    job, _ = job_of(spark, ledger)
    await job.run([0])
    for folder in (ledger.path(1).parent, ledger.root / result_folder(0)):
        for name in ("000000000003.parquet.tmp", "README.txt"):
            (folder / name).write_bytes(b"")
    ledger.store(1, 0, 1)
    ledger.commit()

    for each in (job, job_of(spark, ledger)[0]):
        outcome = await each.run([0])
        assert ({}, 3) == (outcome.failures, outcome.results[0].watermark)
    assert (ledger.root / result_folder(0) / "README.txt").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"rubbish", "backlog/shard=0000/000000000002.parquet is not a readable Parquet object"),
        (encode_result(Result(0, 7, ())), "000000000002.parquet says that it is result 7 of shard 0"),
        (
            with_metadata({"headgate-backlog": '{"format":9,"shard":0,"watermark":2}'}),
            "2.parquet has format 9, this version of headgate reads format 5; run the newer version",
        ),
        (with_metadata({}), "000000000002.parquet is a Parquet object that headgate did not write; if the chunks"),
    ],
)
async def test_an_invalid_result_is_rejected(spark, ledger, data, reason):
    path = ledger.root / result_path(0, 2)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)

    outcome = await job_of(spark, ledger)[0].run([0])

    assert reason in outcome.failures[0]


async def test_a_dead_jvm_is_not_reported_as_an_error_of_a_shard(ledger):
    with pytest.raises(JvmGoneError):
        await BacklogJob(LedgerChunks(ledger.url), AsyncMock(side_effect=JvmGoneError("gone"))).run([0])


async def test_each_half_of_a_failed_job_is_retried(ledger):
    calls = []

    async def count(due):
        calls.append(list(due))
        if 1 in due:
            raise RunError("no")
        return {shard: Counted((), 1) for shard in due}

    for shard in range(1, 4):
        WrittenLedger(ledger.root, shard=shard).commit()
    outcome = await BacklogJob(LedgerChunks(ledger.url), count).run(range(4))

    assert calls == [[0, 1, 2, 3], [0, 1], [0], [1], [2, 3]]
    assert outcome.failures == {1: "no"}


async def test_an_unreachable_store_fails_the_shard(ledger, monkeypatch):
    chunks = LedgerChunks(ledger.url)
    monkeypatch.setattr(chunks.store, "names", AsyncMock(side_effect=StoreUnavailableError("cannot list")))
    count = AsyncMock(side_effect=HeadgateError("not reached"))

    assert (await BacklogJob(chunks, count).run([0])).failures == {0: "cannot list"}


@pytest.fixture
def main_on(spark, monkeypatch):
    """`main` with the session of these tests, which it does not stop."""
    monkeypatch.setattr(command_line, "build_session", lambda **_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return main


def test_the_command_prints_the_outstanding_records(main_on, ledger, capsys):
    assert main_on(["--ledger", ledger.url, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert {"shard": 0, "watermark": 2, "records": 3, "drained": False}.items() <= row.items()

    assert main_on(["--ledger", ledger.url]) == 0
    assert capsys.readouterr().out == "shard 0: counted to chunk 2; 3 records outstanding in 1 backlogs\n"
