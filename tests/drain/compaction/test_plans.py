"""Compaction on real Spark: the same records in other objects, made visible by one manifest."""

import asyncio
import io
import re
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.job import BacklogJob, count_on
from drain.compaction import job as plans
from drain.compaction.job import CompactionJob, CompactionSettings
from drain.compaction.object_writer import RECORD_COLUMNS
from drain.compaction.policy import ORPHAN_MAX_AGE_SECONDS
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import RunError
from headgate.errors import LedgerError
from headgate.ledger.compacted import decode_compacted, delete_compacted_segments, manifest_ranges, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import ChunkRange, chunk_path, ranges_to_read
from headgate.reading.stored_rows import StoredRows
from tests.support.samples.chunks import record_rows
from tests.support.samples.ledgers import RandomLedger, WrittenLedger

pytestmark = pytest.mark.spark
FANOUT = 3
"""Three instead of sixteen: a Spark job costs the same however few chunks it has."""
HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS


class CompactionFixture:
    """A ledger that is counted and compacted."""

    def __init__(self, spark, ledger, **settings):
        self.ledger = ledger
        self.now_ms = NOW_MS
        chunks = LedgerChunks(ledger.url)
        self.job = BacklogJob(chunks, count_on(spark, chunks))
        settings = {"chunks": 4, "delay_seconds": 0, "fanout": FANOUT, **settings}
        self.compaction_job = CompactionJob(
            ledger.url, spark, CompactionSettings(**settings), now_ms=lambda: self.now_ms
        )
        self.store = self.compaction_job.store

    async def run(self):
        """Count, then compact."""
        outcome = await self.job.run([self.ledger.shard])
        assert outcome.failures == {}
        return await self.compaction_job.run(self.ledger.shard)

    async def compacted(self):
        """Return (topic, segment) → records in the compacted objects, and the last compacted chunk."""
        found = defaultdict(list)
        covering = ranges_to_read(await manifest_ranges(self.store, self.ledger.shard))
        for each in covering:
            for item in (await read_manifest(self.store, self.ledger.shard, each)).objects:
                data = await self.store.read(item.path)
                table = pq.read_table(io.BytesIO(data))
                assert table.column_names == list(RECORD_COLUMNS)
                rows = table.to_pylist()
                arrow = StoredRows(decode_compacted(data, item), range(len(rows)), item.segment).arrow()
                names = ["key", "value", "headers", "offset"]
                assert pa.table(arrow).select(names).to_pylist() == table.select(names).to_pylist()
                assert (item.first_offset, item.end_offset) == (rows[0]["offset"], rows[-1]["offset"] + 1)
                assert (item.first_at_ms, item.last_at_ms) == (rows[0]["stored_at_ms"], rows[-1]["stored_at_ms"])
                assert item.size_bytes == sum(map(_size, rows))
                found[item.topic_id, item.segment] += rows
        return dict(found), covering[-1].last if covering else 0


async def raw(ledger, last):
    """Return (topic, segment) → records in chunks 1 to ``last``."""
    found = defaultdict(list)
    chunks = Ledger(LedgerChunks(ledger.url).store, ledger.shard)
    for number in range(1, last + 1):
        header = await chunks.header(number)
        for row in record_rows((await chunks.read_records(number))[1]):
            values = {name: row[name] for name in ("offset", "timestamp_ms", "key", "value")}
            values["headers"] = [dict(zip(("name", "value"), pair, strict=True)) for pair in row["headers"]] or None
            more = {"stored_at_ms": header.at_ms, "size_bytes": _size(values)}
            found[row["topic_id"], row["segment"]].append(values | more)
    return found


def _size(row):
    return (
        len(row["key"])
        + len(row["value"])
        + sum(len(each["name"]) + len(each["value"]) for each in row["headers"] or ())
    )


class Payloads(RandomLedger):
    """Random bytes in keys and values, empty ones too."""

    def store(self, topic_id, segment, count):
        super().store(topic_id, segment, count)
        records = self._builder.records
        for index in range(count):
            records.key[-1 - index] = self.rng.randbytes(self.rng.choice((0, 1, 20)))
            records.value[-1 - index] = self.rng.randbytes(self.rng.choice((0, 3, 300)))


@pytest.mark.parametrize("seed", range(2))
async def test_compacted_records_equal_those_of_the_chunks_in_order(spark, tmp_path, seed):
    ledger = Payloads(tmp_path, seed)
    ledger.grow(21)
    fixture = CompactionFixture(spark, ledger, object_bytes=400)
    written = await fixture.run()
    compacted, last = await fixture.compacted()
    alive = {(topic.topic_id, segment) for topic in ledger.state.topics_by_id.values() for segment in topic.tails}
    expected = {key: rows for key, rows in (await raw(ledger, last)).items() if key in alive}

    assert (len(written), last) == (6, 20), "five of level 0, and one of level 1"
    assert expected == compacted
    assert any(item.first_offset for manifest in written for item in manifest.objects)
    assert await fixture.run() == [], "a second run changes nothing"


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
    compacted, last = await fixture.compacted()

    assert [ChunkRange(1, 3), ChunkRange(4, 4), ChunkRange(5, 5)] == covering
    assert compacted == await raw(ledger, last)


