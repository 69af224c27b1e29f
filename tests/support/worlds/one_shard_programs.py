"""Programs of users against `OneShard`: what tests of clients with a real leader share."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.leader.leader import ShardLeader
from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription, cluster_topic
from headgate.protocol.replies import ProducerIdentity, TopicReply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import CreateTopic, OpenProducer, Record
from tests.support.worlds.one_shard import CLUSTER, BareClient, OneShard, now_ms

KEYS = [f"key-{n}".encode() for n in range(10)]
SMALL = ProducerSettings(batch_bytes=200)


def described(world: OneShard) -> bytes:
    place = {"ledger_url": "file:///x", "ledger_id": world.ledger_id.hex()}
    return codec.encode(ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, **place))


def restored_copy(world: OneShard) -> OneShard:
    """Return a world that continues a copy of the ledger of ``world``, as `headgate ledger copy` makes it."""
    copied = OneShard()
    copied.ledger_id = b"a copy's id: 16B"
    copied.store.objects |= world.store.objects | {IDENTITY_PATH: identity_object(copied.ledger_id.hex())}
    return copied


def client(world: OneShard, client_id: str, user: str | None = None) -> Client:
    world.broker.retained[cluster_topic(CLUSTER)] = described(world)
    # Two programs never use the same tokens.
    seeds = world.__dict__.setdefault("seeds", itertools.count(1))
    transport = world.broker.transport(client_id, will=Client.will(CLUSTER, client_id, user))
    who = {"cluster": CLUSTER, "client_id": client_id, "user": user}
    return Client(transport=transport, store=world.store, **who, now_ms=now_ms, rng=random.Random(next(seeds)))


async def produce(world: OneShard, count: int, client_id: str = "producer", pause_seconds: float = 0.0) -> None:
    async with Producer(client(world, client_id), settings=SMALL) as producer:
        deliveries = []
        for n in range(count):
            deliveries.append(await producer.send("orders", KEYS[n % len(KEYS)], str(n).encode()))
            await asyncio.sleep(pause_seconds)
        for delivery in deliveries:
            await delivery


async def consume(consumer: Consumer, found: dict[bytes, list[int]], count: int, timeout_seconds: float = 120) -> None:
    """Read and acknowledge until ``found`` has ``count`` records, without repeated deliveries."""
    async with asyncio.timeout(timeout_seconds):
        while sum(map(len, found.values())) < count:
            record = await anext(consumer)
            values = found.setdefault(record.key, [])
            if int(record.value) not in values:
                values.append(int(record.value))
            await consumer.acknowledge(record)


def in_order(count: int) -> dict[bytes, list[int]]:
    return {key: list(range(index, count, len(KEYS))) for index, key in enumerate(KEYS)}


def reader(world: OneShard, name: str = "c", user: str | None = None, **more) -> Consumer:
    settings = {"topic": "orders", "subscription": "billing", "name": name, "start": "earliest", **more}
    return Consumer(client(world, f"client-{name}", user), **settings)


async def create(world: OneShard, segments: int = 2) -> None:
    async with Admin(client(world, "admin")) as admin:
        await admin.create_topic("orders", segments=segments)


@asynccontextmanager
async def orders(segments: int = 2, records: int = 0, **settings: Any) -> AsyncIterator[tuple[OneShard, Admin]]:
    """Return a shard that is led and has topic orders with ``records``, and a client that administers it."""
    world = OneShard(**settings)
    async with world.leader() as world.led, Admin(client(world, "admin")) as admin:
        await admin.create_topic("orders", segments=segments)
        if records:
            await produce(world, records)
        yield world, admin


RECORDS = [Record(b"k", b"v", 0)]


async def created(client: BareClient, segments: int = 1) -> None:
    reply = await client.call(CreateTopic, topic="orders", token="t", segments=segments)
    assert isinstance(reply, TopicReply)


@asynccontextmanager
async def serving(shard: OneShard) -> AsyncIterator[tuple[ShardLeader, asyncio.Task[None]]]:
    """A leader on a transport of its own, which stays open after the term."""
    transport = shard.broker.transport("daemon-a")
    async with transport:
        leader = await shard.begin("a", transport)
        transport.on_connection(leader.connection_changed)
        task = asyncio.create_task(leader.serve())
        await asyncio.sleep(2)
        yield leader, task


async def opened(client: BareClient, token: str = "x") -> ProducerIdentity:
    reply = await client.call(OpenProducer, token=token)
    assert isinstance(reply, ProducerIdentity)
    return reply


@asynccontextmanager
async def producing(shard: OneShard) -> AsyncIterator[tuple[BareClient, ProducerIdentity]]:
    """A client with a topic and a producer identity."""
    async with shard.client() as client:
        await created(client)
        yield client, await opened(client)


def batch(identity: ProducerIdentity, sequence: int, **kwargs: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "records": RECORDS,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "sequence": sequence,
    } | kwargs
