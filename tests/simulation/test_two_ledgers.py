"""A ledger and an older copy of it behind one name, on one broker, at one time or one after the other: many small worlds.

1. Beside what was copied, a record is only in a ledger that its producer named while it was under way, and once.
2. One that was reported as stored is in the ledger that its producer names then; one reported as not stored is not.
3. A client changes its ledger at most once, some seconds after the daemons of the first one have ended.
4. A command is executed in one ledger at most.
"""

import asyncio
import itertools
import math
import random
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from controller.connections.broker import OtherClusters
from headgate import Admin, Producer
from headgate.client.cluster_watch import SILENT_SECONDS
from headgate.client.connection import Client
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError
from headgate.ledger.ledger import if_exists
from headgate.protocol import messages as m
from tests.support.fakes.broker import FakeBroker, Faults
from tests.support.worlds.one_shard import CLUSTER, OneShard, now_ms
from tests.support.worlds.one_shard_programs import create, described

SETTINGS: Final = ProducerSettings(batch_bytes=200, request_timeout_seconds=2, delivery_timeout_seconds=60)
PRODUCERS, RECORDS, COPIED_SECONDS, TOPIC = 4, 40, 20.0, m.cluster_topic(CLUSTER)


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
        self.topics: dict[OneShard, list[Any]] = defaultdict(list)  # of each term

    async def run(self) -> None:
        for world in self.worlds:
            world.producer_ids = iter(partial(self.rng.getrandbits, 62), None)
        async with self.first.leader():
            await create(self.first)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.serve(self.first, self.ends))
            producing = [tasks.create_task(self.produce(f"p{n}", self.rng.uniform(0, 50))) for n in range(PRODUCERS)]
            others = [tasks.create_task(self.command())]
            await asyncio.sleep(COPIED_SECONDS)
            self.second.store.objects.update(self.first.store.objects)
            self.copied = {*await self.values(self.second), *self.topics[self.first][-1]}
            await asyncio.sleep(self.rng.uniform(0, 50))
            others.append(tasks.create_task(self.serve(self.second, math.inf)))
            await asyncio.wait(producing)
            for task in others:
                task.cancel()
        self.check({world.ledger_id: await self.values(world) for world in self.worlds})
        first, second = (set(self.topics[world][-1]) for world in self.worlds)
        assert first & second <= self.copied, "rule 4"

    async def serve(self, world: OneShard, ends: float) -> None:
        """Lead in one term after the other, and describe the cluster as a daemon does."""
        transport = self.broker.transport(f"describing {self.worlds.index(world)}")
        publish = lambda: transport.publish(TOPIC, described(world), retain=True)  # noqa: E731
        own = m.ClusterDescription(protocol=2, shards=1, ledger_url="", ledger_id=world.ledger_id.hex())
        transport.on_connection(lambda connected: connected and publish())
        async with transport:
            await transport.subscribe(TOPIC, OtherClusters(lambda: own, publish).on_message)
            while (left := ends - asyncio.get_running_loop().time()) > 0:
                async with world.leader(f"{self.worlds.index(world)}{self.rng.random()}") as leader:
                    self.topics[world].append(leader.state.topics)
                    await asyncio.sleep(min(left, self.rng.uniform(3, 40)))

    def client(self, name: str) -> Client:
        transport, rng = self.broker.transport(name), random.Random(self.rng.random())
        return Client(transport=transport, store=None, cluster=CLUSTER, client_id=name, now_ms=now_ms, rng=rng)

    async def produce(self, name: str, begins: float) -> None:
        await asyncio.sleep(begins)
        client = self.client(name)
        async with Producer(client, settings=SETTINGS) as producer, asyncio.TaskGroup() as tasks:
            for number in range(RECORDS):
                value = f"{name}-{number}".encode()
                tasks.create_task(self.settle(value, client, await producer.send("orders", b"key", value)))
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
                await asyncio.sleep(self.rng.uniform(0, 5))

    async def values(self, world: OneShard) -> list[bytes]:
        values, number = [], 1
        while (found := await if_exists(world.ledger.read_records, number)) is not None:
            values, number = values + found[1].value, number + 1
        return values

    def check(self, stored: dict[bytes, list[bytes]]) -> None:
        for ledger, values in stored.items():
            assert len(values) == len(set(values)), "rule 1: once"
            others = {value for value in values if ledger not in self.sent[value][:2]}
            assert others <= self.copied, f"rule 1: {others}"
        for value, (_, named, outcome) in self.sent.items():
            assert outcome == "unknown" or (value in stored[named]) == (outcome == "stored"), f"rule 2: {value!r}"
        assert len(self.sent) == PRODUCERS * RECORDS, "all have an outcome"


@pytest.mark.simulation
@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(10))
async def test_each_record_is_in_the_ledger_that_its_producer_named(seed: int) -> None:
    await TwoLedgers(seed).run()
