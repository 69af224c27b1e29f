"""Producer, Consumer and Admin with the real leader of a shard, over a fake broker and store, in virtual time."""

import asyncio

import pytest

from headgate.client.admin import Admin
from headgate.errors import FencedError
from tests.support.worlds.one_shard_programs import client, consume, orders, produce, reader

pytestmark = pytest.mark.looptime


async def test_reading_until_caught_up_waits_for_segments_of_a_crashed_predecessor_and_for_blocked_children():
    """Both look like a subscription without records: nothing arrives for a minute, and nothing is held."""
    async with orders(segments=1) as (world, _):
        crashed = reader(world, "crashed")
        await crashed.__aenter__()
        await produce(world, 100)
        async with Admin(client(world, "admin")) as admin:
            await admin.split("orders", 0)
        await produce(world, 100, "again")
        world.broker.cut("client-crashed")
        began, found = asyncio.get_running_loop().time(), []
        async with reader(world) as consumer:
            asyncio.get_running_loop().call_later(120, world.drained_segments.update, {0: 100})
            async for record in consumer.until_caught_up():
                found.append(record)
                await consumer.acknowledge(record)
            assert consumer.metrics().acknowledged_records > 0
        assert [100, 100] == [sum((r.segment == 0) is parent for r in found) for parent in (True, False)]
        assert asyncio.get_running_loop().time() - began > 120
        await crashed._release()


async def test_deleting_a_topic_fences_its_consumers():
    async with orders(records=20) as (world, _), reader(world) as consumer:
        await consume(consumer, {}, 20)
        async with Admin(client(world, "admin")) as admin:
            await admin.delete_topic("orders", force=True)
        with pytest.raises(FencedError, match="topic 'orders' of consumer"):
            async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                await anext(consumer)


async def test_stop_ends_the_iteration_until_everything_is_read():
    async with orders(segments=1, records=3) as (world, _), reader(world, "c") as consumer:
        async for _ in consumer.until_caught_up():
            consumer.stop()
