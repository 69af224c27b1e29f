"""Seeks while consumers run: real Producer, Consumer, Admin and leader, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import ConsumedRecord, Consumer
from headgate.errors import ConfigError
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, orders, produce, reader

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def reading(
    records: int = 0, *, segments: int = 2, **options: Any
) -> AsyncIterator[tuple[OneShard, Consumer, Admin]]:
    """A shard whose topic ``orders`` has ``records``, with a consumer of its subscription and an administrator."""
    async with orders(segments=segments) as (world, _):
        if records:
            await produce(world, records)
        async with reader(world, **options) as consumer, Admin(client(world, "admin")) as admin:
            yield world, consumer, admin


async def take(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[ConsumedRecord]:
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


async def test_records_delivered_before_a_seek_cannot_be_acknowledged():
    async with reading(100, segments=1) as (_, consumer, admin):
        before = await take(consumer, 50, acknowledge=False)
        await admin.seek("orders", "billing", to="earliest")
        await asyncio.sleep(0.5)
        await consumer.acknowledge(before[-1])
        await asyncio.sleep(1)
        described = await admin.describe_subscription("orders", "billing")
        assert 1 == consumer.metrics().rejected_acknowledgements

    assert [0] == [segment.acknowledged_offset for segment in described.segments]


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


async def test_a_consumer_seeks_its_subscription_for_all_its_consumers():
    async with orders(segments=2) as (world, _), reader(world) as consumer, reader(world, "d") as other:
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
