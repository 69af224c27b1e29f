"""Which records of a segment a reader delivers: by grant, acknowledged range and key bucket."""

import asyncio
from itertools import pairwise

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.ledger import Ledger
from headgate.model.layout import KEY_BUCKETS, key_bucket
from headgate.protocol.replies import BucketStart, Grant, Redelivery
from headgate.reading.segment_reader import CompactedRecords, OnSkipped, SegmentReader
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import ChunkCache, Head
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.looptime

RECORDS = 40
KEYS = [b"key-%d" % number for number in range(RECORDS)]
HALF = KEY_BUCKETS // 2


async def delivered(
    *,
    skip_acknowledged: bool = False,
    announced: bool = True,
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


async def test_all_records_of_the_segment_and_no_others() -> None:
    assert list(range(RECORDS)) == await delivered()


async def test_records_before_the_start_are_not_delivered() -> None:
    assert list(range(5, RECORDS)) == await delivered(start_offset=5)


@pytest.mark.parametrize("skip", [True, False], ids=["queue", "stream"])
async def test_acknowledged_ranges_are_skipped_where_the_subscription_says_so(skip: bool) -> None:
    skipped = {2, 3, 10} if skip else set()

    found = await delivered(skip_acknowledged=skip, acknowledged=[(2, 4), (10, 11)])
    assert [offset for offset in range(RECORDS) if offset not in skipped] == found


async def test_only_keys_in_the_granted_buckets() -> None:
    own = [offset for offset, key in enumerate(KEYS) if key_bucket(key, KEY_BUCKETS) < HALF]
    assert 0 < len(own) < RECORDS

    assert own == await delivered(first_bucket=0, end_bucket=HALF)


async def test_a_chunk_that_was_not_announced_is_made_durable_before_its_records_are_delivered() -> None:
    """It can be read before its leader has made it durable, and a power failure would remove it."""
    store = FakeStore(latency_seconds=(0, 0))
    store.fail_next("unavailable", "make_durable", times=3)

    assert list(range(RECORDS)) == await delivered(store=store, announced=False)
    assert 4 == store.calls["make_durable"]


async def test_each_run_of_records_in_other_buckets_is_reported_once_and_then_the_end_after_each_chunk() -> None:
    reported: list[tuple[int, int]] = []
    own = await delivered(first_bucket=0, end_bucket=HALF, on_skipped=lambda *offsets: reported.append(offsets))

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
    ledger, head = Ledger(FakeStore(latency_seconds=(0, 0)), 0), Head()
    reported: list[tuple[int, int]] = []

    async def deliver(_: Rows) -> None:
        raise AssertionError("there are no records")

    grant = Grant(
        segment=0, generation=1, first_hash=0, last_hash=9, start_offset=4, start_chunk=1, first_bucket=0, end_bucket=1
    )
    head.advance(1)
    reader = SegmentReader(
        grant,
        cache=ChunkCache(ledger, 1),
        compacted=CompactedRecords(ledger.store, 0, 1),
        head=head,
        deliver=deliver,
        on_skipped=lambda *offsets: reported.append(offsets),
    )
    running = asyncio.create_task(reader.run())
    await asyncio.sleep(0.1)
    running.cancel()

    assert [(4, 4)] == reported
