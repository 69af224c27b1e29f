"""`headgate subscription dead-letters`: which are open, and that each is sent back once, with the real leader of a shard.

Over a fake broker and store, in virtual time.
"""

from contextlib import asynccontextmanager

import pytest

from headgate.cli.context import CommandContext
from headgate.cli.subscriptions.dead_letters import find_open, replay_open
from headgate.client.admin import Admin
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.topic_source import open_topic_source
from headgate.errors import DeliveryUnknownError, HeadgateError
from tests.headgate.cli.conftest import Invoke
from tests.headgate.client.test_redelivery import QUEUE, jobs
from tests.support.fakes.cli_client import FakeCluster, subscription, topic
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, produce, reader


class WorldContext(CommandContext):
    """Commands speak to the leader of a world."""

    def __init__(self, world: OneShard) -> None:
        super().__init__()
        self.world = world
        self.stored_before_failure: int | None = None
        """After so many records, the replay is lost; None: it is not."""

    def open_admin(self):
        return Admin(client(self.world, "operator"))

    def open_topic(self, topic):
        return open_topic_source(client(self.world, "operator-reader"), topic)

    @asynccontextmanager
    async def open_producer(self, *, name, copies=False):
        settings = ProducerSettings(reserved_headers=copies)
        async with Producer(client(self.world, "operator-producer"), name, settings) as producer:
            send = producer.send

            async def lose(*words, **options):
                if self.stored_before_failure == 0:
                    raise DeliveryUnknownError("the network ended")
                if self.stored_before_failure is not None:
                    self.stored_before_failure -= 1
                return await send(*words, **options)

            producer.send = lose
            yield producer


async def die(world: OneShard, records: int) -> None:
    """Make dead letters of new records of the queue."""
    await produce(world, records)
    async with reader(world, **QUEUE) as consumer:
        while True:
            found = await consumer.get_many(timeout_seconds=30)
            for record in found:
                await consumer.negative_acknowledge(record, reason=f"no order {record.value.decode()}")
            await consumer.flush()
            if not found:
                return


async def values(world: OneShard, name: str) -> list[bytes]:
    async with reader(world, "clerk", topic=name, subscription="clerks", type="CHECKPOINT") as consumer:
        return [each.value async for each in consumer.until_caught_up()]


@pytest.mark.looptime
@pytest.mark.parametrize("stored", [0, 1, 2])
async def test_each_dead_letter_is_sent_back_once_although_a_replay_is_interrupted(stored: int):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 3)
        context = WorldContext(world)
        found = await find_open(context, "orders", "jobs")
        assert [(f"key-{n}", n, 1, f"no order {n}") for n in range(3)] == [
            (each["key"], each["source_offset"], each["deliveries"], each["reason"]) for each in found.letters
        ]
        context.stored_before_failure = stored
        with pytest.raises(HeadgateError, match="the network ended"):
            await replay_open(context, found)
        context.stored_before_failure = None

        again = await find_open(context, "orders", "jobs")
        assert (3, 3 - stored) == (len(again.letters), await replay_open(context, again))

        assert [] == (await find_open(context, "orders", "jobs")).letters
        assert [b"0", b"1", b"2"] * 2 == await values(world, "orders")
        await die(world, 1)
        newest = await find_open(context, "orders", "jobs")
        assert 4 == len(newest.letters), "the three that were sent back died again, and a new one"
        await context.answer(newest.close)
        assert [] == (await find_open(context, "orders", "jobs")).letters
        assert 7 == len(await values(world, "dead"))


@pytest.mark.looptime
@pytest.mark.parametrize("deleted", ["subscription", "topic"])
async def test_what_an_earlier_subscription_or_topic_of_the_name_left_is_not_sent_back(deleted: str):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, admin):
        await die(world, 2)
        if deleted == "topic":
            await admin.delete_topic("orders", force=True)
            await admin.create_topic("orders")
        else:
            await admin.delete_subscription("orders", "jobs", force=True)
        await admin.create_subscription("orders", "jobs", type="QUEUE")
        await admin.set_delivery_policy("orders", "jobs", max_deliveries=1, dead_letter_topic="dead")

        found = await find_open(WorldContext(world), "orders", "jobs")
        assert ([], 0) == (found.letters, await replay_open(WorldContext(world), found))


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--replay", "--drop"), 2, "give --replay or --drop, not both"),
        (("--drop",), 2, "there is no terminal to ask: add --yes"),
        ((), 1, "subscription jobs of orders has no dead-letter topic: headgate subscription set --dead-letter"),
    ],
)
def test_a_wrong_use_is_refused(words, code: int, reason: str, invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.topics["orders"] = topic("orders")
    cluster.subscriptions = [subscription("orders", "jobs")]
    result = invoke("subscription", "dead-letters", "orders", "jobs", *words)
    assert (code, True) == (result.exit_code, reason in result.stderr), result.stderr
