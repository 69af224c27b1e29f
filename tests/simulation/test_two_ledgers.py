"""A ledger and an older copy of it behind one name, on one broker, at one time or one after the other: many small worlds.

1. Beside what was copied, a record is only in a ledger that its producer named while it was under way, and once.
2. One that was reported as stored is in the ledger that its producer names then; one reported as not stored is not.
3. A client changes its ledger at most once, some seconds after the daemons of the first one have ended.
4. A command is executed in one ledger at most.
5. What a ledger calls acknowledged was handled by programs that read this ledger, or before it was copied. What it calls
   drained is acknowledged. In the end everything is, in the ledger that remains.
6. STREAM handles the records of a ledger in its order, per key. CHECKPOINT skips none, also from one ledger to the other.
7. A consumer joins the ledger that it reads, and delivers what that one has granted.
"""

import asyncio
import copy
import itertools
import math
import random
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from controller.connections.broker import OtherClusters
from controller.leader.leader import ShardLeader
from drain.protocol import DrainedResponse, DrainQuery
from headgate import Admin, ConsumedRecord, Consumer, Producer
from headgate.client.cluster_watch import SILENT_SECONDS
from headgate.client.connection import Client
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError
from headgate.ledger.identity import identity_object
from headgate.ledger.ledger import if_exists
from headgate.ledger.objects import IDENTITY_PATH
from headgate.model.entries import ConsumerRegistered, SegmentGranted
from headgate.model.layout import KEY_BUCKETS, key_bucket
from headgate.protocol.codec import ClusterDescription, cluster_topic
from headgate.protocol.request_fields import PROTOCOL_VERSION
from shard.state.topic import Topic
from tests.support.fakes.broker import FakeBroker, Faults
from tests.support.samples.chunks import record_rows
from tests.support.worlds.one_shard import CLUSTER, OneShard, now_ms
from tests.support.worlds.one_shard_programs import create, described

SETTINGS: Final = ProducerSettings(batch_bytes=200, request_timeout_seconds=2, delivery_timeout_seconds=60)
PRODUCERS, RECORDS, COPIED_SECONDS, TOPIC = 4, 40, 20.0, cluster_topic(CLUSTER)
KINDS: Final = {"stream": "STREAM", "queue": "QUEUE", "own": "CHECKPOINT"}
SETTLE_SECONDS = 300
Handled = dict[str, dict[tuple[int, int], bytes]]
"""Kind → (segment, offset) → value, in the order in which they were handled for the first time."""


