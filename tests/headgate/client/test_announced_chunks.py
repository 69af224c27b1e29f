"""Consumers at the end of a shard take small chunks from the leader's announcements, with the real leader of a shard."""

import asyncio
import random
from contextlib import AsyncExitStack

import msgspec
import pytest

from controller.settings.sections import IngestSettings
from headgate.client.producer import Producer
from headgate.protocol import codec
from headgate.protocol.codec import ChunkAnnouncement, chunk_topic
from tests.support.worlds.one_shard import CLUSTER, OneShard
from tests.support.worlds.one_shard_programs import client, create, reader

pytestmark = pytest.mark.looptime
TOPIC = chunk_topic(CLUSTER, 0)


class Spied(OneShard):
    """Counts what is read from the store, and keeps what is announced."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.reads: list[str] = []
        self.announced: list[ChunkAnnouncement] = []
        self._read, self.store.read = self.store.read, self._counted
        self.broker.spies.append(self._overhear)

    async def _counted(self, path: str) -> bytes:
        self.reads.append(path)
        return await self._read(path)

    def _overhear(self, message) -> None:
        if message.topic == TOPIC:
            self.announced.append(msgspec.msgpack.decode(message.payload, type=ChunkAnnouncement))


async def follows(world: Spied, seconds: float = 2) -> None:
    """Wait until the leader knows that a new consumer follows, and the consumer knows the key: two quick heartbeats."""
    await asyncio.sleep(seconds)
    world.reads.clear()


async def received(consumer, *values: bytes) -> None:
    async with asyncio.timeout(30):
        assert [*values] == [(await anext(consumer)).value for _ in values]


async def test_a_consumer_at_the_end_needs_no_store_until_the_leader_changes():
    world = Spied()
    async with AsyncExitStack() as programs:
        async with world.leader("a"):
            await create(world, segments=2)
            producer = await programs.enter_async_context(Producer(client(world, "p")))
            consumer = await programs.enter_async_context(reader(world))
            await producer.send_and_wait("orders", b"k", b"0")
            await received(consumer, b"0")
            assert not world.announced, "no consumer has said that it follows"
            await follows(world)
            await producer.send_and_wait("orders", b"k", b"1")
            await received(consumer, b"1")
            assert not world.reads
        async with world.leader("b"):
            await producer.send_and_wait("orders", b"k", b"2")
            await received(consumer, b"2")
            assert world.reads, "it does not know the key of this term yet"
            await follows(world, 6)
            await producer.send_and_wait("orders", b"k", b"3")
            await received(consumer, b"3")
            assert not world.reads


async def test_a_chunk_is_not_announced_if_the_broker_had_to_send_too_much_for_it():
    world = Spied(ingest=IngestSettings(announce_bytes=20_000))
    value = random.Random(1).randbytes(12_000)

    async def is_announced(producer) -> bool:
        before = len(world.announced)
        await producer.send_and_wait("orders", b"k", value)
        await asyncio.sleep(1)
        return any(value in each.object for each in world.announced[before:])

    async with world.leader(), Producer(client(world, "p")) as producer:
        await create(world, segments=2)
        async with reader(world, "c1"):
            await follows(world)
            assert await is_announced(producer)
            async with reader(world, "c2"):
                await follows(world)
                assert not await is_announced(producer), "each of two clients would get 13 kB"
            await asyncio.sleep(60)
            assert await is_announced(producer)
        await asyncio.sleep(60)
        assert not await is_announced(producer), "no consumer follows"


async def test_a_forged_chunk_is_not_delivered(caplog):
    world = Spied()
    async with world.leader(), client(world, "p") as connected, Producer(connected) as producer:
        await create(world, segments=1)
        async with reader(world) as consumer, world.broker.transport("forger") as forger:
            await follows(world)
            await producer.send_and_wait("orders", b"k", b"1")
            await received(consumer, b"1")
            genuine = world.announced[-1]
            for data in (genuine.object.replace(b"1", b"2"), b""):
                forged = msgspec.structs.replace(genuine, number=genuine.number + 1, object=data)
                forger.publish(TOPIC, codec.encode(forged))
            await asyncio.sleep(1)
            await producer.send_and_wait("orders", b"k", b"3")
            await received(consumer, b"3")
    assert 1 == caplog.text.count("chunk.not_authentic")
