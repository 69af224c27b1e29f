"""Readers that begin in rolled objects and go on in chunks, whatever is deleted under them."""

from __future__ import annotations

import asyncio
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.errors import ChunkError
from headgate.ledger.chunk_ranges import ChunkRange
from headgate.ledger.compacted import CompactedObject, Manifest, create_manifest, manifest_path, read_manifest
from headgate.ledger.ledger import Ledger, chunk_folder, chunk_name
from headgate.protocol import messages as m
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.segment_reader import ChunkCache, Head, SegmentReader
from tests.support.scripted_leader import TOPIC_ID, ScriptedCluster
from tests.support.waiting import until

pytestmark = pytest.mark.looptime
RECORDS_A_CHUNK = 3


class Shelf:
    """Chunks of one segment, rolled up and deleted by hand, and a reader."""

    def __init__(self, chunks: int) -> None:
        self.cluster = ScriptedCluster()
        self.store = self.cluster.store
        self.head = Head()
        for _ in range(chunks):
            self.grow()
        self.cache = ChunkCache(Ledger(self.store, 0), TOPIC_ID)
        self.compacted = CompactedRecords(self.store, 0, TOPIC_ID)
        self.delivered: list[tuple[int, bytes]] = []
        self.room = asyncio.Semaphore(10_000)

    @property
    def records(self) -> int:
        return self.head.number * RECORDS_A_CHUNK

    def grow(self) -> None:
        first = self.records
        records = [m.Record(b"key", b"%d" % n, n) for n in range(first, first + RECORDS_A_CHUNK)]
        self.cluster.store_records(records)
        self.head.advance(self.head.number + 1)

    async def roll(self, first: int, last: int, *, objects: int = 2, run: str = "a") -> Manifest:
        """Roll up chunks as drain.compaction.job does, into so many objects."""
        begin, end = (first - 1) * RECORDS_A_CHUNK, last * RECORDS_A_CHUNK
        named = []
        for n in range(objects):
            low, high = (begin + (end - begin) * i // objects for i in (n, n + 1))
            offsets = list(range(low, high))
            table = pa.table(
                {
                    "offset": offsets,
                    "timestamp_ms": offsets,
                    "stored_at_ms": offsets,
                    "size_bytes": offsets,
                    "key": [b"key"] * len(offsets),
                    "value": [b"%d" % offset for offset in offsets],
                }
            )
            sink = io.BytesIO()
            pq.write_table(table, sink)
            path = f"compacted/shard=0000/{first}-{last}-{run}/topic_id={TOPIC_ID}/segment=0/part={n}/x.parquet"
            self.store.objects[path] = sink.getvalue()
            named.append(
                CompactedObject(
                    path=path,
                    topic_id=TOPIC_ID,
                    segment=0,
                    first_offset=low,
                    end_offset=high,
                    size_bytes=1,
                    first_at_ms=0,
                    last_at_ms=0,
                )
            )
        manifest = Manifest(
            shard=0, first=first, last=last, level=0, written_at_ms=0, last_at_ms=0, facts="none", objects=named
        )
        await create_manifest(self.store, manifest)
        return manifest

    def delete_chunks(self, *numbers: int) -> None:
        for number in numbers:
            del self.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"]

    async def unroll(self, first: int, last: int) -> None:
        """Delete what a wider range has replaced."""
        manifest = await read_manifest(self.store, 0, ChunkRange(first, last))
        del self.store.objects[manifest_path(0, manifest.range)]
        for item in manifest.objects:
            del self.store.objects[item.path]

    def reader(self, start: int = 0, start_chunk: int = 1) -> SegmentReader:
        async def deliver(offset: int, _: int, __: bytes, value: bytes) -> None:
            await self.room.acquire()
            self.delivered.append((offset, value))

        grant = m.Grant(
            segment=0, generation=1, first_hash=0, last_hash=65535, start_offset=start, start_chunk=start_chunk
        )
        return SegmentReader(grant, cache=self.cache, compacted=self.compacted, head=self.head, deliver=deliver)

    async def read_all(self, reader: SegmentReader, start: int = 0, seconds: float = 60) -> None:
        """Let ``reader`` read to the head, and see that nothing is missing or comes twice."""
        running = asyncio.create_task(reader.run())
        try:
            await until(lambda: running.done() or len(self.delivered) >= self.records - start, seconds)
        finally:
            running.cancel()
            outcome = (await asyncio.gather(running, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        assert self.delivered == [(n, b"%d" % n) for n in range(start, self.records)]


async def test_a_reader_begins_in_rolled_objects_and_goes_on_in_chunks() -> None:
    shelf = Shelf(10)
    await shelf.roll(1, 4)
    await shelf.roll(5, 8)
    shelf.delete_chunks(*range(1, 8))
    await shelf.read_all(shelf.reader())

    assert shelf.cache.loads == 2, "chunks 9 and 10"
    assert shelf.compacted.opened == 2 + 4


@pytest.mark.parametrize("start", [0, 5, 6, 11, 12, 23, 24, 29])
async def test_a_reader_begins_anywhere(start: int) -> None:
    shelf = Shelf(10)
    await shelf.roll(1, 4)
    await shelf.roll(5, 8)
    await shelf.read_all(shelf.reader(start, start // RECORDS_A_CHUNK + 1), start)


async def test_a_reader_at_the_tail_opens_no_manifest() -> None:
    shelf = Shelf(10)
    await shelf.roll(1, 8)
    await shelf.read_all(shelf.reader(24, 9), 24)

    assert shelf.compacted.opened == 0


async def test_a_slow_reader_whose_chunks_vanish_sees_neither_gap_nor_error() -> None:
    shelf = Shelf(10)
    shelf.room = asyncio.Semaphore(4)
    running = asyncio.create_task(shelf.reader().run())
    await until(lambda: len(shelf.delivered) == 4)
    await shelf.roll(1, 9)
    shelf.delete_chunks(*range(1, 9))
    shelf.cache._chunks.clear()
    for _ in range(100):
        shelf.room.release()
    await until(lambda: len(shelf.delivered) == 30, 30)
    running.cancel()

    assert shelf.delivered == [(n, b"%d" % n) for n in range(30)]


async def test_a_reader_that_does_not_know_the_head_looks_for_itself() -> None:
    """Announcements may be lost."""
    shelf = Shelf(6)
    await shelf.roll(1, 3)
    reader = shelf.reader()
    shelf.compacted._listed_at, shelf.compacted._covering = 0.0, []
    shelf.delete_chunks(1, 2, 3)
    records, shelf.head = shelf.records, Head()
    reader._head = shelf.head
    running = asyncio.create_task(reader.run())
    await until(lambda: len(shelf.delivered) == records, 120)
    running.cancel()

    assert [offset for offset, _ in shelf.delivered] == list(range(records))


async def test_a_reader_in_the_middle_of_a_range_goes_on_in_the_wider_one_that_replaced_it() -> None:
    shelf = Shelf(9)
    shelf.room = asyncio.Semaphore(4)
    await shelf.roll(1, 4, objects=4)
    await shelf.roll(5, 8, objects=4)
    shelf.delete_chunks(*range(1, 8))
    running = asyncio.create_task(shelf.reader().run())
    await until(lambda: len(shelf.delivered) == 4)
    await shelf.roll(1, 8, objects=3, run="b")
    await shelf.unroll(1, 4)
    await shelf.unroll(5, 8)
    for _ in range(100):
        shelf.room.release()
    await until(lambda: len(shelf.delivered) == 27, 30)
    running.cancel()

    assert shelf.delivered == [(n, b"%d" % n) for n in range(27)]


async def test_a_store_that_is_away_is_waited_for() -> None:
    shelf = Shelf(5)
    await shelf.roll(1, 4)
    shelf.delete_chunks(1, 2, 3)
    shelf.store.fail_next("unavailable", "names", 2)
    shelf.store.fail_next("unavailable", "read", 3)
    await shelf.read_all(shelf.reader())


async def test_a_segment_without_records_there_goes_on_behind_what_is_rolled_up() -> None:
    shelf = Shelf(4)
    await create_manifest(
        shelf.store,
        Manifest(shard=0, first=1, last=4, level=0, written_at_ms=0, last_at_ms=0, facts="none", objects=[]),
    )
    reader = shelf.reader(12, 1)
    shelf.grow()
    await shelf.read_all(reader, 12)


async def test_records_that_no_range_holds_are_an_error_and_not_a_gap() -> None:
    shelf = Shelf(6)
    await shelf.roll(1, 3, objects=3)
    manifest = await read_manifest(shelf.store, 0, ChunkRange(1, 3))
    shelf.store.objects.pop(manifest_path(0, manifest.range))
    del manifest.objects[1]
    await create_manifest(shelf.store, manifest)

    with pytest.raises(ChunkError, match="goes on at offset 6, expected 3; records are missing"):
        await shelf.read_all(shelf.reader())


@pytest.mark.parametrize("broken", [b"", b"PAR1"])
async def test_an_object_that_is_damaged_ends_the_reading_with_its_name(broken: bytes) -> None:
    shelf = Shelf(4)
    manifest = await shelf.roll(1, 4)
    shelf.store.objects[manifest.objects[1].path] = broken

    with pytest.raises(ChunkError, match=r"part=1/x\.parquet is not a readable rolled object"):
        await shelf.read_all(shelf.reader())


async def test_an_object_that_holds_less_than_its_manifest_says_is_refused() -> None:
    shelf = Shelf(4)
    manifest = await shelf.roll(1, 4)
    shelf.store.objects[manifest.objects[0].path] = shelf.store.objects[(await shelf.roll(1, 3)).objects[0].path]

    with pytest.raises(ChunkError, match="holds 4 records, its manifest says 6"):
        await shelf.read_all(shelf.reader())
