"""Readers begin in compacted objects and continue in chunks, while chunks and ranges are deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.errors import LedgerError
from headgate.ledger.compacted import Manifest, create_manifest, decode_compacted, manifest_path, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import ChunkRange, chunk_folder, chunk_name
from headgate.log.event_log import LogEvent
from headgate.model.layout import KEY_BUCKETS, key_bucket
from headgate.protocol.replies import BucketStart, Grant, Redelivery
from headgate.protocol.requests import Record
from headgate.reading.segment_reader import LOCATE_SECONDS, CompactedRecords, OnSkipped, SegmentReader
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import POLL_SECONDS, ChunkCache, Head
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster
from tests.support.waiting import until
from trials.compaction import compact

RECORDS_A_CHUNK = 3


class CompactedLedger:
    """Chunks of one segment, which a test compacts and deletes, and a reader."""

    def __init__(self, chunks: int) -> None:
        self.cluster = ScriptedCluster()
        self.store = self.cluster.store
        self.deleted: dict[str, bytes] = {}
        self.head = Head()
        for _ in range(chunks):
            self.grow()
        self.ledger = Ledger(self.store, 0)
        self.cache = ChunkCache(self.ledger, TOPIC_ID)
        self.compacted = CompactedRecords(self.store, 0, TOPIC_ID)
        self.delivered: list[tuple[int, bytes]] = []
        self.capacity = asyncio.Semaphore(10_000)

    @property
    def records(self) -> int:
        return self.head.number * RECORDS_A_CHUNK

    def grow(self) -> None:
        first = self.records
        records = [Record(b"key", b"%d" % n, n) for n in range(first, first + RECORDS_A_CHUNK)]
        self.cluster.store_records(records)
        self.head.advance(self.head.number + 1)

    async def compact(self, first: int, last: int, *, parts: int = 2, run: str = "a") -> Manifest:
        """Compact chunks, including deleted ones."""
        copy = FakeStore(objects=self.store.objects | self.deleted)
        manifest = await compact(Ledger(copy, 0), first, last, parts=parts, run=run)
        self.store.objects.update({path: copy.objects[path] for path in copy.objects.keys() - self.deleted.keys()})
        return manifest

    def delete_chunks(self, *numbers: int) -> None:
        for number in numbers:
            path = f"{chunk_folder(0)}/{chunk_name(number)}"
            self.deleted[path] = self.store.objects.pop(path)

    async def delete_range(self, first: int, last: int) -> None:
        """Delete a range that a wider one replaced."""
        manifest = await read_manifest(self.store, 0, ChunkRange(first, last))
        del self.store.objects[manifest_path(0, manifest.range)]
        for item in manifest.objects:
            del self.store.objects[item.path]

    def reader(
        self, start: int = 0, start_chunk: int = 1, *, start_offset: int | None = None, segment: int = 0
    ) -> SegmentReader:
        async def deliver(rows: Rows) -> None:
            for offset, value in zip(rows.offsets, rows.values, strict=True):
                await self.capacity.acquire()
                self.delivered.append((offset, value))

        grant = Grant(
            segment=segment, generation=1, first_hash=0, last_hash=65535, start_offset=start, start_chunk=start_chunk
        )
        return SegmentReader(
            grant,
            cache=self.cache,
            compacted=self.compacted,
            head=self.head,
            deliver=deliver,
            start_offset=start_offset,
        )

    @asynccontextmanager
    async def interrupted_reader(self) -> AsyncIterator[None]:
        """A reader waits after four records while the test changes the ledger, then reads to the head."""
        self.capacity = asyncio.Semaphore(4)
        running = asyncio.create_task(self.reader().run())
        await until(lambda: len(self.delivered) == 4)
        yield
        for _ in range(100):
            self.capacity.release()
        await until(lambda: len(self.delivered) == self.records, 30)
        running.cancel()
        assert self.delivered == [(n, b"%d" % n) for n in range(self.records)]

    async def read_all(self, reader: SegmentReader, start: int = 0, seconds: float = 60) -> None:
        """Let ``reader`` read to the head; no record may be missing or repeated."""
        running = asyncio.create_task(reader.run())
        try:
            await until(lambda: running.done() or len(self.delivered) >= self.records - start, seconds)
        finally:
            running.cancel()
            outcome = (await asyncio.gather(running, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        assert self.delivered == [(n, b"%d" % n) for n in range(start, self.records)]


async def test_a_reader_begins_in_compacted_objects_and_continues_in_chunks() -> None:
    ledger = CompactedLedger(10)
    await ledger.compact(1, 4)
    await ledger.compact(5, 8)
    ledger.delete_chunks(*range(1, 8))
    with patch.object(ledger.store, "read", wraps=ledger.store.read) as read:
        await ledger.read_all(ledger.reader())

    assert ledger.cache.loads == 2, "chunks 9 and 10"
    paths = [each.args[0] for each in read.await_args_list if each.args[0].startswith(("manifests/", "compacted/"))]
    assert 2 + 4 == len(paths) == len({*paths}), "two manifests and their objects"


async def test_a_reader_loads_no_chunk_from_before_its_grant() -> None:
    ledger = CompactedLedger(10)
    start = 7 * RECORDS_A_CHUNK
    await ledger.read_all(ledger.reader(start, 8), start)

    assert ledger.cache.loads == 3


async def test_a_reader_continues_at_once_after_the_last_announced_chunk_was_compacted_and_deleted(caplog) -> None:
    ledger = CompactedLedger(3)
    async with ledger.interrupted_reader():
        await ledger.compact(1, 3)
        ledger.delete_chunks(1, 2, 3)
        ledger.cache._chunks.clear()
        began = asyncio.get_running_loop().time()

    assert asyncio.get_running_loop().time() - began < POLL_SECONDS
    assert ledger.head.number == 3
    assert [] == [each.msg for each in caplog.records if isinstance(each.msg, LogEvent)]


async def test_a_reader_continues_in_the_wider_range_that_replaced_its_range() -> None:
    ledger = CompactedLedger(9)
    await ledger.compact(1, 4, parts=4)
    await ledger.compact(5, 8, parts=4)
    ledger.delete_chunks(*range(1, 8))
    async with ledger.interrupted_reader():
        await ledger.compact(1, 8, parts=3, run="b")
        await ledger.delete_range(1, 4)
        await ledger.delete_range(5, 8)


async def test_a_manifest_that_was_withdrawn_and_published_again_is_read_again() -> None:
    ledger = CompactedLedger(3)
    await ledger.compact(1, 3, parts=3)
    async with ledger.interrupted_reader():
        await ledger.delete_range(1, 3)
        await ledger.compact(1, 3, parts=3, run="b")


async def test_missing_compacted_records_are_an_error() -> None:
    ledger = CompactedLedger(6)
    await ledger.compact(1, 3, parts=3)
    manifest = await read_manifest(ledger.store, 0, ChunkRange(1, 3))
    ledger.store.objects.pop(manifest_path(0, manifest.range))
    del manifest.objects[1]
    await create_manifest(ledger.store, manifest)

    with pytest.raises(LedgerError, match="continues at offset 6, expected 3; records are missing"):
        await ledger.read_all(ledger.reader())


async def test_an_object_with_fewer_records_than_its_manifest_states_is_rejected() -> None:
    ledger = CompactedLedger(4)
    manifest = await ledger.compact(1, 4)
    first, second = manifest.objects
    wider = msgspec.structs.replace(first, end_offset=second.end_offset)
    data = ledger.store.objects[first.path]

    with pytest.raises(LedgerError, match=rf"{first.path} has {first.end_offset} records, its manifest states"):
        decode_compacted(data, wider)


async def test_readers_at_the_tail_share_chunks_and_listings_and_have_read_what_has_none_of_their_records() -> None:
    ledger = CompactedLedger(1)
    own, *others = [ledger.reader(segment=number) for number in range(20)]
    running = [asyncio.create_task(each.run()) for each in (own, *others)]
    await until(lambda: len(ledger.delivered) == RECORDS_A_CHUNK)
    await asyncio.sleep(5)
    ledger.grow()
    while len(ledger.delivered) < ledger.records:
        assert not own.has_read(2)
        await asyncio.sleep(0)
    assert all(each.has_read(2) for each in others)
    listings = ledger.store.calls["names"]
    await asyncio.sleep(100)
    assert 4 >= ledger.store.calls["names"] - listings
    for task in running:
        task.cancel()


async def test_a_chunk_counts_as_missing_from_the_last_time_that_one_could_be_read() -> None:
    """The chunks between two outages have no records of the reader."""
    ledger = CompactedLedger(1)
    running = asyncio.create_task(ledger.reader(segment=1).run())
    for number in (2, 3):
        ledger.head.history.add(number, 0)
        ledger.head.advance(number)
        await asyncio.sleep(5)
        assert not running.done()
        ledger.head.retract(number - 1)
        ledger.grow()
        await asyncio.sleep(100)
    running.cancel()


async def test_a_forged_head_ends_no_reader_however_often_it_is_announced() -> None:
    ledger = CompactedLedger(1)
    running = asyncio.create_task(ledger.reader().run())
    for _ in range(10):
        ledger.head.advance(9)
        await asyncio.sleep(10)
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize("outage", [True, False])
async def test_a_chunk_is_missing_since_it_is_and_not_since_something_else_could_not_be_read(outage: bool) -> None:
    ledger, lost = CompactedLedger(10), dict[str, bytes]()
    if not outage:
        item = (await ledger.compact(1, 8)).objects[0]
        ledger.delete_chunks(*range(1, 9))
        lost = {item.path: ledger.store.objects.pop(item.path)}
    ledger.store.outage(outage)
    ledger.head.history.add(10, 0)
    ledger.capacity = asyncio.Semaphore(4)
    running = asyncio.create_task(ledger.reader().run())
    await asyncio.sleep(3)
    ledger.store.objects |= lost
    await asyncio.sleep(100)
    ledger.delete_chunks(1 if outage else 9)
    ledger.store.outage(False)
    for _ in range(100):
        ledger.capacity.release()
    await asyncio.sleep(20)
    ledger.store.objects |= dict([ledger.deleted.popitem()])
    await until(lambda: running.done() or len(ledger.delivered) == ledger.records, 30)
    assert not running.done()
    running.cancel()


async def test_a_listing_that_hangs_delays_new_chunks_by_seconds_and_those_that_are_gone_until_it_answers(caplog):
    ledger = CompactedLedger(4)
    ledger.store.listings.clear()
    await ledger.read_all(ledger.reader(), seconds=LOCATE_SECONDS + 1)

    await ledger.compact(1, 4)
    ledger.delete_chunks(*range(1, 5))
    ledger.delivered, ledger.cache = [], ChunkCache(ledger.ledger, TOPIC_ID)
    asyncio.get_running_loop().call_later(60, ledger.store.listings.set)
    await ledger.read_all(ledger.reader(), seconds=90)
    reasons = [each.msg.fields["reason"] for each in caplog.records if isinstance(each.msg, LogEvent)]
    assert ["no list of compacted objects within 30 s"] == reasons


# Which records of a segment a reader delivers: by grant, acknowledged range and key bucket.


RECORDS = 40
KEYS = [b"key-%d" % number for number in range(RECORDS)]
HALF = KEY_BUCKETS // 2


async def delivered(
    *,
    skip_acknowledged: bool = False,
    announced: int = 1,
    store: FakeStore | None = None,
    on_skipped: OnSkipped | None = None,
    **grant: object,
) -> list[int]:
    """Return the offsets of segment 0 that are delivered; each record of it is between those of others."""
    ledger, builder = Ledger(store or FakeStore(latency_seconds=(0, 0)), 0), ChunkBuilder()
    for offset, key in enumerate(KEYS):
        for topic_id, segment in ((1, 1), (1, 0), (2, 0)):
            columns = builder.records
            for name, value in zip(
                ("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers"),
                (topic_id, segment, offset, 7, key, b"%d.%d.%d" % (topic_id, segment, offset), ()),
                strict=True,
            ):
                getattr(columns, name).append(value)
    await ledger.append(1, builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1))
    found: list[int] = []

    async def deliver(rows: Rows) -> None:
        for offset, *row in zip(*rows, strict=True):
            assert [7, KEYS[offset], b"1.0.%d" % offset, ()] == row
            found.append(offset)

    fields = {"segment": 0, "generation": 1, "first_hash": 0, "last_hash": 65535, "start_offset": 0, "start_chunk": 1}
    head = Head()
    head.advance(announced)
    await SegmentReader(
        Grant(**(fields | {"end_offset": RECORDS} | grant)),
        cache=ChunkCache(ledger, 1),
        compacted=CompactedRecords(ledger.store, 0, 1),
        head=head,
        deliver=deliver,
        skip_acknowledged=skip_acknowledged,
        on_skipped=on_skipped,
    ).run()
    return found


@pytest.mark.parametrize("skip", [True, False], ids=["queue", "stream"])
async def test_acknowledged_ranges_are_skipped_where_the_subscription_says_so(skip: bool) -> None:
    skipped = {2, 3, 10} if skip else set()

    found = await delivered(skip_acknowledged=skip, acknowledged=[(2, 4), (10, 11)])
    assert [offset for offset in range(RECORDS) if offset not in skipped] == found


async def test_a_chunk_that_was_not_announced_is_made_durable_before_its_records_are_delivered() -> None:
    """It can be read before its leader has made it durable, and a power failure would remove it."""
    store = FakeStore(latency_seconds=(0, 0))
    store.fail_next("unavailable", "make_durable", times=3)

    assert list(range(RECORDS)) == await delivered(store=store, announced=0)
    assert 4 == store.calls["make_durable"]


async def test_each_run_of_records_in_other_buckets_is_reported_once_and_then_the_end_after_each_chunk() -> None:
    reported: list[tuple[int, int]] = []
    own = await delivered(first_bucket=0, end_bucket=HALF, on_skipped=lambda *offsets: reported.append(offsets))
    assert own == [offset for offset, key in enumerate(KEYS) if key_bucket(key, KEY_BUCKETS) < HALF]

    runs = [part for part in reported if part[0] < part[1]]
    assert sorted({*range(RECORDS)} - {*own}) == [offset for run in runs for offset in range(*run)]
    assert all(before[1] < after[0] for before, after in pairwise(runs)), "a record of this consumer is between them"
    assert [(RECORDS, RECORDS)] * 2 == [part for part in reported if part[0] == part[1]], "the chunk, and the end"


async def test_a_whole_segment_reports_what_only_one_of_its_buckets_has_acknowledged() -> None:
    """The offset belongs to no other bucket, and nothing else would acknowledge it there. What has failed stays."""
    bucket, reported = key_bucket(KEYS[3], KEY_BUCKETS), list[tuple[int, int]]()
    failed = next(n for n, key in enumerate(KEYS) if key_bucket(key, KEY_BUCKETS) != bucket)
    found = await delivered(
        starts=[BucketStart(bucket, bucket + 1, RECORDS)],
        failed=[Redelivery(failed, 2, 0, 1)],
        on_skipped=lambda *offsets: reported.append(offsets),
    )

    skipped = {offset for part in reported for offset in range(*part)}
    assert {n for n, key in enumerate(KEYS) if key_bucket(key, KEY_BUCKETS) == bucket} == skipped
    assert sorted({*range(RECORDS)} - skipped - {failed}) == found


async def test_a_reader_whose_next_chunk_is_missing_reports_at_once_how_far_it_has_read() -> None:
    reported: list[tuple[int, int]] = []
    grant = {"start_offset": 4, "start_chunk": 2, "first_bucket": 0, "end_bucket": 1}
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await delivered(announced=2, on_skipped=lambda *offsets: reported.append(offsets), **grant)
    assert [(4, 4)] == reported
