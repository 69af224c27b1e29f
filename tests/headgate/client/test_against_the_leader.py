"""Producer, Consumer and Admin with the real leader of a shard, over a fake broker and store, in virtual time."""

import asyncio

import pytest

from headgate.client.admin import Admin
from headgate.errors import FencedError
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, consume, create, produce, reader

pytestmark = pytest.mark.looptime


async def test_reading_until_caught_up_waits_for_segments_of_a_crashed_predecessor_and_for_blocked_children():
    """Both look like a subscription without records: nothing arrives for a minute, and nothing is held."""
    world = OneShard()
    async with world.leader():
        await create(world, segments=1)
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


async def delete(world: OneShard, *, force: bool = True) -> None:
    async with Admin(client(world, "admin")) as admin:
        await admin.delete_subscription("orders", "billing", force=force)


async def test_deleting_a_subscription_fences_its_consumers_and_does_not_recreate_it():
    world = OneShard()
    registrations: list[bytes] = []

    def spy(message) -> None:
        if "/requests/" in message.topic and b"\xa8register" in message.payload:
            registrations.append(message.payload)

    async with world.leader() as leader:
        await create(world)
        await produce(world, 20)
        world.broker.spies.append(spy)
        async with reader(world) as consumer:
            await consume(consumer, {}, 20)
            await delete(world)
            with pytest.raises(FencedError, match="was deleted; restart the program to create a new one"):
                async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                    await anext(consumer)
        # A broker may deliver late copies of all that it ever sent: here of the first registration, which names no
        # subscription, and of the one that was rejected.
        world.broker.spies.remove(spy)
        assert len(registrations) == 2
        async with world.client("late") as late:
            for payload in registrations:
                late.send_raw(payload)
                await asyncio.sleep(1)
        assert leader.state.topics["orders"].subscriptions == {}
    assert world.registry.get_sample_value("headgate_consumers_removed_total", {"reason": "subscription_deleted"}) == 1


async def test_deleting_a_topic_fences_its_consumers():
    world = OneShard()
    async with world.leader():
        await create(world)
        await produce(world, 20)
        async with reader(world) as consumer:
            await consume(consumer, {}, 20)
            async with Admin(client(world, "admin")) as admin:
                await admin.delete_topic("orders", force=True)
            with pytest.raises(FencedError, match="topic 'orders' of consumer"):
                async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                    await anext(consumer)


async def test_a_consumer_of_a_forgotten_subscription_does_not_recreate_it():
    """The shard has forgotten the subscription; the consumer's registration names its id."""
    world = OneShard()
    async with world.leader() as leader:
        await create(world)
        async with reader(world) as consumer:
            world.broker.cut("client-c")
            await asyncio.sleep(100)
            await delete(world)
            assert leader.state.deleted_members.of("orders", "billing") == []
            world.broker.heal("client-c")
            with pytest.raises(FencedError):
                async with asyncio.timeout(120):
                    await anext(consumer)
        assert leader.state.topics["orders"].subscriptions == {}


async def test_stop_ends_the_iteration_until_everything_is_read():
    world = OneShard()
    async with world.leader():
        await create(world, segments=1)
        await produce(world, 3)
        async with reader(world, "c") as consumer:
            async for _ in consumer.until_caught_up():
                consumer.stop()
