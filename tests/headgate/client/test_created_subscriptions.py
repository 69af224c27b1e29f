"""Subscriptions that exist before their first consumer: real Producer, Consumer, Admin and leader, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from controller.settings.sections import IngestSettings, RetentionSettings
from headgate.client.admin import Admin, Seen
from headgate.client.consumer import ConsumedRecord, Consumer
from headgate.client.producer import Producer
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, FencedError, RequestRejectedError
from headgate.model.entries import SubscriptionType, TopicPolicy
from headgate.process.background import end_tasks
from headgate.protocol import codec
from headgate.protocol.codec import ChunkAnnouncement, chunk_topic
from headgate.protocol.requests import SegmentImport
from headgate.reading.topic_files import positions_at
from headgate.views.topics import ProducerInfo
from tests.support.waiting import until
from tests.support.worlds.one_shard import CLUSTER, OneShard, now_ms
from tests.support.worlds.one_shard_programs import client, consume, create, orders, produce, reader


async def test_it_starts_at_a_point_in_time():
    async with orders(segments=1, records=30) as (world, admin):
        await asyncio.sleep(5)
        moment = now_ms()
        await produce(world, 20, "second")
        created = await admin.create_subscription("orders", "audit", timestamp_ms=moment)
        assert [(30, 50, 20)] == [
            (each.acknowledged_offset, each.next_offset, each.unacknowledged) for each in created.segments
        ]
        for wrong in (datetime.fromtimestamp(moment / 1000, UTC), str(moment), True, 1.5):
            with pytest.raises(ConfigError, match=r"timestamp_ms=.* has to be an integer, in milliseconds"):
                await admin.seek("orders", "audit", timestamp_ms=wrong)
        with pytest.raises(ConfigError, match="is in the future"):
            await admin.create_subscription("orders", "other", timestamp_ms=now_ms() + 1000)


async def test_a_time_is_looked_up_again_if_a_segment_was_pruned_meanwhile(monkeypatch: pytest.MonkeyPatch):
    async with orders(1, 30, retention=RetentionSettings(checkpoint_retention_seconds=0)) as (_world, admin):
        moment, lookups = now_ms(), []

        async def pruned_after(*args):
            lookups.append(found := await positions_at(*args))
            if len(lookups) <= prunings:
                await admin.split("orders", max(found))
                await admin.prune_topic("orders")
            return found

        monkeypatch.setattr("headgate.client.admin.positions_at", pruned_after)
        prunings = 2
        created = await admin.create_subscription("orders", "audit", timestamp_ms=moment)
        assert [{0}, {1, 2}, {1, 3, 4}] == [set(each) for each in lookups]
        assert [1, 3, 4] == [each.segment for each in created.segments]
        prunings = 99
        with pytest.raises(RequestRejectedError, match="there is no segment"):
            await admin.seek("orders", "audit", timestamp_ms=moment)
        assert len(lookups) == 6


async def test_a_time_in_a_topic_that_is_created_again_meanwhile_moves_no_subscription_of_the_new_one(monkeypatch):
    """Its positions would skip records there."""
    async with orders(segments=1, records=30) as (world, admin):
        await admin.create_subscription("orders", "audit", start="earliest")

        async def created_again_after(*args):
            found = await positions_at(*args)
            await admin.delete_topic("orders")
            await admin.create_topic("orders")
            await produce(world, 30)
            await admin.create_subscription("orders", "audit", start="earliest")
            return found

        await asyncio.sleep(5)
        monkeypatch.setattr("headgate.client.admin.positions_at", created_again_after)
        for change, name in ((admin.seek, "audit"), (admin.create_subscription, "other")):
            with pytest.raises(RequestRejectedError, match="'orders' was deleted and created again: it has id"):
                await change("orders", name, timestamp_ms=now_ms())
        assert [0] == [
            each.acknowledged_offset for each in (await admin.describe_subscription("orders", "audit")).segments
        ]
        monkeypatch.undo()
        present = admin.bound_to(await admin.seen("orders", "audit"))
        for change, name in ((admin.seek, "audit"), (admin.create_subscription, "other"), (present.seek, "audit")):
            with pytest.raises(RequestRejectedError, match="and the request is for id 1"):
                await change("orders", name, timestamp_ms=now_ms(), topic_id=1)


async def test_topics_are_listed_page_by_page():
    async with orders() as (_, admin):
        for name in "dacb":
            await admin.create_topic(name, segments=1024)
        assert [*"abcd", "orders"] == [each.topic for each in await admin.list_topics()]


async def test_a_late_copy_of_a_deletion_deletes_no_topic_that_was_created_since_however_many_commands_followed():
    async with orders() as (world, admin), Admin(client(world, "other")) as other:
        await admin.create_topic("busy")
        await admin.create_subscription("busy", "export", type="QUEUE")
        deletion = asyncio.create_task(other.delete_topic("orders"))
        await until(lambda: "orders" not in world.led.state.topics)
        world.broker.cut("other")  # Its reply is lost, and it repeats the command.
        assert not deletion.done()
        for _ in range(3):  # more than LEAST_REMEMBERED_COMMANDS
            await asyncio.gather(*(admin.seek("busy", "export", to="latest") for _ in range(100)))
        await admin.create_topic("orders")
        world.broker.heal("other")
        await deletion
        assert ["busy", "orders"] == [each.topic for each in await admin.list_topics()]


LISTING = ExternalLayout(segments=[SegmentImport(segment="a")])
CHANGES: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "split": lambda admin: admin.split("orders", 0),
    "merge": lambda admin: admin.merge("orders", 0, 1),
    "policy": lambda admin: admin.set_topic_policy("orders", TopicPolicy(max_segments=4)),
    "prune": lambda admin: admin.prune_topic("orders"),
    "delete": lambda admin: admin.delete_topic("orders", force=True),
    "import": lambda admin: admin.import_topic("orders", LISTING),
    "create subscription": lambda admin: admin.create_subscription("orders", "other"),
    "delete subscription": lambda admin: admin.delete_subscription("orders", "audit", force=True),
    "evict": lambda admin: admin.evict_consumer("orders", "audit", "c"),
    "seek": lambda admin: admin.seek("orders", "audit", to="latest"),
    "seek to a time": lambda admin: admin.seek("orders", "audit", timestamp_ms=now_ms()),
    "order": lambda admin: admin.set_order("orders", "audit", "none"),
    "delivery policy": lambda admin: admin.set_delivery_policy("orders", "audit", max_processing_seconds=60),
    "resume": lambda admin: admin.resume_key("orders", "audit", b"k"),
}
"""Every command about what exists."""


async def test_a_command_about_what_was_seen_changes_no_other_topic_subscription_or_program_of_the_name():
    """Whatever is created, or started, again under the name between."""
    reader = {"topic": "orders", "subscription": "audit", "name": "c"}

    async def state(admin: Admin) -> tuple[object, ...]:
        found = await admin.describe_subscription("orders", "audit")
        names = [each.consumer for each in found.consumers]
        return await admin.describe_topic("orders"), found.seek_generation, found.order, found.policy, names

    async def refused(admin: Admin, seen: Seen, names: Collection[str], text: str) -> None:
        before = await state(admin)
        for name in names:
            with pytest.raises(RequestRejectedError, match=text):
                await CHANGES[name](admin.bound_to(seen))
        assert before == await state(admin)

    async with orders(segments=2) as (world, admin):
        await admin.create_subscription("orders", "audit")
        absent = await admin.seen("orders", "audit", "c")
        async with Consumer(client(world, "1"), **reader):
            await refused(admin, absent, ["evict"], "and the request is for incarnation 0")
            first = await admin.seen("orders", "audit", "c")
        async with Consumer(client(world, "2"), **reader):
            started = rf"was started again: it has incarnation \d+, and the request is for incarnation {first[5]}"
            await refused(admin, first, ["evict"], started)
        await admin.delete_subscription("orders", "audit", force=True)
        await admin.create_subscription("orders", "audit")
        again = r"'{}' .*was deleted and created again: it has id \d+, and the request is for id {}"
        await refused(admin, first, [*CHANGES][7:], again.format("audit", first.subscription_id))
        await admin.delete_topic("orders", force=True)
        await admin.create_topic("orders", 2)
        await admin.create_subscription("orders", "audit")
        await refused(admin, first, CHANGES, again.format("orders", first.topic_id))
        present = admin.bound_to(await admin.seen("orders", "audit"))
        await present.split("orders", 0)
        await present.seek("orders", "audit", to="earliest")
        await present.delete_topic("orders")


async def test_neither_a_producer_nor_a_parked_key_is_given_up_that_was_not_seen():
    async with orders(segments=1) as (world, admin):
        first, *_ = seen = await named(world, admin)
        await admin.delete_producer("import-1", seen=seen)
        again = rf"'import-1' was deleted .*id {(await named(world, admin))[0].producer_id}, .* id {first.producer_id}"
        with pytest.raises(RequestRejectedError, match=again):
            await admin.delete_producer("import-1", seen=seen)
        await admin.delete_producer("import-1")


async def named(world: OneShard, admin: Admin) -> list[ProducerInfo]:
    async with Producer(client(world, "p"), "import-1") as producer:
        await producer.open("orders")
    return await admin.describe_producer("import-1")


async def test_its_type_is_that_of_its_consumers():
    async with orders(segments=1) as (world, admin):
        await admin.create_subscription("orders", "audit", type="queue")
        with pytest.raises(RequestRejectedError, match="is of type QUEUE; register as QUEUE"):
            async with Consumer(client(world, "client-c"), topic="orders", subscription="audit", name="c"):
                pass
        with pytest.raises(RequestRejectedError, match="exists"):
            await admin.create_subscription("orders", "audit", type="queue")
        again = await admin.create_subscription("orders", "audit", type="QUEUE", if_absent=True)
        assert again == replace(await admin.describe_subscription("orders", "audit"), point=None)


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("records", [0, 10], ids=["empty", "with records"])
async def test_the_reply_is_what_a_description_says_right_after(kind: SubscriptionType, start, records: int):
    """At the end of a sealed segment nothing has to be counted: its children are open from the start."""
    async with orders(segments=1, records=records) as (_, admin):
        await admin.split("orders", 0)
        created = await admin.create_subscription("orders", "audit", type=kind, start=start)
        assert created == replace(await admin.describe_subscription("orders", "audit"), point=None)
        await asyncio.sleep(30)
        assert created == replace(await admin.describe_subscription("orders", "audit"), point=None)
        if kind != SubscriptionType.CHECKPOINT:
            await admin.seek("orders", "audit", to="latest")
            moved = await admin.describe_subscription("orders", "audit")
            assert ["drained", "waiting", "waiting"] == [each.status for each in moved.segments]
        waits = (kind, start, records > 0) == (SubscriptionType.STREAM, "earliest", True)
        assert ["blocked" if waits else "waiting"] * 2 == [each.status for each in created.segments[1:]]


async def test_it_can_be_created_again_after_its_deletion_and_is_another_one():
    async with orders(segments=1) as (_, admin):
        first = await admin.create_subscription("orders", "billing")
        await admin.delete_subscription("orders", "billing", force=False)
        second = await admin.create_subscription("orders", "billing")
        assert first.subscription_id != second.subscription_id


# Seeks while consumers run: real Producer, Consumer, Admin and leader, in virtual time.


@asynccontextmanager
async def reading(
    records: int = 0, *, segments: int = 2, **options: Any
) -> AsyncIterator[tuple[OneShard, Consumer, Admin]]:
    """A shard whose topic ``orders`` has ``records``, with a consumer of its subscription and an administrator."""
    async with orders(segments=segments) as (world, _):
        if records:
            await produce(world, records)
        async with reader(world, **options) as consumer, Admin(client(world, "admin")) as admin:
            yield world, consumer, admin


async def take(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[ConsumedRecord]:
    found: list[ConsumedRecord] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            record = await anext(consumer)
            found.append(record)
            if acknowledge:
                await consumer.acknowledge(record)
    return found


def by_key(records: list[ConsumedRecord]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for record in records:
        found.setdefault(record.key, []).append(int(record.value))
    return found


async def test_records_delivered_before_a_seek_cannot_be_acknowledged():
    async with reading(100, segments=1) as (_, consumer, admin):
        before = await take(consumer, 50, acknowledge=False)
        await admin.seek("orders", "billing", to="earliest")
        await asyncio.sleep(0.5)
        await consumer.acknowledge(before[-1])
        await asyncio.sleep(1)
        described = await admin.describe_subscription("orders", "billing")
        assert 1 == consumer.metrics().rejected_acknowledgements

    assert [0] == [segment.acknowledged_offset for segment in described.segments]


async def _until_quiet(consumer: Consumer, seconds: float = 4) -> list[ConsumedRecord]:
    found: list[ConsumedRecord] = []
    while True:
        try:
            async with asyncio.timeout(seconds):
                record = await anext(consumer)
        except TimeoutError:
            return found
        found.append(record)
        await consumer.acknowledge(record)


def _offsets(taken: list[list[ConsumedRecord]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for record in (record for records in taken for record in records):
        found.setdefault(record.segment, set()).add(record.offset)
    return found


async def test_a_consumer_seeks_its_subscription_for_all_its_consumers():
    async with orders(segments=2) as (world, _), reader(world) as consumer, reader(world, "d") as other:
        await asyncio.sleep(1)
        await produce(world, 100)
        read = await asyncio.gather(*(_until_quiet(each) for each in (consumer, other)))
        assert all(read)
        moved = await consumer.seek(to="earliest")
        again = await asyncio.gather(*(_until_quiet(each) for each in (consumer, other)))
        with pytest.raises(ConfigError, match="exactly one"):
            await consumer.seek()

    assert 1 == moved.seek_generation
    assert _offsets(read) == _offsets(again)
    for before, after in zip(read, again, strict=True):
        assert max(record.generation for record in before) < min(record.generation for record in after)


async def test_order_none_releases_children_and_order_strict_revokes_them():
    async with reading(10, segments=1) as (world, consumer, admin):
        await take(consumer, 5)
        await admin.split("orders", 0)
        await asyncio.sleep(0.1)
        assert [0] == consumer.segments
        await admin.set_order("orders", "billing", "none")
        await asyncio.sleep(0.1)
        assert [0, 1, 2] == consumer.segments
        described = await admin.set_order("orders", "billing", "strict")
        assert {1: (0,), 2: (0,)} == {s.segment: s.blocked_by for s in described.segments if s.blocked_by}
        await asyncio.sleep(0.5)
        assert [0] == consumer.segments, "handed back, and nothing was fenced"
        assert 0 == world.registry.get_sample_value("headgate_consumers_removed_total", {"reason": "evicted"})


# Consumers at the end of a shard take small chunks from the leader's announcements, with the real leader of a shard.


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
            asking = asyncio.create_task(consumer.caught_up())
            await until(lambda: TOPIC in consumer._client._watchers)
            await end_tasks(asking)
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
            genuine, heads = world.announced[-1], []
            for number, data in ((1, genuine.object.replace(b"1", b"2")), (1, b""), (1, genuine.object), (-99, b"")):
                forged = msgspec.structs.replace(genuine, number=genuine.number + number, object=data)
                forger.publish(TOPIC, codec.encode(forged))
            consumer._feed.head.advance = heads.append
            await asyncio.sleep(1)
            assert genuine.number + 1 not in heads, "it may exist and not be durable"
            del consumer._feed.head.advance
            await producer.send_and_wait("orders", b"k", b"3")
            await received(consumer, b"3")
    assert 1 == caplog.text.count("chunk.not_authentic")


# Producer, Consumer and Admin with the real leader of a shard, over a fake broker and store, in virtual time.


async def test_reading_until_caught_up_waits_for_segments_of_a_crashed_predecessor_and_for_blocked_children(caplog):
    """It logs each wait once. Both look like a subscription without records: nothing arrives for a minute, and nothing is held."""
    async with orders(segments=1) as (world, _):
        crashed = reader(world, "crashed")
        await crashed.__aenter__()
        await produce(world, 100)
        async with Admin(client(world, "admin")) as admin:
            await admin.split("orders", 0)
        await produce(world, 100, "again")
        world.broker.cut("client-crashed")
        began, found = asyncio.get_running_loop().time(), []
        async with reader(world) as consumer:
            asyncio.get_running_loop().call_later(120, world.drained_segments.update, {0: 100})
            async for record in consumer.until_caught_up():
                found.append(record)
                await consumer.acknowledge(record)
            assert consumer.metrics().acknowledged_records > 0
        assert [100, 100] == [sum((r.segment == 0) is parent for r in found) for parent in (True, False)]
        assert asyncio.get_running_loop().time() - began > 120
        waits = [record.msg.fields for record in caplog.records if str(record.msg).startswith("consumer.waits")]
        assert [(3, 2), (3, 2), (2, 2)] == [(each["unread"], each["blocked"]) for each in waits]
        await crashed._release()


async def test_deleting_a_topic_fences_its_consumers():
    async with orders(records=20) as (world, _), reader(world) as consumer:
        await consume(consumer, {}, 20)
        async with Admin(client(world, "admin")) as admin:
            await admin.delete_topic("orders", force=True)
        with pytest.raises(FencedError, match="topic 'orders' of consumer"):
            async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                await anext(consumer)


async def test_stop_ends_the_iteration_until_everything_is_read():
    async with orders(segments=1, records=3) as (world, _), reader(world, "c") as consumer:
        async for _ in consumer.until_caught_up():
            consumer.stop()
