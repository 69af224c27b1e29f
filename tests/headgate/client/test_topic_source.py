"""A topic for readers notices its deletion: real leader and client, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.admin import Admin
from headgate.client.topic_source import open_topic_source
from headgate.errors import HeadgateError
from tests.headgate.client.test_against_the_leader import client, create, produce
from tests.support.worlds.one_shard import OneShard

pytestmark = pytest.mark.looptime


async def test_a_deletion_is_noticed_soon():
    world = OneShard()
    async with world.leader(), Admin(client(world, "admin")) as admin:
        await create(world)
        async with open_topic_source(client(world, "reader"), "orders") as source:
            waiting = asyncio.create_task(source.until_deleted())
            await produce(world, 5)
            await asyncio.sleep(100)
            assert not waiting.done()
            await admin.delete_topic("orders")
            with pytest.raises(HeadgateError, match="topic 'orders' was deleted, with its records"):
                async with asyncio.timeout(5):  # far below the longest time between two questions
                    await waiting


async def test_a_topic_that_was_created_again_is_another_one():
    world = OneShard()
    async with world.leader(), Admin(client(world, "admin")) as admin:
        await create(world)
        async with open_topic_source(client(world, "reader"), "orders") as source:
            waiting = asyncio.create_task(source.until_deleted())
            await asyncio.sleep(1)
            await admin.delete_topic("orders")
            await create(world)
            with pytest.raises(HeadgateError, match="was deleted and created again; run the command again"):
                await waiting


async def test_a_deletion_is_noticed_although_no_leader_answered_for_a_while():
    world = OneShard()
    async with Admin(client(world, "admin")) as admin:
        async with world.leader("a"):
            await create(world)
            entered = open_topic_source(client(world, "reader"), "orders", timeout_seconds=5)
            source = await entered.__aenter__()
            waiting = asyncio.create_task(source.until_deleted())
        await asyncio.sleep(200)
        assert not waiting.done()
        async with world.leader("b"):
            await admin.delete_topic("orders")
            with pytest.raises(HeadgateError, match="was deleted"):
                async with asyncio.timeout(60):
                    await waiting
        await entered.__aexit__(None, None, None)
