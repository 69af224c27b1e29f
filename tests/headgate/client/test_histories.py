"""Consumers, and their positions, whose ledger or topic is another one than they remember; with a real leader."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from controller.settings.sections import RetentionSettings
from controller.snapshots.restore import catch_up
from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.errors import LedgerError, OtherHistoryError, PositionOutOfRangeError, RequestRejectedError
from headgate.ledger.objects import chunk_path
from headgate.model.identifiers import Offset, SegmentId
from headgate.process.background import end_tasks
from headgate.protocol.request_fields import Behind
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import KEYS, client, create, orders, produce, reader


async def described(world: OneShard):
    async with Admin(client(world, "admin")) as admin:
        return await admin.describe_subscription("orders", "billing")


async def read_all(consumer: Consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]


@pytest.mark.parametrize("new_records", [0, 40])
async def test_positions_from_before_a_restore_of_an_older_ledger_are_refused(new_records: int):
    """Waiting there would skip the records that get these offsets next, and so would going on behind them."""
    point = {"subscription": "point", "type": "CHECKPOINT"}
    async with orders(segments=1, records=20) as (world, _):
        async with reader(world):
            pass
        before = await described(world)
        backup = dict(world.store.objects)
        await produce(world, 30)
        async with reader(world, "p", **point) as old:
            assert 50 == len([await anext(old) for _ in range(50)])
            positions = old.positions
        exported = await described(world)
        async with Admin(client(world, "admin")) as admin:
            await admin.seek("orders", "billing", positions={0: 20}, point=exported.point)

    restored = OneShard()
    restored.store.objects.update(backup)
    async with restored.leader():
        await produce(restored, new_records)
        with pytest.raises(
            OtherHistoryError,
            match=r"an older ledger was put back.* Daemon '.*' leads shard 0; this program reads .*and the daemons say",
        ):
            async with reader(restored, "p", **point, positions=positions):
                pass
        async with Admin(client(restored, "admin")) as admin:
            assert ["billing"] == [each.subscription for each in await admin.list_subscriptions("orders")]
            with pytest.raises(RequestRejectedError, match="does not have: an older ledger was put back"):
                await admin.seek("orders", "billing", positions={0: 20}, point=exported.point)
            await admin.seek("orders", "billing", positions={0: 20}, point=before.point)
        async with reader(restored, "p", **point) as new:
            assert list(range(20 + new_records)) == [(await anext(new)).offset for _ in range(20 + new_records)]


async def test_positions_of_a_deleted_topic_are_refused_by_the_one_that_was_created_again():
    point = {"subscription": "point", "type": "CHECKPOINT"}
    async with orders(segments=1, records=10) as (world, admin):
        async with reader(world, "p", **point) as old:
            assert 10 == len([await anext(old) for _ in range(10)])
            positions = old.positions
        await admin.delete_topic("orders")
        await admin.create_topic("orders")
        await produce(world, 20, "again")
        with pytest.raises(
            PositionOutOfRangeError, match=rf"with id {old.topic_id}, which was deleted: the present topic has id \d+"
        ):
            async with reader(world, "p", **point, positions=positions):
                pass
        async with reader(world, "p", **point) as new:
            assert list(range(20)) == [(await anext(new)).offset for _ in range(20)]
            assert new.topic_id != old.topic_id


@pytest.mark.parametrize(("read", "behind"), [(10, "error"), (60, "error"), (10, "continue")])
async def test_a_segment_that_was_pruned_before_its_end_is_an_error_or_passed_over(read: int, behind: Behind):
    """Now, and after a restart."""
    point = {"subscription": "point", "type": "CHECKPOINT"}
    gone = "segment 0 of topic 'orders' was pruned before it was read: its records 10 to 59 are gone"
    async with (
        orders(segments=1, records=60, retention=RetentionSettings(checkpoint_retention_seconds=0)) as (world, admin),
        AsyncExitStack() as stack,
    ):
        old = await stack.enter_async_context(reader(world, "p", **point, behind=behind))
        assert list(range(read)) == [(await anext(old)).offset for _ in range(read)]
        positions = old.positions
        await admin.split("orders", 0)
        assert (0,) == (await admin.prune_topic("orders")).segments
        assert {0: 60} == await admin.pruned_ends("orders", [0, 1, 7])
        await produce(world, 20, "again")
        if read == 60 or behind == "continue":
            assert 20 == len([await anext(old) for _ in range(20)])
        else:
            with pytest.raises(PositionOutOfRangeError, match=gone):
                await asyncio.wait_for(read_all(old, 21), 60)
            with pytest.raises(PositionOutOfRangeError, match=gone):
                await stack.enter_async_context(reader(world, "p", **point, positions=positions))
        async with reader(world, "p2", **point, positions=positions, behind="continue") as new:
            await old.__aexit__(None, None, None)
            assert 20 == len([await anext(new) for _ in range(20)])
        stack.pop_all()


async def test_segments_that_came_and_went_while_nothing_read_are_an_error_or_passed_over():
    """The positions name none of them, and are at the end of the only segment that they name."""
    point = {"subscription": "point", "type": "CHECKPOINT"}
    async with orders(1, 60, retention=RetentionSettings(checkpoint_retention_seconds=0)) as (world, admin):
        async with reader(world, "p", **point) as old:
            assert list(range(60)) == [(await anext(old)).offset for _ in range(60)]
            positions = old.positions
        for segments in ((0,), (1, 2)):
            for segment in segments:
                await admin.split("orders", segment)
            await produce(world, 20, "again")
        assert (0, 1, 2) == (await admin.prune_topic("orders")).segments
        with pytest.raises(PositionOutOfRangeError, match="segment 1 of topic 'orders' was created and pruned since"):
            async with reader(world, "p", **point, positions=positions):
                pass
        async with reader(world, "p", **point, positions=positions, behind="continue") as new:
            assert 20 == len([await anext(new) for _ in range(20)])
            async with reader(world, "p2", **point, positions=positions):
                pass  # Another consumer of the subscription may have read them.


async def test_a_checkpoint_consumer_that_ran_through_a_restore_ends_with_an_error():
    world = OneShard()
    async with AsyncExitStack() as stack:
        async with world.leader():
            await create(world, segments=1)
            point = reader(world, "p", subscription="point", type="CHECKPOINT")
            await stack.enter_async_context(point)
            backup = dict(world.store.objects)
            await produce(world, 5)
            for _ in range(5):
                await anext(point)
        world.store.objects.clear()
        world.store.objects.update(backup)
        # Another term than the consumer's, as an older backup has.
        async with world.leader("b"):
            pass
        async with world.leader("c"):
            with pytest.raises(OtherHistoryError, match="a CHECKPOINT consumer without its positions"):
                await asyncio.wait_for(anext(point), 60)
            await stack.aclose()


@pytest.mark.parametrize("again", ["topic", "subscription", "ledger"])
async def test_a_consumer_moves_no_other_subscription_than_that_of_the_records_which_it_has_read(again: str):
    world = OneShard()
    async with AsyncExitStack() as stack:
        async with world.leader(), Admin(client(world, "admin")) as admin:
            await create(world, segments=1)
            await admin.create_subscription("orders", "billing")
            backup = dict(world.store.objects)
            await produce(world, 5)
            consumer = await stack.enter_async_context(reader(world))
            await read_all(consumer, 5)
            if again == "topic":
                await admin.delete_topic("orders", force=True)
                await create(world, segments=1)
            elif again == "subscription":
                await admin.delete_subscription("orders", "billing", force=True)
            else:
                world.store.objects.clear()
                world.store.objects.update(backup)
        async with world.leader("b"), Admin(client(world, "admin")) as admin:
            await admin.create_subscription("orders", "billing", if_absent=True)
            await produce(world, 10, "again")
            before = await described(world)
            with pytest.raises(RequestRejectedError, match=r"created again|an older ledger was put back"):
                await consumer.seek(positions={SegmentId(0): Offset(5)})
            assert before.segments == (await described(world)).segments


async def test_a_chunk_that_a_leader_has_stated_and_that_stays_missing_is_an_error():
    """The consumer's store has lost it, or is not mounted. Before, the consumer waited without end."""
    world = OneShard()
    async with world.leader() as leader:
        await create(world, segments=1)
        await produce(world, 10)
        path = chunk_path(0, leader.commit.durable)
        await produce(world, 10, "again")
        mine = client(world, "client-c")
        mine._store = FakeStore(objects={each: data for each, data in world.store.objects.items() if each != path})
        async with Consumer(mine, topic="orders", subscription="billing", start="earliest") as consumer:
            with pytest.raises(LedgerError, match=f"{path}.*it has been missing for 60 s, and the leader says"):
                await asyncio.wait_for(read_all(consumer, 20), 100)


