"""Shared steps of consumer tests: open one, read records, inspect its messages to the leader."""

import asyncio

import pytest

from headgate.client.consumer import Consumer
from headgate.protocol.requests import Record, RegisterConsumer
from tests.support.fakes.scripted_leader import ScriptedCluster


def consumer(cluster: ScriptedCluster, client_id: str = "client", **more) -> Consumer:
    return Consumer(cluster.client(client_id), **{"topic": "orders", "subscription": "billing", "name": "c", **more})


def records(*values: str, key: bytes = b"key") -> list[Record]:
    return [Record(key, value.encode(), 1) for value in values]


async def take(reader: Consumer, count: int, *, acknowledge: bool = False) -> list[str]:
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            record = await anext(reader)
            found.append(record.value.decode())
            if acknowledge:
                await reader.acknowledge(record)
    return found


async def nothing_more(reader: Consumer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await anext(reader)


def acknowledged(cluster: ScriptedCluster) -> list[tuple[int, int, int]]:
    return [(a.segment, a.generation, a.end_offset) for a in cluster.acknowledged]


def registration(leader) -> RegisterConsumer:
    return leader.seen(RegisterConsumer)[-1]