async def test_replaced_ranges_are_deleted_after_the_delay(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    for _ in range(FANOUT):
        ledger.store(topic, 0, 1)
        ledger.commit()
    fixture = CompactionFixture(spark, ledger, chunks=1, delete_after_seconds=3600)
    await fixture.run()
    assert len(await manifest_ranges(fixture.store, 0)) == FANOUT + 1
    before, _ = await fixture.compacted()
    fixture.now_ms += HOUR_MS
    await fixture.compaction_job.published.sweep(0)

    assert await manifest_ranges(fixture.store, 0) == [ChunkRange(1, FANOUT)]
    assert len(await fixture.store.folders("compacted/shard=0000")) == 1
    assert (before, FANOUT) == await fixture.compacted()


async def test_a_full_count_of_compacted_facts_and_newer_chunks_equals_that_of_all_chunks(spark, tmp_path):
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


async def test_records_of_pruned_segments_and_deleted_topics_are_dropped(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    kept, dropped = ledger.topic(2), ledger.topic()
    for topic, segment in ((kept, 0), (kept, 1), (dropped, 0)):
        ledger.store(topic, segment, 2)
    ledger.commit()
    ledger.split(kept, 0)
    ledger.prune(kept, 0)
    ledger.delete_topic(dropped)
    ledger.commit()
    fixture = CompactionFixture(spark, ledger, chunks=2)
    await fixture.run()

    assert {(kept, 1)} == set((await fixture.compacted())[0])


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


async def test_only_counted_chunks_that_are_old_enough_are_compacted(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    for _ in range(8):
        ledger.store(topic, 0, 1)
        ledger.commit()
    fixture = CompactionFixture(spark, ledger, delay_seconds=10)
    assert await fixture.compaction_job.run(0) == [], "nothing is counted"
    fixture.now_ms = 4 * 1000 + 9_999
    assert await fixture.run() == [], "chunk 4 is too young"
    fixture.now_ms += 1
    assert [ChunkRange(1, 4)] == [manifest.range for manifest in await fixture.run()]


async def test_of_two_concurrent_runs_one_succeeds_and_the_other_leaves_nothing(spark, tmp_path):
    ledger = RandomLedger(tmp_path, 1)
    ledger.grow(4)
    first, second = CompactionFixture(spark, ledger), CompactionFixture(spark, ledger)
    await first.job.run([0])
    ours, theirs = await asyncio.gather(first.compaction_job.compact_next(0), second.compaction_job.compact_next(0))

    assert ours == theirs
    assert len(await first.store.folders("compacted/shard=0000")) == 1


@pytest.mark.parametrize("killed_before", ["facts", "manifest"])
async def test_a_killed_run_leaves_nothing_visible_and_is_swept(spark, tmp_path, killed_before, monkeypatch):
    ledger = RandomLedger(tmp_path, 1)
    ledger.grow(4)
    fixture = CompactionFixture(spark, ledger)
    create = fixture.store.create

    async def killed(path, data):
        if killed_before in path or (killed_before == "manifest" and path.startswith("manifests/")):
            raise ConnectionAbortedError
        await create(path, data)

    await fixture.job.run([0])
    with monkeypatch.context() as patch:
        patch.setattr(fixture.store, "create", killed)
        with pytest.raises(ConnectionAbortedError):
            await fixture.compaction_job.run(0)
    assert await manifest_ranges(fixture.store, 0) == []
    await fixture.run()
    assert len(await fixture.store.folders("compacted/shard=0000")) == 2
    fixture.now_ms += int(ORPHAN_MAX_AGE_SECONDS * 1000)
    await fixture.compaction_job.published.sweep(0)
    assert len(await fixture.store.folders("compacted/shard=0000")) == 1
    assert (await fixture.compacted())[1] == 4


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


@pytest.mark.parametrize("kind", ["compacted object", "facts"])
async def test_a_damaged_object_of_a_narrower_range_is_not_merged(spark, tmp_path, kind):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    fixture = CompactionFixture(spark, ledger, chunks=1)
    for number in range(1, FANOUT + 1):
        ledger.store(topic, 0, 1)
        ledger.commit()
        if number < FANOUT:
            await fixture.run()
    manifest = await read_manifest(fixture.store, 0, ChunkRange(2, 2))
    path = manifest.facts if kind == "facts" else manifest.objects[0].path
    (tmp_path / path).write_bytes(flipped((tmp_path / path).read_bytes()))

    with pytest.raises(LedgerError if kind == "facts" else RunError, match=f"{path} is damaged"):
        await fixture.run()
    assert [ChunkRange(n, n) for n in range(1, FANOUT + 1)] == await manifest_ranges(fixture.store, 0)


def test_a_compaction_has_one_shuffle_and_no_python(spark, tmp_path):
    schema = "topic_id long, segment long, offset long, timestamp_ms long, stored_at_ms long, size_bytes long"
    records = spark.createDataFrame(
        [], f"{schema}, key binary, value binary, headers array<struct<name string, value binary>>"
    )
    plan = plans.sort_into_objects(records, tasks=3, object_bytes=100)._jdf.queryExecution().executedPlan().toString()

    assert len(re.findall(r"\bExchange\b", plan)) == 1
    assert "Python" not in plan