class TwoLedgers:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.first, self.second = self.worlds = OneShard(), OneShard()
        faults = Faults(loss=rng.choice([0, 0.05]), duplication=rng.choice([0, 0.1]), reorder=rng.random() < 0.5)
        self.broker = self.first.broker = self.second.broker = FakeBroker(random.Random(seed), faults)
        self.first.ledger_id, self.second.ledger_id = b"a" * 16, b"b" * 16
        self.ends = rng.uniform(COPIED_SECONDS, 90)  # of the first ledger's daemons
        self.sent: dict[bytes, tuple[bytes, bytes, str]] = {}
        """Value → the ledgers that its producer named at first and at last, and the outcome."""
        self.topics: dict[OneShard, list[dict[str, Topic]]] = defaultdict(list)  # of each term
        self.leaders: dict[OneShard, ShardLeader] = {}
        self.copied: set[Any] = set()
        """Values and topics."""
        self.copied_chunks = 0
        self.grants: dict[OneShard, set[tuple[str, int, int]]] = defaultdict(set)
        """(kind, segment, generation) of the handled records."""
        self.reads: dict[str, OneShard] = {}
        """Client of a consumer → the ledger whose store it has."""
        self.handled: dict[OneShard, Handled] = {world: {kind: {} for kind in KINDS} for world in self.worlds}
        self.positions: dict[str, str] = {}
        """Of each CHECKPOINT reader, in either ledger."""

    async def run(self) -> None:
        for world in self.worlds:
            world.producer_ids = iter(partial(self.rng.getrandbits, 62), None)
            world.drained = partial(self.drained, world)  # type: ignore[method-assign]
            world.store.objects[IDENTITY_PATH] = identity_object(world.ledger_id.hex())
        async with self.first.leader():
            await create(self.first)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.serve(self.first, self.ends))
            producing = [tasks.create_task(self.produce(f"p{n}", self.rng.uniform(0, 50))) for n in range(PRODUCERS)]
            others = [tasks.create_task(self.command())]
            others += [tasks.create_task(self.consume(kind, f"{kind}-{n}")) for kind in KINDS for n in range(2)]
            await asyncio.sleep(COPIED_SECONDS)
            own = self.second.store.objects[IDENTITY_PATH]
            self.second.store.objects.update(self.first.store.objects | {IDENTITY_PATH: own})
            self.copied_chunks = self.leaders[self.first].state.chunk
            self.copied_handled = copy.deepcopy(self.handled[self.first])
            self.copied = {*await self.values(self.second), *self.topics[self.first][-1]}
            await asyncio.sleep(self.rng.uniform(0, 50))
            others.append(tasks.create_task(self.serve(self.second, math.inf)))
            await asyncio.wait(producing)
            for _ in range(SETTLE_SECONDS):
                await asyncio.sleep(not self.is_settled())
            for task in others:
                task.cancel()
        self.check({world.ledger_id: await self.values(world) for world in self.worlds})
        for world in self.worlds:
            self.check_handled(world, await self.rows(world))
            await self.check_members(world)
        first, second = (set(self.topics[world][-1]) for world in self.worlds)
        assert first & second <= self.copied, "rule 4"

    async def serve(self, world: OneShard, ends: float) -> None:
        """Lead in one term after the other, and describe the cluster as a daemon does."""
        transport = self.broker.transport(f"describing {self.worlds.index(world)}")
        publish = lambda: transport.publish(TOPIC, described(world), retain=True)  # noqa: E731
        own = ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, ledger_url="", ledger_id=world.ledger_id.hex())
        transport.on_connection(lambda connected: connected and publish())
        async with transport:
            await transport.subscribe(TOPIC, OtherClusters(lambda: own, publish).on_message)
            while (left := ends - asyncio.get_running_loop().time()) > 0:
                async with world.leader(f"{self.worlds.index(world)}{self.rng.random()}") as leader:
                    self.topics[world].append(leader.state.topics)
                    self.leaders[world] = leader
                    await asyncio.sleep(min(left, self.rng.uniform(3, 40)))

    def client(self, name: str, store: Any = None) -> Client:
        transport, rng = self.broker.transport(name), random.Random(self.rng.random())
        return Client(transport=transport, store=store, cluster=CLUSTER, client_id=name, now_ms=now_ms, rng=rng)

    async def produce(self, name: str, begins: float) -> None:
        await asyncio.sleep(begins)
        client = self.client(name)
        async with Producer(client, settings=SETTINGS) as producer, asyncio.TaskGroup() as tasks:
            for number in range(RECORDS):
                value = f"{name}-{number}".encode()
                delivery = await producer.send("orders", b"%d" % (number % 5), value)
                tasks.create_task(self.settle(value, client, delivery))
                await asyncio.sleep(self.rng.choice([0, 0.5, 5]))

    async def settle(self, value: bytes, client: Client, delivery: Any) -> None:
        began, outcome = client.cluster_watch.ledger, "stored"
        try:
            await delivery
        except (DeliveryFailedError, DeliveryUnknownError) as error:
            outcome = "unknown" if isinstance(error, DeliveryUnknownError) else "not stored"
        self.sent[value] = began, client.cluster_watch.ledger, outcome
        late = asyncio.get_running_loop().time() > self.ends + SILENT_SECONDS / 2
        assert began == client.cluster_watch.ledger or (began == self.first.ledger_id and late), "rule 3"

    async def command(self) -> None:
        async with Admin(self.client("admin"), timeout_seconds=30) as admin:
            for number in itertools.count():
                with suppress(HeadgateError):
                    await admin.create_topic(f"t{number}")
                    if self.rng.random() < 0.2:
                        segments = (await admin.describe_topic("orders")).segments
                        active = [each.segment for each in segments if each.state == "active"]
                        await admin.split("orders", self.rng.choice(active))
                await asyncio.sleep(self.rng.uniform(0, 5))

    async def drained(self, world: OneShard, query: DrainQuery) -> DrainedResponse:
        """Answer like the Spark process of ``world``."""
        topic, leader = self.topics[world][-1]["orders"], self.leaders[world]
        found = [each for each in query.segments if not self.left(topic, query.subscription_id, each)]
        drained = {each: topic.tails[each].next_offset for each in found}
        return DrainedResponse(id=0, drained=drained, watermark=leader.state.chunk)

    async def consume(self, kind: str, name: str) -> None:
        """Read one ledger or the other, in one program after the other."""
        for number in itertools.count():
            world = self.rng.choice(self.worlds)
            where: dict[str, Any] = {"topic": "orders", "subscription": kind, "type": KINDS[kind], "name": name}
            if kind == "own" and self.rng.random() < 0.8:
                where["positions"] = self.positions.get(name)
            client = self.client(f"{name}-{number}", world.store)
            self.reads[client.address] = world
            with suppress(TimeoutError, HeadgateError):
                limit = asyncio.timeout(self.rng.uniform(10, 60))
                async with limit, Consumer(client, start="earliest", **where) as consumer:
                    async for record in consumer:
                        await self.handle(world, kind, name, consumer, record)
            if self.rng.random() < 0.3:
                self.positions.pop(name, None)
            await asyncio.sleep(self.rng.choice([0, 5]))

    async def handle(self, world: OneShard, kind: str, name: str, consumer: Consumer, record: ConsumedRecord) -> None:
        handled = self.handled[world][kind]
        self.grants[world].add((kind, record.segment, record.generation))
        if self.rng.random() < 0.1:
            if kind == "queue":
                await consumer.negative_acknowledge(record, reason="unlucky")
                return
            await asyncio.sleep(self.rng.choice([0.5, 5]))
        place = record.segment, record.offset
        if kind == "own":
            before = record.segment, record.offset - 1
            known = before in handled or self.handled[self.first][kind].get(before) in self.copied
            assert known or record.offset == 0, f"rule 6: skipped before {record}"
            self.positions[name] = consumer.positions
        assert handled.setdefault(place, record.value) == record.value
        if kind != "own":
            await consumer.acknowledge(record)

    async def values(self, world: OneShard) -> list[bytes]:
        return [row["value"] for row in await self.rows(world)]

    async def rows(self, world: OneShard) -> list[dict[str, Any]]:
        rows, number = [], 1
        while (found := await if_exists(world.ledger.read_records, number)) is not None:
            rows, number = rows + record_rows(found[1]), number + 1
        return rows

    @staticmethod
    def left(topic: Topic, subscription_id: int, segment: int) -> bool:
        """Return whether a segment has records that are not acknowledged."""
        found = next(each for each in topic.subscriptions.values() if each.subscription_id == subscription_id)
        return found.position(segment) < topic.tails[segment].next_offset

    def is_settled(self) -> bool:
        topic = self.topics[self.second][-1]["orders"] if self.topics[self.second] else None
        ids = [topic.subscriptions[kind].subscription_id for kind in ("stream", "queue")] if topic else []
        return topic is not None and not any(self.left(topic, each, segment) for each in ids for segment in topic.tails)

    def check_handled(self, world: OneShard, rows: list[dict[str, Any]]) -> None:
        """Check rules 5 and 6."""
        topic, handled = self.topics[world][-1]["orders"], self.handled[world]
        for kind, before in self.copied_handled.items():
            earlier = before if world is self.second else {}
            subscription = topic.subscriptions.get(kind)
            for row in rows if subscription and kind != "own" else ():
                place = row["segment"], row["offset"]
                progress = subscription.progress.acknowledged_in(row["segment"], key_bucket(row["key"], KEY_BUCKETS))
                above = progress.acknowledged_ranges.contains(row["offset"])
                if acknowledged := above or row["offset"] < progress.position:
                    assert place in handled[kind] or place in earlier, f"rule 5: {kind} did not handle {row}"
                assert acknowledged or row["segment"] not in subscription.drained, f"rule 5: drained with {row}"
                assert acknowledged or world is self.first, f"rule 5: {row} is left"
        places = {row["value"]: place for place, row in enumerate(rows)}
        last: dict[bytes, int] = {}
        keys = {row["value"]: row["key"] for row in rows}
        for value in handled["stream"].values():
            assert places[value] > last.get(keys[value], -1), f"rule 6: {value!r} was handled after a later record"
            last[keys[value]] = places[value]

    async def check_members(self, world: OneShard) -> None:
        """Check rule 7."""
        kinds = {each.subscription_id: kind for kind, each in self.topics[world][-1]["orders"].subscriptions.items()}
        granted, number = set(), 1
        while (found := await if_exists(world.ledger.read, number)) is not None:
            for each in found.entries:
                if isinstance(each, ConsumerRegistered):
                    assert number <= self.copied_chunks or self.reads[each.client_id] is world, f"rule 7: {each}"
                elif isinstance(each, SegmentGranted):
                    granted.add((kinds[each.subscription_id], each.segment, each.generation))
            number += 1
        assert self.grants[world] <= granted, f"rule 7: {self.grants[world] - granted}"

    def check(self, stored: dict[bytes, list[bytes]]) -> None:
        for ledger, values in stored.items():
            assert len(values) == len(set(values)), "rule 1: once"
            others = {value for value in values if ledger not in self.sent[value][:2]}
            assert others <= self.copied, f"rule 1: {others}"
        for value, (_, named, outcome) in self.sent.items():
            assert outcome == "unknown" or (value in stored[named]) == (outcome == "stored"), f"rule 2: {value!r}"
        assert len(self.sent) == PRODUCERS * RECORDS, "all have an outcome"


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(10))
async def test_each_record_is_in_the_ledger_that_its_producer_named(seed: int) -> None:
    await TwoLedgers(seed).run()
