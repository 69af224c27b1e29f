"""Compaction on real Spark: the same records in other objects, made visible by one manifest."""

import pytest

from drain.backlog.job import BacklogJob, count_on
from drain.compaction.job import CompactionJob, CompactionSettings
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import RunError
from headgate.ledger.compacted import delete_compacted_segments, manifest_ranges, read_manifest
from headgate.ledger.objects import ChunkRange, chunk_path, ranges_to_read
from tests.support.samples.ledgers import RandomLedger, WrittenLedger

pytestmark = pytest.mark.spark
FANOUT = 3
"""Three instead of sixteen: a Spark job costs the same however few chunks it has."""
NOW_MS = 360_000_000


class CompactionFixture:
    """A ledger that is counted and compacted."""

    def __init__(self, spark, ledger, **settings):
        self.ledger = ledger
        self.now_ms = NOW_MS
        chunks = LedgerChunks(ledger.url)
        self.job = BacklogJob(chunks, count_on(spark, chunks))
        settings = {"chunks": 4, "delay_seconds": 0, "widest": 1, "fanout": FANOUT, **settings}
        self.compaction_job = CompactionJob(
            ledger.url, spark, CompactionSettings(**settings), now_ms=lambda: self.now_ms
        )
        self.store = self.compaction_job.store

    async def run(self):
        """Count, then compact."""
        outcome = await self.job.run([self.ledger.shard])
        assert outcome.failures == {}
        return await self.compaction_job.run(self.ledger.shard)


async def test_ranges_are_merged_level_by_level(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    ledger.commit()
    for _ in range(FANOUT + 1):
        ledger.store(topic, 0, 2)
        ledger.commit()
    fixture = CompactionFixture(spark, ledger, chunks=1)
    await fixture.run()
    covering = ranges_to_read(await manifest_ranges(fixture.store, 0))
    objects = [item for each in covering for item in (await read_manifest(fixture.store, 0, each)).objects]
    assert [ChunkRange(1, 3), ChunkRange(4, 4), ChunkRange(5, 5)] == covering
    assert [(0, 4), (4, 6), (6, 8)] == [(item.first_offset, item.end_offset) for item in objects]


async def test_a_full_count_of_compacted_facts_and_newer_chunks_equals_that_of_all_chunks(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("drain.compaction.job.TASK_BYTES", 1)  # a task for each chunk
    ledger = RandomLedger(tmp_path, 5)
    ledger.grow(50)
    fixture = CompactionFixture(spark, ledger, chunks=3)
    counted = (await fixture.job.run([0], full=True)).results
    await fixture.run()
    last = ranges_to_read(await manifest_ranges(fixture.store, 0))[-1].last
    for number in range(1, last):
        ledger.path(number).unlink()
    for path in (tmp_path / "backlog" / "shard=0000").iterdir():
        path.unlink()
    assert last == 51
    assert counted == (await fixture.job.run([0], full=True)).results
    published = await fixture.job.run([0])
    assert (counted, {}) == (published.results, published.failures), "even without a previous result"


async def test_ranges_are_merged_after_the_data_of_a_pruned_segment_was_deleted(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic(2)
    for _ in range(FANOUT - 1):
        ledger.store(topic, 0, 1)
        ledger.store(topic, 1, 1)
        ledger.commit()
    fixture = CompactionFixture(spark, ledger, chunks=1)
    await fixture.run()
    ledger.split(topic, 0)
    ledger.prune(topic, 0)
    ledger.commit()
    assert FANOUT - 1 == await delete_compacted_segments(fixture.store, 0, topic, {0})
    (*_, widest) = await fixture.run()
    assert (1, {1}) == (widest.level, {item.segment for item in widest.objects})


def flipped(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


async def test_a_damaged_or_missing_chunk_fails_the_run(spark, tmp_path):
    ledger = RandomLedger(tmp_path, 1)
    ledger.grow(8)
    fixture = CompactionFixture(spark, ledger)
    await fixture.job.run([0])
    data = ledger.path(2).read_bytes()
    for broken, reason in (
        (ledger.path(3).read_bytes(), "states that it is chunk 3"),
        (flipped(data), f"{chunk_path(0, 2)} is damaged"),
        (None, f"{chunk_path(0, 2)}: .*No such file"),
    ):
        ledger.path(2).unlink()
        if broken is not None:
            ledger.path(2).write_bytes(broken)
        with pytest.raises(RunError, match=reason):
            await fixture.compaction_job.run(0)
        ledger.path(2).write_bytes(data)
    assert await manifest_ranges(fixture.store, 0) == []


async def test_a_damaged_object_of_a_narrower_range_is_not_merged(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    fixture = CompactionFixture(spark, ledger, chunks=1)
    for number in range(1, FANOUT + 1):
        ledger.store(topic, 0, 1)
        ledger.commit()
        if number < FANOUT:
            await fixture.run()
    manifest = await read_manifest(fixture.store, 0, ChunkRange(2, 2))
    path = manifest.objects[0].path
    (tmp_path / path).write_bytes(flipped((tmp_path / path).read_bytes()))
    with pytest.raises(RunError, match=f"{path} is damaged"):
        await fixture.run()
    assert [ChunkRange(n, n) for n in range(1, FANOUT + 1)] == await manifest_ranges(fixture.store, 0)
