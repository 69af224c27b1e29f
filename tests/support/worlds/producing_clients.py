"""Bare clients that create a topic and produce to `OneShard`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.leader.leader import ShardLeader
from headgate.protocol.replies import ProducerIdentity, TopicReply
from headgate.protocol.requests import CreateTopic, OpenProducer, Record
from tests.support.worlds.one_shard import BareClient, OneShard

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
