"""Consumers that a command evicts: real Consumer, Admin and leader, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.admin import Admin
from headgate.client.consuming.consumer_requests import host_name, library_version
from headgate.errors import FencedError
from tests.headgate.client.test_against_the_leader import client, create, reader
from tests.support.worlds.one_shard import OneShard

pytestmark = pytest.mark.looptime


async def test_an_evicted_consumer_ends_and_another_one_gets_its_segments():
    world = OneShard()
    async with world.leader(), Admin(client(world, "admin")) as admin:
        await create(world, segments=2)
        async with reader(world) as consumer, reader(world, "d") as other:
            await asyncio.sleep(2)
            assert 1 == len(other.segments)
            await admin.evict_consumer("orders", "billing", consumer.name)
            with pytest.raises(FencedError, match="was evicted by a command: restart the program to join again"):
                async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                    await anext(consumer)
            assert [0, 1] == other.segments
        async with reader(world) as restarted:
            await asyncio.sleep(1)
            described = (await admin.describe_subscription("orders", "billing")).consumers
            assert [(restarted.name, host_name(), library_version())] == [
                (each.consumer, each.host, each.version) for each in described
            ]


async def test_an_eviction_holds_if_its_message_is_lost_and_the_leader_changes():
    world = OneShard()
    async with world.leader("a"), Admin(client(world, "admin")) as admin:
        await create(world)
        consumer = await reader(world).__aenter__()
        world.broker.cut("client-c")
        await admin.evict_consumer("orders", "billing", consumer.name)
    async with world.leader("b"):
        world.broker.heal("client-c")
        with pytest.raises(FencedError, match="was evicted by a command"):
            async with asyncio.timeout(120):
                await anext(consumer)
        await consumer.__aexit__(None, None, None)
