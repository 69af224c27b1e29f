"""Tests of ingestion: clients behind a faulty transport, single requests, and checks against the ledger."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headgate import Admin, Delivery, RecordMetadata
from headgate.client.connection import Client
from headgate.client.producer import Producer
from headgate.model import entries as e
from headgate.model.hashing import shard_of
from headgate.protocol import messages as m
from tests.support.fakes.fault_injecting_transport import FaultInjectingTransport
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TIMEOUT_FACTOR, wait_until
from tests.support.servers.raw_clients import raw_client, raw_transport

KEYS = [f"key-{n}".encode() for n in range(7)]


class IngestCluster(Cluster):
    """A cluster with clients behind a faulty transport, and topics on chosen shards."""

    @asynccontextmanager
    async def client(self, transport: FaultInjectingTransport | None = None) -> AsyncIterator[Client]:
        """A connected client; its transport is a FaultInjectingTransport."""
        client_id = f"test-{uuid.uuid4().hex[:12]}"
        config = self.client_config()
        transport = FaultInjectingTransport(raw_transport(config, client_id, announced=True))
        async with raw_client(config, client_id, transport) as client:
            yield client

    async def topic(self, shard: int = 0, segments: int = 2) -> str:
        """Create a topic on ``shard`` and return its name."""
        name = next(
            name for name in (f"t-{uuid.uuid4().hex[:8]}" for _ in range(1000)) if shard_of(name, self.shards) == shard
        )
        async with self.client() as client, Admin(client) as admin:
            await admin.create_topic(name, segments=segments)
        return name

    async def entries(self, shard: int = 0) -> list[tuple[int, e.AnyEntry]]:
        """Return every entry of a shard with the time of its chunk in milliseconds."""
        ledger = self.ledger(shard)
        found: list[tuple[int, e.AnyEntry]] = []
        for number in range(1, await ledger.newest() + 1):
            chunk = await ledger.read(number)
            found += [(chunk.header.at_ms, entry) for entry in chunk.entries]
        return found

    async def records_by_offset(self, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """Return (segment, offset) → (key, value) of every record of a topic; no offset is used twice."""
        shard = shard_of(topic, self.shards)
        topic_ids = {
            entry.topic_id
            for _, entry in await self.entries(shard)
            if isinstance(entry, e.TopicCreated) and entry.topic == topic
        }
        found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        for row in await self.record_rows(shard):
            if row["topic_id"] in topic_ids:
                position = row["segment"], row["offset"]
                assert position not in found, "an offset was used twice"
                found[position] = row["key"], row["value"]
        return found


def fault_transport_of(client: Client) -> FaultInjectingTransport:
    assert isinstance(client.transport, FaultInjectingTransport)
    return client.transport


async def send(producer: Producer, topic: str, values: range, pause_seconds: float = 0.0) -> list[Delivery]:
    """Send one record per value, with the keys in turn."""
    deliveries = []
    for value in values:
        deliveries.append(await producer.send(topic, KEYS[value % len(KEYS)], b"%d" % value))
        await asyncio.sleep(pause_seconds)
    return deliveries


async def outcomes(deliveries: Sequence[Delivery], seconds: float = 30.0) -> list[RecordMetadata | BaseException]:
    async with asyncio.timeout(seconds * TIMEOUT_FACTOR):
        return await asyncio.gather(*deliveries, return_exceptions=True)


async def assert_stored_exactly(
    ingest: IngestCluster, topic: str, values: Sequence[int], results: Sequence[RecordMetadata | BaseException] = ()
) -> None:
    """Check that the ledger holds ``values`` exactly once, in order per key, without gaps, where ``results`` say."""
    found = await ingest.records_by_offset(topic)
    by_key: dict[bytes, list[int]] = {}
    for position in sorted(found):
        key, value = found[position]
        by_key.setdefault(key, []).append(int(value))
    expected: dict[bytes, list[int]] = {}
    for value in values:
        expected.setdefault(KEYS[value % len(KEYS)], []).append(value)
    assert expected == by_key
    for segment in {segment for segment, _ in found}:
        offsets = sorted(offset for each, offset in found if each == segment)
        assert list(range(len(offsets))) == offsets
    for value, stored in zip(values, results, strict=False):
        assert isinstance(stored, RecordMetadata), repr(stored)
        if stored.offset is not None:
            assert (KEYS[value % len(KEYS)], b"%d" % value) == found[stored.segment, stored.offset]


class RequestSender:
    """Sends single requests, each once, with the current leader epoch, and returns the replies."""

    def __init__(self, client: Client, shard: int) -> None:
        self.client = client
        self.shard = shard

    async def epoch(self) -> int:
        """Return the epoch of the newest announced leader."""
        await self.client.watch_leader(self.shard)
        known = await wait_until(lambda: self.client.leader(self.shard), "a leader is announced")
        assert known is not None
        return known.leader_epoch

    def send(self, kind: type[m.RequestBody], **fields: Any) -> asyncio.Future[Any]:
        """Send; the first reply is the result."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request_id = next(self.client.request_ids)
        self.client.replies.expect(
            request_id, lambda reply: None if answered.done() else answered.set_result(reply.body)
        )
        leader_epoch = fields.pop("leader_epoch", None)
        assert self.client.send(self.shard, request_id, leader_epoch, kind(**fields))
        return answered

    async def ask(self, kind: type[m.RequestBody], **fields: Any) -> Any:
        """Send, and return the first reply."""
        fields.setdefault("leader_epoch", await self.epoch())
        async with asyncio.timeout(5 * TIMEOUT_FACTOR):
            return await self.send(kind, **fields)
