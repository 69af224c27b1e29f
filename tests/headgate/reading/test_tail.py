"""What reads on for all readers at the tail, which sleep until there is something to do."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.chunk import ChunkHeader, RecordColumns, stored_records
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.protocol.requests import Record
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import CACHE_BYTES, MAX_LOADS, ChunkCache, ChunkRows, Head, Tail, _rows_by_segment
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster

NEVER = float("inf")
Reader = asyncio.Future[int]


class PolledLedger:
    """Chunks, of which the next one may be missing, and readers that wait for it."""

    def __init__(self) -> None:
        self.head = Head()
        self.polled: list[tuple[float, int]] = []
        """Loop time and chunk of each poll."""
        self.error: Exception | None = ObjectMissingError("no chunk")
        self.segments: dict[int, list[int]] = {}
        """Chunk → the segments that have records in it; segment 0 by default."""
        self.durable = 0
        self.tail = Tail(self._read, self._make_durable)

    def reader(self, wake_at: float = NEVER, number: int = 1, segment: int | None = 0) -> Reader:
        return self.tail.join(self.head, segment, number, wake_at)

    async def _read(self, number: int, _: int) -> ChunkRows:
        self.polled.append((asyncio.get_running_loop().time(), number))
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        header = ChunkHeader(format=1, shard=0, number=number, leader_epoch=1, at_ms=1, entries=0, records=0)
        return ChunkRows(dict.fromkeys(self.segments.get(number, [0]), Rows([], [], [], [], [])), header)

    async def _make_durable(self) -> None:
        self.durable += 1

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.polled]


async def ended(*readers: Reader) -> Sequence[int]:
    return await asyncio.wait_for(asyncio.gather(*readers), 0.1)


async def test_all_readers_share_polls_that_grow_rare_and_sleep_while_they_find_nothing() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(5)]
    await asyncio.sleep(95)

    assert ledger.times == pytest.approx([1, 3.01, 7.02, 15.03, 31.04, 61.05, 91.06])
    assert not any(reader.done() for reader in readers)
    ledger.error = None
    ledger.head.advance(1)
    assert await ended(*readers) == [1] * 5

    ledger.error = ObjectMissingError("no chunk")
    reader = ledger.reader(number=2)
    await asyncio.sleep(1.1)
    assert ledger.times[-1] == pytest.approx(96.0, abs=0.1), "a second after the head has changed"
    reader.cancel()
    await asyncio.sleep(0)
    ledger.reader(number=7)
    await asyncio.sleep(3)
    assert ledger.polled[-1][1] == 7, "no reader waits for those between, which may be compacted by now"


async def test_while_a_leader_states_the_head_polls_are_five_minutes_apart_and_its_silence_ends_the_pause() -> None:
    ledger = PolledLedger()
    reader = ledger.reader()
    for _ in range(300):
        await asyncio.sleep(5)
        ledger.head.advance(0)
    assert ledger.times == pytest.approx([1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411], abs=0.3)
    await asyncio.sleep(60)
    assert ledger.times[12:] == pytest.approx([1530], abs=5)
    reader.cancel()


async def test_only_readers_of_a_chunk_s_segments_are_woken_and_the_others_need_not_read_it() -> None:
    """One that has read compacted objects may be ahead of the others, and they may join while its chunk is read."""
    ledger, ledger.error = PolledLedger(), None
    ledger.segments = {1: [1], 2: [2, 3], 3: [1]}
    ahead = ledger.reader(number=3, segment=1)
    await asyncio.sleep(1.005)
    every = ledger.reader(segment=None)
    readers = [ledger.reader(segment=segment) for segment in (1, 2, 4)]
    ledger.head.advance(3)
    await asyncio.sleep(0.1)

    assert [1] * 3 == await ended(readers[0], every, ahead)
    assert [2] == await ended(readers[1])
    assert (False, 4, [3, 1, 2, 3]) == (readers[2].done(), ledger.tail.number, [number for _, number in ledger.polled])


async def test_a_poll_that_finds_the_chunk_makes_it_durable_and_wakes_its_readers() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)
    ledger.error = None
    await asyncio.sleep(2)

    assert await ended(*readers) == [1] * 2
    assert (1, 1) == (ledger.durable, ledger.head.number)


@pytest.mark.parametrize("error", [ObjectMissingError("no chunk"), StoreUnavailableError("no store")])
async def test_a_chunk_that_was_announced_and_cannot_be_read_wakes_every_reader(error: Exception) -> None:
    ledger, ledger.error = PolledLedger(), error
    readers = [ledger.reader(segment=segment) for segment in (1, 2, None)]
    ledger.head.advance(5)
    assert [1] * 3 == await ended(*readers)


async def test_a_poll_without_a_result_wakes_who_wants_to_do_something_else() -> None:
    ledger = PolledLedger()
    waiting, due = ledger.reader(wake_at=5), ledger.reader(wake_at=0)
    await asyncio.sleep(1.5)
    assert ([1], False) == (await ended(due), waiting.done())


async def test_a_damaged_chunk_fails_all_its_readers_and_is_read_once() -> None:
    ledger = PolledLedger()
    ledger.error = LedgerError("damaged")
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)

    assert [str(reader.exception()) for reader in readers] == ["damaged", "damaged"]
    assert len(ledger.polled) == 1


def close(ledger: PolledLedger, _: Reader) -> None:
    ledger.tail.close()


def leave(_: PolledLedger, reader: Reader) -> None:
    reader.cancel()


@pytest.mark.parametrize("end", [close, leave])
async def test_without_readers_or_when_closed_nothing_is_polled(end: Callable[[PolledLedger, Reader], None]) -> None:
    ledger = PolledLedger()
    reader = ledger.reader()
    await asyncio.sleep(1.5)
    end(ledger, reader)
    await asyncio.sleep(5)

    assert len(ledger.polled) == 1
    reader.cancel()


async def test_the_head_wakes_waiting_readers_and_never_falls():
    head = Head()
    waiting = asyncio.create_task(head.wait_for(3, 10))
    await asyncio.sleep(1)
    head.advance(2)
    await asyncio.sleep(1)
    assert not waiting.done()
    head.advance(5)
    head.advance(4)
    await waiting
    assert 5 == head.number
    assert 2 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
    await head.wait_for(6, 3)
    assert 5 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)


# The cache of decoded chunks: each is loaded once, and those that exist ahead of their turn.


def cluster_with(chunks: int) -> ScriptedCluster:
    cluster = ScriptedCluster()
    for n in range(chunks):
        cluster.store_records([Record(b"key", b"x" * 1000, n)])
    return cluster


@pytest.mark.parametrize(("number", "after_seconds"), [(1, 0.5), (2, None)], ids=["meanwhile", "before, another one"])
async def test_concurrent_readers_share_one_load_also_of_a_chunk_that_is_offered(number, after_seconds):
    cluster = cluster_with(2)
    cache, offered = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID), await cluster.store.read(chunk_path(0, number))
    cluster.store.latency_seconds = (1.0, 1.0)
    loading = asyncio.gather(cache.rows(1, 0), cache.rows(1, 0))
    if after_seconds is not None:
        await asyncio.sleep(after_seconds)
    cache.offer(1, offered)
    assert all([each is await cache.rows(1, 0) for each in await loading])
    assert 1 == cache.loads


async def test_an_offered_chunk_is_there_without_a_turn_of_the_loop() -> None:
    cluster = cluster_with(1)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    cache.offer(1, await cluster.store.read(chunk_path(0, 1)))
    with pytest.raises(StopIteration) as read:
        cache.rows(1, 0).send(None)
    assert [0] == read.value.value[0].offsets


async def test_the_cache_is_bounded_in_bytes_and_evicts_the_oldest():
    cache = ChunkCache(Ledger(cluster_with(9).store, 0), TOPIC_ID, budget_bytes=5000)
    for number in (1, 2, 3, 1, 4, 5, 6):
        await cache.rows(number, 0)
    loads = cache.loads
    await cache.rows(6, 0)
    assert loads == cache.loads
    await cache.rows(2, 0)
    assert loads + 1 == cache.loads
    await cache.close()
    assert not cache._chunks, "they would stay until the collector finds its consumer, which is part of a cycle"


async def test_a_missing_chunk_is_not_cached():
    cluster = cluster_with(0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    with pytest.raises(ObjectMissingError):
        await cache.rows(1, 0)
    cluster.store_records([Record(b"key", b"value", 1)])
    assert [0] == (await cache.rows(1, 0))[0].offsets


CHUNK_BYTES = 256 + 160 + len(b"key") + 1000
"""What a chunk with one record costs."""


async def test_a_closed_cache_neither_loads_nor_polls() -> None:
    cluster = cluster_with(1)
    cluster.store.latency_seconds = (60.0, 60.0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    reading = asyncio.create_task(cache.rows(1, 0))
    waiting = cache.tail.join(Head(), 0, 2, float("inf"))
    await asyncio.sleep(0.5)
    await cache.close()
    assert 0.5 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
    assert {} == cache._loading
    await asyncio.sleep(10)
    assert 1 == cache.loads, "chunk 2 was not polled for"
    waiting.cancel()
    await asyncio.gather(reading, waiting, return_exceptions=True)
    assert reading.cancelled()


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 2), st.integers(1, 12) | st.just(700)), max_size=8))
def test_the_records_of_a_segment_are_found_wherever_they_are(runs: list[tuple[int, int, int]]) -> None:
    """Those of a batch follow each other; the batches of a chunk, and records of devices, are mixed."""
    places = [(topic, segment) for topic, segment, count in runs for _ in range(count)]
    offsets, texts = list(range(len(places))), [b"%d" % n for n in range(len(places))]
    topics, segments = [topic for topic, _ in places], [segment for _, segment in places]
    builder = ChunkBuilder()
    builder.records.extend(RecordColumns(topics, segments, offsets, offsets, texts, texts, [()] * len(places)))
    _, stored = stored_records(builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1), shard=0, number=1)

    for records in (builder.records, stored):
        found = _rows_by_segment(records, 1)
        assert {segment for topic, segment in places if topic == 1} == found.keys()
        for segment, rows in found.items():
            own = [offset for offset in offsets if places[offset] == (1, segment)]
            values = [texts[offset] for offset in own]
            assert (own, own, values, values) == tuple(
                [*chain(*each)] for each in [*zip(*rows.parts(), strict=True)][:4]
            )


DELAY_SECONDS = 0.04


def slow_cache(chunks: int, budget_bytes: int = CACHE_BYTES) -> ChunkCache:
    cluster = cluster_with(chunks)
    cluster.store.latency_seconds = (DELAY_SECONDS, DELAY_SECONDS)
    return ChunkCache(Ledger(cluster.store, 0), TOPIC_ID, budget_bytes)


async def test_chunks_that_exist_are_loaded_ahead_and_once() -> None:
    cache = slow_cache(400)
    before = asyncio.get_running_loop().time()
    for number in range(1, 401):
        assert (await cache.rows(number, newest=400))[0].offsets == [number - 1]

    assert asyncio.get_running_loop().time() - before < 400 * DELAY_SECONDS / 8
    assert cache.loads == 400


@pytest.mark.parametrize("newest", [0, 5])
async def test_what_may_not_exist_is_not_loaded_ahead(newest: int) -> None:
    """A reader at the tail would request it in vain with every chunk."""
    cache = slow_cache(5)
    for number in range(1, 6):
        await cache.rows(number, newest=min(newest, number))
    await asyncio.sleep(1)

    assert cache.loads == 5


async def test_readers_at_too_many_places_load_nothing_ahead() -> None:
    """What was loaded for one would be dropped before it is used."""
    cache = slow_cache(400, budget_bytes=4 * CHUNK_BYTES)
    for number in range(1, 51):
        for first in (0, 100, 200, 300):
            await cache.rows(first + number, newest=400)

    assert cache.loads == 208, "once in vain for each place, until the cache notices, and again after a pause"


async def test_a_limited_number_of_chunks_is_loaded_at_a_time() -> None:
    cache = slow_cache(1000)
    most = 0

    async def read(first: int) -> None:
        nonlocal most
        for number in range(first, first + 50):
            await cache.rows(number, newest=1000)
            most = max(most, len(cache._loading))

    await asyncio.gather(*(read(1 + 100 * each) for each in range(10)))

    assert most == MAX_LOADS + 7, "those of some readers come on top"


async def test_a_load_ahead_that_failed_is_repeated_in_its_turn_and_is_no_unhandled_error() -> None:
    cluster = cluster_with(4)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    await cache.rows(1, 0)
    cluster.store.fail_next("unavailable", "read")
    await cache.rows(1, newest=2)
    await asyncio.sleep(1)
    assert cache.loads == 2
    gc.collect()

    assert [1] == (await cache.rows(2, newest=4))[0].offsets
    assert unhandled == []
    await asyncio.sleep(1)
    assert cache.loads == 4, "chunk 2 again, and one ahead: the failed load was of no use"
