"""Seeks while consumers run: real Producer, Consumer, Admin and leader, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import ConsumedRecord, Consumer
from headgate.errors import ConfigError, RequestRejectedError
from tests.support.worlds.one_shard import OneShard, now_ms
from tests.support.worlds.one_shard_programs import KEYS, client, create, in_order, produce, reader

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def reading(
    records: int = 0, *, segments: int = 2, **options: Any
) -> AsyncIterator[tuple[OneShard, Consumer, Admin]]:
    """A shard whose topic ``orders`` has ``records``, with a consumer of its subscription and an administrator."""
    world = OneShard()
    async with world.leader():
        await create(world, segments=segments)
        if records:
            await produce(world, records)
        async with reader(world, **options) as consumer, Admin(client(world, "admin")) as admin:
            yield world, consumer, admin


async def take(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[ConsumedRecord]:
    """Read ``count`` records."""
    found: list[ConsumedRecord] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            record = await anext(consumer)
            found.append(record)
            if acknowledge:
                await consumer.acknowledge(record)
    return found


def by_key(records: list[ConsumedRecord]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for record in records:
        found.setdefault(record.key, []).append(int(record.value))
    return found


async def test_after_a_seek_every_record_is_delivered_again_in_order_and_no_earlier_one_between():
    """500 records are queued in the consumer at the seek; none of them is delivered after the revocation."""
    async with reading(600) as (_, consumer, admin):
        before = await take(consumer, 100)
        answer = await admin.seek("orders", "billing", to="earliest")
        await asyncio.sleep(0.5)
        after = await take(consumer, 600)
        await asyncio.sleep(1)
        described = await admin.describe_subscription("orders", "billing")

    assert in_order(600) == by_key(after)
    assert {record.generation for record in before}.isdisjoint({record.generation for record in after})
    assert 1 == answer.seek_generation == described.seek_generation
    assert all(s.acknowledged_offset == s.next_offset for s in described.segments)


async def test_records_delivered_before_a_seek_cannot_be_acknowledged():
    async with reading(100, segments=1) as (_, consumer, admin):
        before = await take(consumer, 50, acknowledge=False)
        await admin.seek("orders", "billing", to="earliest")
        await asyncio.sleep(0.5)
        await consumer.acknowledge(before[-1])
        await asyncio.sleep(1)
        described = await admin.describe_subscription("orders", "billing")
        assert 1 == consumer.rejected

    assert [0] == [segment.acknowledged_offset for segment in described.segments]


async def test_a_push_lost_during_a_seek_is_repeated():
    async with reading(100, segments=1) as (world, consumer, admin):
        await take(consumer, 100)
        await asyncio.sleep(1)
        world.broker.pause("client-c")
        await admin.seek("orders", "billing", positions={0: 90})
        world.broker.drop("client-c")
        world.broker.resume("client-c")
        assert list(range(90, 100)) == [record.offset for record in await take(consumer, 10)]


async def test_a_seek_back_over_a_split_reads_the_parent_again_before_its_children():
    world = OneShard()
    async with world.leader():
        await create(world, segments=1)
        async with reader(world) as consumer, reader(world, "d") as other, Admin(client(world, "admin")) as admin:
            await produce(world, 50)
            await admin.split("orders", 0)
            await produce(world, 50, "second")
            world.drained_segments = {0: 50}
            found = [consumer, other]
            taken = await asyncio.gather(*(_until_quiet(each) for each in found))
            assert 100 == sum(map(len, taken))
            world.drained_segments = {}
            await admin.seek("orders", "billing", positions={0: 20})
            again = await asyncio.gather(*(_until_quiet(each) for each in found))
            assert {0: set(range(20, 50))} == _offsets(again)
            world.drained_segments = {0: 50}
            rest = await asyncio.gather(*(_until_quiet(each, 8) for each in found))

    assert 50 == sum(map(len, rest))
    assert {1, 2} == set(_offsets(rest))


async def _until_quiet(consumer: Consumer, seconds: float = 4) -> list[ConsumedRecord]:
    found: list[ConsumedRecord] = []
    while True:
        try:
            async with asyncio.timeout(seconds):
                record = await anext(consumer)
        except TimeoutError:
            return found
        found.append(record)
        await consumer.acknowledge(record)


def _offsets(taken: list[list[ConsumedRecord]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for record in (record for records in taken for record in records):
        found.setdefault(record.segment, set()).add(record.offset)
    return found


async def test_a_seek_to_latest_skips_every_record_without_waiting_for_a_drain_check():
    """The drain check has no answer here; the sealed segment that was skipped is drained nevertheless."""
    async with reading(50, segments=1) as (world, consumer, admin):
        await take(consumer, 5)
        await admin.split("orders", 0)
        await admin.seek("orders", "billing", to="latest")
        await produce(world, 20, "second")
        after = await take(consumer, 20)

    assert {key: list(range(index, 20, len(KEYS))) for index, key in enumerate(KEYS)} == by_key(after)


async def test_a_seek_to_a_timestamp_starts_at_the_first_record_stored_then_or_later():
    world = OneShard()
    async with world.leader():
        await create(world, segments=1)
        await produce(world, 30)
        await asyncio.sleep(5)
        moment = now_ms()
        async with reader(world) as consumer, Admin(client(world, "admin")) as admin:
            await admin.split("orders", 0)
            await produce(world, 20, "second")
            answer = await admin.seek("orders", "billing", timestamp_ms=moment)
            assert {0: 30, 1: 0, 2: 0} == {move.segment: move.to_offset for move in answer.moves}
            assert 20 == len(await take(consumer, 20))


async def test_a_seek_of_a_queue_discards_single_acknowledgements():
    async with reading(20, segments=1, type="QUEUE") as (_, consumer, admin):
        for record in (await take(consumer, 20, acknowledge=False))[::2]:
            await consumer.acknowledge(record)
        await asyncio.sleep(1)
        await admin.seek("orders", "billing", positions={0: 5})
        assert list(range(5, 20)) == [record.offset for record in await take(consumer, 15)]


async def test_a_refused_seek_moves_nothing():
    async with reading(20, segments=1) as (_, consumer, admin):
        with pytest.raises(RequestRejectedError, match="segment 0 ends at 20; 21 is beyond it: choose 0 to 20"):
            await admin.seek("orders", "billing", positions={0: 21})
        with pytest.raises(ConfigError, match="in the future"):
            await admin.seek("orders", "billing", timestamp_ms=now_ms() + 1000)
        with pytest.raises(ConfigError, match="exactly one"):
            await admin.seek("orders", "billing")
        assert list(range(20)) == [record.offset for record in await take(consumer, 20)]
        assert 0 == (await admin.describe_subscription("orders", "billing")).seek_generation


async def test_a_consumer_seeks_its_subscription_for_all_its_consumers():
    world = OneShard()
    async with world.leader():
        await create(world, segments=2)
        async with reader(world) as consumer, reader(world, "d") as other:
            await asyncio.sleep(1)
            await produce(world, 100)
            read = await asyncio.gather(*(_until_quiet(each) for each in (consumer, other)))
            assert all(read)
            moved = await consumer.seek(to="earliest")
            again = await asyncio.gather(*(_until_quiet(each) for each in (consumer, other)))
            with pytest.raises(ConfigError, match="exactly one"):
                await consumer.seek()

    assert 1 == moved.seek_generation
    assert _offsets(read) == _offsets(again)
    for before, after in zip(read, again, strict=True):
        assert max(record.generation for record in before) < min(record.generation for record in after)


async def test_a_checkpoint_subscription_cannot_be_moved():
    async with reading(segments=1, type="CHECKPOINT") as (_, _, admin):
        with pytest.raises(RequestRejectedError, match="keep their own positions"):
            await admin.seek("orders", "billing", to="earliest")


async def test_order_none_releases_children_and_order_strict_revokes_them():
    async with reading(10, segments=1) as (world, consumer, admin):
        await take(consumer, 5)
        await admin.split("orders", 0)
        await asyncio.sleep(0.1)
        assert [0] == consumer.segments
        await admin.set_order("orders", "billing", "none")
        await asyncio.sleep(0.1)
        assert [0, 1, 2] == consumer.segments
        described = await admin.set_order("orders", "billing", "strict")
        assert {1: (0,), 2: (0,)} == {s.segment: s.blocked_by for s in described.segments if s.blocked_by}
        await asyncio.sleep(0.5)
        assert [0] == consumer.segments, "handed back, and nothing was fenced"
        assert 0 == world.registry.get_sample_value("headgate_consumers_removed_total", {"reason": "evicted"})
