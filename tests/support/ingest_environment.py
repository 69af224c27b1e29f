"""What proofs of ingestion share: clients behind a transport, sender requests, and the ledger as the judge."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate import Admin, Delivery, RecordMetadata
from headgate.client.connection import Client
from headgate.client.producer import Producer
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.model.hashing import shard_of
from headgate.protocol import messages as m
from headgate.storage.object_store import open_store
from headgate.transport.mqtt import MqttTransport
from tests.support.cluster import SHARDS, Cluster, Daemon
from tests.support.fault_injecting_transport import FaultInjectingTransport
from tests.support.programs import TIMEOUT_FACTOR, wait_until

KEYS = [f"key-{n}".encode() for n in range(7)]


@dataclass(slots=True)
class IngestCluster:
    """A cluster with its daemons by name."""

    cluster: Cluster
    daemons: dict[str, Daemon] = field(default_factory=dict)

    async def start(self, name: str) -> Daemon:
        """Start one more daemon."""
        self.daemons[name] = await self.cluster.start_daemon(name)
        return self.daemons[name]

    async def leader(self) -> str:
        """Return who leads every shard, once somebody does."""

        async def found() -> str | None:
            for name, daemon in self.daemons.items():
                if await daemon.leads() == SHARDS:
                    return name
            return None

        name = await wait_until(found, "somebody leads everything", 30)
        assert name is not None
        return name

    @asynccontextmanager
    async def client(self, transport: FaultInjectingTransport | None = None) -> AsyncIterator[Client]:
        """A client that has heard of the cluster; its transport is a FaultInjectingTransport."""
        client_id = f"test-{uuid.uuid4().hex[:12]}"
        inner = MqttTransport(
            "127.0.0.1", self.cluster.broker_port, client_id, will=Client.will(self.cluster.name, client_id)
        )
        async with Client(
            transport=FaultInjectingTransport(inner), store=None, cluster=self.cluster.name, client_id=client_id
        ) as client:
            yield client

    async def topic(self, shard: int = 0, segments: int = 2) -> str:
        """Create a topic on ``shard`` and return its name."""
        name = next(
            name for name in (f"t-{uuid.uuid4().hex[:8]}" for _ in range(1000)) if shard_of(name, SHARDS) == shard
        )
        async with self.client() as client, Admin(client) as admin:
            await admin.create_topic(name, segments=segments)
        return name

    async def entries(self, shard: int = 0) -> list[e.AnyEntry]:
        """Return every entry of a shard."""
        ledger = self._ledger(shard)
        found: list[e.AnyEntry] = []
        for number in range(1, await ledger.newest() + 1):
            found += (await ledger.read(number)).entries
        return found

    async def stored(self, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """Return (segment, offset) → (key, value) of every record of a topic; no place is taken twice."""
        shard = shard_of(topic, SHARDS)
        ledger = self._ledger(shard)
        topic_ids = {
            entry.topic_id
            for entry in await self.entries(shard)
            if isinstance(entry, e.TopicCreated) and entry.topic == topic
        }
        found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        for number in range(1, await ledger.newest() + 1):
            for row in (await ledger.read_records(number)).to_pylist():
                if row["topic_id"] in topic_ids:
                    place = row["segment"], row["offset"]
                    assert place not in found, "an offset was given twice"
                    found[place] = row["key"], row["value"]
        return found

    def _ledger(self, shard: int) -> Ledger:
        return Ledger(open_store(self.cluster.ledger_url), shard)


def fault_transport_of(client: Client) -> FaultInjectingTransport:
    """Return what stands between ``client`` and the broker."""
    assert isinstance(client.transport, FaultInjectingTransport)
    return client.transport


async def send(producer: Producer, topic: str, values: range, pause_seconds: float = 0.0) -> list[Delivery]:
    """Send one record a value; the keys take turns."""
    deliveries = []
    for value in values:
        deliveries.append(await producer.send(topic, KEYS[value % len(KEYS)], b"%d" % value))
        await asyncio.sleep(pause_seconds)
    return deliveries


async def outcomes(deliveries: Sequence[Delivery], seconds: float = 30.0) -> list[RecordMetadata | BaseException]:
    """Return what became of each."""
    async with asyncio.timeout(seconds * TIMEOUT_FACTOR):
        return await asyncio.gather(*deliveries, return_exceptions=True)


async def assert_stored_exactly(
    ingest: IngestCluster, topic: str, values: Sequence[int], told: Sequence[RecordMetadata | BaseException] = ()
) -> None:
    """``values`` are in the ledger, each once, each key's in order, without a hole, and where their senders were told."""
    found = await ingest.stored(topic)
    by_key: dict[bytes, list[int]] = {}
    for place in sorted(found):
        key, value = found[place]
        by_key.setdefault(key, []).append(int(value))
    expected: dict[bytes, list[int]] = {}
    for value in values:
        expected.setdefault(KEYS[value % len(KEYS)], []).append(value)
    assert expected == by_key
    for segment in {segment for segment, _ in found}:
        offsets = sorted(offset for each, offset in found if each == segment)
        assert list(range(len(offsets))) == offsets
    for value, stored in zip(values, told, strict=False):
        assert isinstance(stored, RecordMetadata), repr(stored)
        if stored.offset is not None:
            assert (KEYS[value % len(KEYS)], b"%d" % value) == found[stored.segment, stored.offset]


class RequestSender:
    """Sends single requests, each once, pinned to the leader of the day, and returns what is said to it."""

    def __init__(self, client: Client, shard: int) -> None:
        self.client = client
        self.shard = shard

    async def epoch(self) -> int:
        """Return the epoch of the newest leader that was announced."""
        await self.client.watch_leader(self.shard)
        known = await wait_until(lambda: self.client.leader(self.shard), "a leader is announced")
        assert known is not None
        return known.leader_epoch

    def send(self, kind: type[m.RequestBody], **fields: Any) -> asyncio.Future[Any]:
        """Send; the first reply is the result."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request_id = next(self.client.request_ids)
        self.client.on_reply(request_id, lambda reply: None if answered.done() else answered.set_result(reply.body))
        leader_epoch = fields.pop("leader_epoch", None)
        assert self.client.send(self.shard, request_id, leader_epoch, kind(**fields))
        return answered

    async def ask(self, kind: type[m.RequestBody], **fields: Any) -> Any:
        """Send, and return the first reply."""
        fields.setdefault("leader_epoch", await self.epoch())
        async with asyncio.timeout(5 * TIMEOUT_FACTOR):
            return await self.send(kind, **fields)
