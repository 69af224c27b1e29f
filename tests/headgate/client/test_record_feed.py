"""Records between the reader and the program: what counts as delivered, skipped and acknowledged."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.consuming.record_queue import ParkedKey
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Grant
from headgate.reading.stored_rows import Rows
from tests.support.fakes.scripted_leader import ScriptedCluster

GRANT = Grant(segment=3, generation=7, start_offset=10, start_chunk=1, first_hash=0, last_hash=65_535)


class IdleReader:
    """A reader that finds nothing."""

    at_end = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    def has_read(self, chunk: int) -> bool:
        return False


class Feed(RecordFeed):
    """A feed whose readers deliver what a test says, and the reports of skipped records."""

    def __init__(self, kind: SubscriptionType = SubscriptionType.STREAM) -> None:
        super().__init__("orders", kind, {}, self._start)
        self.skipped: list[tuple[int, int]] = []
        self.on_skipped = lambda grant, first_offset, end_offset: self.skipped.append((first_offset, end_offset))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def _reader(self, grant: Grant, start: int, /) -> Any:
        return IdleReader()

    async def delivered(self, offset: int) -> Any:
        """Return a record that the reader has delivered, and the program received."""
        await self.read(offset)
        return self.take(1)[0]

    async def read(self, *offsets: int, grant: Grant = GRANT) -> None:
        """Queue what a reader has read: the key of a record is the last digit of its offset."""
        keys = [b"%d" % (offset % 10) for offset in offsets]
        await self._deliver(grant, Rows(list(offsets), [0] * len(keys), keys, keys, [()] * len(keys)))

    def taken(self, max_records: int) -> list[int]:
        """Return the offsets of what the program takes."""
        return [record.offset for record in self.take(max_records)]


async def test_a_reader_that_waits_is_woken_however_often_its_segment_was_paused() -> None:
    feed = Feed()
    feed.begin(GRANT)
    feed.pause((3, 7))
    reading = asyncio.create_task(feed.read(10))
    await asyncio.sleep(1)
    feed.pause((3, 7))
    feed.resume((3, 7))
    await asyncio.wait_for(reading, 1)


async def test_closing_stops_all_readers_and_loads() -> None:
    feed = Feed()
    cluster = ScriptedCluster()
    cluster.store.latency_seconds = (60.0, 60.0)
    feed.open(cluster.store, 0, 1)
    load = asyncio.create_task(feed._cache.rows(1, 1))
    holding = feed.begin(GRANT)
    await asyncio.sleep(1)
    await feed.close()

    assert asyncio.get_running_loop().time() == pytest.approx(1, abs=0.1)
    assert holding.stopped
    await asyncio.gather(load, holding.read_task or load, return_exceptions=True)
    assert load.cancelled()


async def test_a_thousand_records_are_queued_for_the_program_and_readers_wait_in_turn() -> None:
    feed, other = Feed(), replace(GRANT, segment=4)
    feed.begin(GRANT)
    feed.begin(other)
    await asyncio.wait_for(feed.read(*range(10, 910)), 1)
    first = asyncio.create_task(feed.read(*range(910, 1110)))
    second = asyncio.create_task(feed.read(10, grant=other))
    await asyncio.sleep(60)
    assert 900 == feed.queue.records
    assert [*range(10, 109)] == feed.taken(99)
    await asyncio.sleep(60)
    assert not first.done()
    assert [109] == feed.taken(1)
    await asyncio.wait_for(first, 1)
    await asyncio.sleep(60)
    assert not second.done()
    assert [*range(110, 910)] == feed.taken(1000), "the rest of the run"
    await asyncio.wait_for(second, 1)


async def test_of_a_run_with_a_parked_key_what_is_before_a_record_is_delivered_before_it_is_parked() -> None:
    """What is parked may acknowledge all that was delivered before it."""
    feed, parked = Feed(), list[tuple[int, int]]()
    holding = feed.begin(GRANT)
    feed.on_parked = lambda holding, record: parked.append((record.offset, holding.delivered))
    await feed.read(*range(10, 30))
    holding.parked = {b"2": ParkedKey(holding.queued_end)}
    await feed.read(*range(30, 35))

    assert [(32, 10)] == parked
    assert [10, 11, 13] == [feed.taken(100)[0] for _ in range(3)]
    assert [(32, 10), (12, 12)] == parked
    holding.parked.clear()
    assert [*range(14, 30)] == feed.taken(100)


async def test_dropping_a_segment_ends_the_wait_for_its_acknowledgements() -> None:
    feed = Feed()
    holding = feed.begin(GRANT)
    waiting = asyncio.create_task(holding.progress.wait())
    await asyncio.sleep(1)
    feed.drop(3, 7)

    assert await asyncio.wait_for(waiting, 1)


async def test_skipped_records_of_a_bucket_range_are_acknowledged_once_from_the_beginning() -> None:
    feed = Feed()
    feed.begin(GRANT)
    await asyncio.sleep(1.0)
    feed._record_skipped(GRANT, 12, 12)
    assert feed.skipped == [(0, 12)]

    feed.acknowledge_skipped(3, 7)
    assert feed.skipped == [(0, 12)]


@pytest.mark.parametrize("kind", [SubscriptionType.STREAM, SubscriptionType.QUEUE])
async def test_of_a_segment_that_is_being_revoked_nothing_is_reported_as_skipped(kind: SubscriptionType) -> None:
    """Queued records before them may have been discarded."""
    feed = Feed(kind)
    feed.stop(feed.begin(GRANT))
    await asyncio.sleep(1.0)
    feed._record_skipped(GRANT, 10, 12)
    feed._record_skipped(GRANT, 12, 12)
    feed.acknowledge_skipped(3, 7)

    assert feed.skipped == []


async def test_an_acknowledgement_that_a_later_one_covers_is_not_sent() -> None:
    feed = Feed()
    feed.begin(GRANT)
    first, second = [await feed.delivered(offset) for offset in (10, 11)]

    assert feed.acknowledge(second)
    assert not feed.acknowledge(first)


async def test_of_a_queue_each_delivery_ends() -> None:
    feed = Feed(SubscriptionType.QUEUE)
    holding = feed.begin(GRANT)
    first, second = [await feed.delivered(offset) for offset in (10, 11)]

    assert 1 == holding.end_delivery(second.offset)
    assert not feed.is_present(second)
    assert not holding.is_acknowledged(SubscriptionType.QUEUE)
    assert feed.is_present(first)
    holding.end_delivery(first.offset)
    assert holding.is_acknowledged(SubscriptionType.QUEUE)