class PutBack:
    """A shard whose ledger is put back to older states while two consumers run. Each record has a value of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = OneShard()
        self.backups: list[dict[str, bytes]] = []
        self.delivered: set[bytes] = set()
        self.values = 0
        self.restarts = 0

    async def consume(self, name: str) -> None:
        """Read and acknowledge; start again after each loss of the history."""
        while True:
            try:
                async with reader(self.world, name) as consumer:
                    while True:
                        record = await anext(consumer)
                        self.delivered.add(record.value)
                        await consumer.acknowledge(record)
                        if self.rng.random() < 0.2:
                            await asyncio.sleep(self.rng.random())
            except (OtherHistoryError, LedgerError):
                # LedgerError: it reached the offsets of the present ledger before it heard of its leader.
                self.restarts += 1

    async def produce(self) -> None:
        async with Producer(client(self.world, f"producer-{self.values}")) as producer:
            for _ in range(self.rng.randrange(40)):
                self.values += 1
                await (await producer.send("orders", self.rng.choice(KEYS), b"%d" % self.values))

    def put_back(self, *, oldest: bool) -> None:
        """Make a backup, and perhaps put one back; ``oldest``: certainly the first one, which has no records."""
        objects = self.world.store.objects
        self.backups.append(dict(objects))
        if oldest or self.rng.random() < 0.6:
            chosen = self.backups[0] if oldest else self.rng.choice(self.backups)
            objects.clear()
            objects.update(chosen)

    async def unseen(self) -> list[bytes]:
        """Return the records of the present ledger that are acknowledged, and that no consumer has delivered."""
        state, _ = await catch_up(self.world.ledger, ShardState(0))
        (subscription,) = state.subscriptions.values()
        found = []
        for number in range(1, state.chunk + 1):
            _, records = await self.world.ledger.read_records(number)
            for segment, offset, value in zip(records.segment, records.offset, records.value, strict=True):
                if offset < subscription.position(segment) and value not in self.delivered:
                    found.append(value)
        return found


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
async def test_no_record_is_acknowledged_unseen_however_often_an_older_ledger_is_put_back(seed: int):
    story = PutBack(seed)
    async with story.world.leader():
        await create(story.world)
        tasks = [asyncio.create_task(story.consume(name)) for name in ("a", "b")]
        await asyncio.sleep(1)
    for number in range(8):
        story.put_back(oldest=number == 7)
        async with story.world.leader():
            await asyncio.sleep(story.rng.choice((0, 1)))
            await story.produce()
            await asyncio.sleep(story.rng.uniform(0, 12))
        assert [] == await story.unseen()
        for task in tasks:
            assert not task.done(), f"a consumer failed for another reason: {task.exception()!r}"
    async with story.world.leader():
        await asyncio.sleep(60)
        await end_tasks(*tasks)
    assert [] == await story.unseen()
    assert story.restarts
