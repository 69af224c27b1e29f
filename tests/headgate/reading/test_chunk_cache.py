"""The cache of decoded chunks: each is loaded once, and those that exist ahead of their turn."""

import asyncio
import gc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate.errors import ObjectMissingError
from headgate.ledger.chunk import RecordColumns, stored_records
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.protocol.requests import Record
from headgate.reading.tail import CACHE_BYTES, MAX_LOADS, ChunkCache, Head, _rows_by_segment
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster

pytestmark = pytest.mark.looptime


def cluster_with(chunks: int) -> ScriptedCluster:
    cluster = ScriptedCluster()
    for n in range(chunks):
        cluster.store_records([Record(b"key", b"x" * 1000, n)])
    return cluster


async def test_concurrent_readers_share_one_load():
    cache = ChunkCache(Ledger(cluster_with(1).store, 0), TOPIC_ID)
    first, second = await asyncio.gather(cache.rows(1, 0), cache.rows(1, 0))
    assert first is second
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
