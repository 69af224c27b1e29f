"""What happens in a recorded ledger: every kind of entry, in a shard with its leader in virtual time.

The clients are those of users. Only the compaction, between the two acts, is a Spark job on a folder.
"""

import asyncio
from collections.abc import Awaitable, Callable

from controller.settings.sections import IngestSettings
from controller.snapshots.job import take_snapshot
from headgate import Admin, ConsumedRecord, Consumer, ExternalConsumer, Producer
from headgate.client.external_consumer import GrantedSegment
from headgate.model.entries import TopicPolicy
from headgate.model.layout import ShardMap
from headgate.protocol.requests import OpenProducer
from tests.support.worlds.external_topic import SPLIT, layout, seg
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import KEYS, client, reader

YEAR_MS = 365 * 24 * 3_600_000
RETENTION_SECONDS = 100
EXPIRY_SECONDS = 700.0
POISON = KEYS[1]


async def send(world: OneShard, name: str | None, topic: str, count: int = 4) -> None:
    """Store records, half of them with a header. A named producer stores its position in its source with each."""
    async with Producer(client(world, f"producer-{name}"), name=name) as producer:
        if name:
            await producer.open(topic)
        for number in range(count):
            headers = [("kind", b"\xff%d" % number)] if number % 2 else []
            position = {"source_position": b"line %d" % number} if name else {}
            await (await producer.send(topic, KEYS[number], b"%d" % number, headers=headers, **position))


async def handle(consumer: Consumer, count: int, give_up: Callable[..., Awaitable[None]] | None = None) -> None:
    """Acknowledge ``count`` records, but ``give_up`` those of the key `POISON`."""
    for _ in range(count):
        record: ConsumedRecord = await anext(consumer)
        if give_up is None or record.key != POISON:
            await consumer.acknowledge(record)
        else:
            await give_up(record, reason="poison")


async def first_act(world: OneShard) -> None:
    """Write everything but what compaction and time bring."""
    async with world.leader("a"), Admin(client(world, "admin")) as admin:
        for topic in ("orders", "dead", "events", "kept", "short-lived"):
            await admin.create_topic(topic, segments=2 if topic == "orders" else 1)
        await send(world, None, "kept")
        await admin.split("kept", 0)
        await _stream(world, admin)
        await _queue(world, admin)
        await _external_topic(world, admin)
        await _deletions(world, admin)
    await take_snapshot(world.ledger, least_chunks=1, now_ms=world.now_ms())


async def second_act(world: OneShard) -> None:
    """Ten years later: the trimming of what was compacted, what expires, and another shard."""
    world.clock_ahead_ms, world.trim_delay_seconds = 10 * YEAR_MS, 1.0
    world.ingest = IngestSettings(producer_idle_seconds=60)
    async with world.leader("b") as leader:
        leader.learn_shards(ShardMap((1, 2)))
        await take_snapshot(world.ledger, least_chunks=1, now_ms=world.now_ms())
        await asyncio.sleep(EXPIRY_SECONDS)
        await send(world, "importer", "orders")


async def _stream(world: OneShard, admin: Admin) -> None:
    """Two consumers in turn, a parked key, a split, a merge, drained and pruned segments, and a seek."""
    await admin.create_subscription("orders", "billing", start="earliest")
    await admin.set_delivery_policy("orders", "billing", dead_letter_topic="dead")
    await send(world, None, "orders")
    async with reader(world, "c1", balance="load") as consumer:
        await handle(consumer, 4, consumer.park)
        await send(world, "importer", "orders")
        await handle(consumer, 3)
        await admin.resume_key("orders", "billing", POISON)
        await handle(consumer, 2)
        await admin.split("orders", 0)
        described = await admin.describe_topic("orders")
        world.drained_segments = {each.segment: each.next_offset for each in described.segments}
        await asyncio.sleep(30)
        async with reader(world, "c2"):
            await asyncio.sleep(60)
            await admin.merge("orders", 1, 3)
        world.broker.cut("client-c1")
        await asyncio.sleep(30)
        world.broker.heal("client-c1")
        await asyncio.sleep(30)
    await admin.prune_topic("orders")
    await admin.seek("orders", "billing", to="earliest")


async def _queue(world: OneShard, admin: Admin) -> None:
    """Deliveries that begin, fail, and end in the dead-letter topic."""
    await admin.create_subscription("events", "work", type="QUEUE", start="earliest")
    await admin.set_delivery_policy("events", "work", dead_letter_topic="dead", max_deliveries=2)
    await send(world, None, "events")
    async with reader(world, "q", topic="events", subscription="work", type="QUEUE") as consumer:
        await handle(consumer, 5, consumer.negative_acknowledge)
        await asyncio.sleep(20)
    policy = TopicPolicy(max_age_ms=1000 * RETENTION_SECONDS, ignore_subscriptions=True)
    await admin.set_topic_policy("events", policy)


async def _external_topic(world: OneShard, admin: Admin) -> None:
    await admin.import_topic("shards", layout(seg("a", 0, 15)))

    async def read(shard: GrantedSegment) -> None:
        await shard.acknowledge(checkpoint=f"of {shard.label}")
        if shard.label == "a":
            await shard.finish()

    async with ExternalConsumer(client(world, "x"), topic="shards", subscription="s", name="x") as consumer:
        reading = asyncio.create_task(consumer.run(read))
        await admin.import_topic("shards", SPLIT)
        await asyncio.sleep(60)
        reading.cancel()
        await asyncio.wait([reading])


async def _deletions(world: OneShard, admin: Admin) -> None:
    await send(world, "forgotten", "short-lived")
    async with reader(world, "c", topic="short-lived", subscription="s", type="CHECKPOINT") as consumer:
        await anext(consumer)
    await admin.delete_subscription("short-lived", "s", force=True)
    await admin.delete_topic("short-lived", force=True)
    await admin.delete_producer("forgotten")
    async with world.client() as bare:
        await bare.call(OpenProducer, token="never used")
