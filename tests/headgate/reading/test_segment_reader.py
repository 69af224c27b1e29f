"""The cache of decoded chunks, and the head that readers wait for."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headgate.errors import ObjectMissingError
from headgate.ledger.ledger import Ledger
from headgate.protocol import messages as m
from headgate.reading.head import Head
from headgate.reading.segment_reader import CACHE_BYTES, CHUNK_OVERHEAD_BYTES, ChunkCache
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster

pytestmark = pytest.mark.looptime


def cluster_with(chunks: int) -> ScriptedCluster:
    cluster = ScriptedCluster()
    for n in range(chunks):
        cluster.store_records([m.Record(b"key", b"x" * 1000, n)])
    return cluster


async def test_concurrent_readers_share_one_load():
    cache = ChunkCache(Ledger(cluster_with(1).store, 0), TOPIC_ID)
    first, second = await asyncio.gather(cache.rows(1), cache.rows(1))
    assert first is second
    assert 1 == cache.loads


async def test_the_cache_is_bounded_in_bytes_and_evicts_the_oldest():
    cache = ChunkCache(Ledger(cluster_with(9).store, 0), TOPIC_ID, budget_bytes=5000)
    for number in (1, 2, 3, 1, 4, 5, 6):
        await cache.rows(number)
    loads = cache.loads
    await cache.rows(6)
    assert loads == cache.loads
    await cache.rows(2)
    assert loads + 1 == cache.loads


async def test_cancelling_one_reader_does_not_cancel_the_load_of_another():
    cluster = cluster_with(1)
    cluster.store.latency_seconds = (1.0, 1.0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    leaving, staying = (asyncio.create_task(cache.rows(1)) for _ in range(2))
    await asyncio.sleep(0.1)
    leaving.cancel()
    assert [0] == list(await staying)


async def test_records_of_other_topics_are_omitted():
    cache = ChunkCache(Ledger(cluster_with(1).store, 0), TOPIC_ID + 1)
    assert {} == await cache.rows(1)


async def test_a_missing_chunk_is_not_cached():
    cluster = cluster_with(0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    with pytest.raises(ObjectMissingError):
        await cache.rows(1)
    cluster.store_records([m.Record(b"key", b"value", 1)])
    assert [0] == (await cache.rows(1))[0].offsets


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


async def test_an_announcement_of_the_known_head_wakes_no_reader() -> None:
    head = Head()
    head.advance(5)
    waiting = asyncio.create_task(head.changed())
    await asyncio.sleep(1)
    head.advance(5)
    await asyncio.sleep(1)
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize(("budget_bytes", "loads"), [(2 * CHUNK_OVERHEAD_BYTES, 2), (2 * CHUNK_OVERHEAD_BYTES - 1, 3)])
async def test_a_chunk_without_records_of_the_topic_costs_its_overhead(budget_bytes: int, loads: int) -> None:
    cache = ChunkCache(Ledger(cluster_with(2).store, 0), TOPIC_ID + 1, budget_bytes=budget_bytes)
    for number in (1, 2, 1):
        await cache.rows(number)

    assert loads == cache.loads
    assert CHUNK_OVERHEAD_BYTES == 256


CHUNK_BYTES = 256 + 160 + len(b"key") + 1000
"""What a chunk with one record costs."""


@pytest.mark.parametrize(("budget_bytes", "loads"), [(2 * CHUNK_BYTES, 2), (2 * CHUNK_BYTES - 1, 3)])
async def test_a_record_costs_its_key_and_value_and_160_bytes(budget_bytes: int, loads: int) -> None:
    cache = ChunkCache(Ledger(cluster_with(2).store, 0), TOPIC_ID, budget_bytes=budget_bytes)
    for number in (1, 2, 1):
        await cache.rows(number)

    assert loads == cache.loads


async def test_the_chunk_that_was_used_last_stays_in_the_cache() -> None:
    cache = ChunkCache(Ledger(cluster_with(3).store, 0), TOPIC_ID, budget_bytes=2 * CHUNK_BYTES)
    for number in (1, 2, 1, 3, 1):
        await cache.rows(number)

    assert 3 == cache.loads


async def test_a_chunk_larger_than_the_cache_stays_until_the_next_one() -> None:
    cache = ChunkCache(Ledger(cluster_with(1).store, 0), TOPIC_ID, budget_bytes=100)
    for _ in range(2):
        await cache.rows(1)

    assert 1 == cache.loads


def test_the_cache_has_64_mib() -> None:
    assert 67_108_864 == CACHE_BYTES


async def test_a_closed_cache_neither_loads_nor_polls() -> None:
    cluster = cluster_with(1)
    cluster.store.latency_seconds = (60.0, 60.0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    reading = asyncio.create_task(cache.rows(1))
    waiting = asyncio.create_task(cache.tail.wait_for(Head(), 2, float("inf")))
    await asyncio.sleep(0.5)
    await cache.close()
    assert 0.5 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
    assert {} == cache._loading
    await asyncio.sleep(10)
    assert 1 == cache.loads, "chunk 2 was not polled for"
    waiting.cancel()
    await asyncio.gather(reading, waiting, return_exceptions=True)
    assert reading.cancelled()


async def test_a_load_that_fails_after_all_readers_have_left_is_no_unhandled_error() -> None:
    cluster = cluster_with(0)
    cluster.store.latency_seconds = (1.0, 1.0)
    cache = ChunkCache(Ledger(cluster.store, 0), TOPIC_ID)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    leaving = asyncio.create_task(cache.rows(1))
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    del leaving
    await asyncio.sleep(10)
    gc.collect()

    assert unhandled == []


async def test_readers_that_wait_for_the_head_end_together_when_the_first_time_has_passed() -> None:
    head = Head()
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def wait(number: int, seconds: float) -> None:
        await head.wait_for(number, seconds)
        ended.append(loop.time())

    await asyncio.gather(*(wait(1, seconds) for seconds in (3, 1, 2, 1)))
    assert [1, 1, 1, 1] == pytest.approx(ended, abs=0.01)

    ended.clear()
    waiting = asyncio.gather(wait(1, 2), wait(2, 3))
    await asyncio.sleep(1)
    head.advance(1)
    await waiting
    assert [2, 4] == pytest.approx(ended, abs=0.01), "an advance leaves the time of the others as it is"
