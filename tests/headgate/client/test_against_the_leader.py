"""Producer, Consumer and Admin with the real leader of a shard, over a fake broker and store, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import AsyncExitStack

import pytest

from controller.settings.load import RetentionSettings
from controller.state.shard_state import ShardState
from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.client.producer_settings import ProducerSettings
from headgate.errors import FencedError, OtherHistoryError, PositionOutOfRangeError, RequestRejectedError
from headgate.model.position_token import without_segments
from headgate.protocol import messages as m
from tests.support.worlds.one_shard import CLUSTER, OneShard, now_ms

pytestmark = pytest.mark.looptime

KEYS = [f"key-{n}".encode() for n in range(10)]
SMALL = ProducerSettings(batch_bytes=200)


def client(world: OneShard, client_id: str, user: str | None = None) -> Client:
    description = m.ClusterDescription(protocol=m.PROTOCOL_VERSION, shards=1, ledger_url="file:///x")
    world.broker.retained[m.cluster_topic(CLUSTER)] = m.encode(description)
    # Two programs never use the same tokens.
    seeds = world.__dict__.setdefault("seeds", itertools.count(1))
    return Client(
        transport=world.broker.transport(client_id, will=Client.will(CLUSTER, client_id, user)),
        store=world.store,
        cluster=CLUSTER,
        client_id=client_id,
        user=user,
        now_ms=now_ms,
        rng=random.Random(next(seeds)),
    )


async def produce(world: OneShard, count: int, client_id: str = "producer", pause_seconds: float = 0.0) -> None:
    async with Producer(client(world, client_id), settings=SMALL) as producer:
        deliveries = []
        for n in range(count):
            deliveries.append(await producer.send("orders", KEYS[n % len(KEYS)], str(n).encode()))
            await asyncio.sleep(pause_seconds)
        for delivery in deliveries:
            await delivery


async def consume(consumer: Consumer, found: dict[bytes, list[int]], count: int, timeout_seconds: float = 120) -> None:
    """Read and acknowledge until ``found`` has ``count`` records, without repeated deliveries."""
    async with asyncio.timeout(timeout_seconds):
        while sum(map(len, found.values())) < count:
            record = await anext(consumer)
            values = found.setdefault(record.key, [])
            if int(record.value) not in values:
                values.append(int(record.value))
            await consumer.acknowledge(record)


def in_order(count: int) -> dict[bytes, list[int]]:
    return {key: list(range(index, count, len(KEYS))) for index, key in enumerate(KEYS)}


def reader(world: OneShard, name: str = "c", **more) -> Consumer:
    settings = {"topic": "orders", "subscription": "billing", "name": name, "start": "earliest", **more}
    return Consumer(client(world, f"client-{name}"), **settings)


async def create(world: OneShard, segments: int = 2) -> None:
    async with Admin(client(world, "admin")) as admin:
        await admin.create_topic("orders", segments=segments)


async def test_produced_records_are_consumed_in_order_and_acknowledged():
    world = OneShard()
    async with world.leader():
        await create(world)
        await produce(world, 200)
        found: dict[bytes, list[int]] = {}
        async with reader(world) as consumer:
            await consume(consumer, found, 200)
            await asyncio.sleep(1)
            assert await consumer.caught_up()
        async with Admin(client(world, "admin")) as admin:
            described = await admin.describe_subscription("orders", "billing")
    assert in_order(200) == found
    assert all(s.acknowledged_offset == s.next_offset for s in described.segments)
    assert 0 == consumer.rejected


async def test_an_unknown_topic_fails_only_its_own_records():
    world = OneShard()
    async with world.leader():
        await create(world)
        async with Producer(client(world, "producer"), settings=SMALL) as producer:
            good = await producer.send("orders", b"key", b"0")
            bad = await producer.send("nothing", b"key", b"0")
            behind = await producer.send("orders", b"key", b"1")
            with pytest.raises(RequestRejectedError, match="there is no topic 'nothing'"):
                await bad
            assert (await good).segment == (await behind).segment
            assert (await good).offset + 1 == (await behind).offset


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.simulation) for seed in range(2, 8))])
async def test_records_are_stored_exactly_once_despite_losses_doubles_and_leader_changes(seed):
    world = OneShard()
    world.broker.rng.seed(seed)
    async with world.leader("a"):
        await create(world)
    world.broker.faults.loss = 0.03
    world.broker.faults.duplication = 0.05
    world.broker.faults.reorder = seed % 2 == 1
    found: dict[bytes, list[int]] = {}
    async with world.leader("b"):
        producing = asyncio.create_task(produce(world, 150, pause_seconds=0.04))
        consumer = reader(world)
        await consumer.__aenter__()
        consuming = asyncio.create_task(consume(consumer, found, 150))
        await asyncio.sleep(2)
    async with world.leader("c"):
        await asyncio.sleep(2)
        world.broker.drop("producer")
        await asyncio.sleep(1)
        world.broker.drop("client-c")
        await producing
        await consuming
        world.broker.faults.loss = world.broker.faults.duplication = 0.0
        await consumer.__aexit__(None, None, None)
    assert in_order(150) == found
    state = await _restored(world)
    assert 150 == sum(tail.next_offset for tail in state.topics["orders"].tails.values())


async def _restored(world: OneShard):
    state = ShardState(0)
    while (found := await world.ledger.read_or_none(state.chunk + 1)) is not None:
        state.apply_all(found.entries, chunk=found.header.number, at_ms=found.header.at_ms)
    return state


async def test_a_second_consumer_gets_half_of_the_segments_and_keys_stay_in_order():
    world = OneShard()
    found: dict[bytes, list[int]] = {}
    async with world.leader():
        await create(world, segments=4)
        producing = asyncio.create_task(produce(world, 200, pause_seconds=0.02))
        async with reader(world, "c1") as first:
            one = asyncio.create_task(consume(first, found, 200))
            await asyncio.sleep(1)
            assert 4 == len(first.segments)
            async with reader(world, "c2") as second:
                two = asyncio.create_task(consume(second, found, 200))
                await asyncio.sleep(1)
                assert (2, 2) == (len(first.segments), len(second.segments))
                await producing
                done, pending = await asyncio.wait([one, two], return_when=asyncio.FIRST_COMPLETED)
                for task in pending:
                    task.cancel()
                await asyncio.wait([one, two])
                assert all(task.cancelled() or task.exception() is None for task in done)
    assert in_order(200) == found


async def test_children_of_a_split_are_read_after_their_parent():
    world = OneShard()
    found: dict[bytes, list[int]] = {}
    async with world.leader():
        await create(world, segments=1)
        await produce(world, 100)
        async with Admin(client(world, "admin")) as admin:
            await admin.split("orders", 0)
            await produce(world, 100, "again")
            async with reader(world) as consumer:
                consuming = asyncio.create_task(consume(consumer, found, 100))
                await consuming
                assert [0] == consumer.segments
                assert not await consumer.caught_up(), "the children are blocked"
                world.drained_segments = {0: 100}
                later: dict[bytes, list[int]] = {}
                await consume(consumer, later, 100)
                assert [1, 2] == consumer.segments
                await asyncio.sleep(2)
                assert await consumer.caught_up()
    assert in_order(100) == found == later


async def test_an_explanation_names_why_drain_checks_are_not_answered():
    world = OneShard()
    world.drain_problem = "the Spark process ended with code 1; next start in 8 s"
    async with world.leader():
        await create(world, segments=1)
        await produce(world, 1)
        async with Admin(client(world, "admin")) as admin, reader(world):
            await admin.split("orders", 0)
            explained = await admin.explain("orders", "billing")
    assert explained.summary[-1].startswith(f"Drain checks are not answered: {world.drain_problem}. ")


async def test_a_named_producer_resumes_at_its_committed_position_and_fences_its_predecessor():
    world = OneShard()
    async with world.leader():
        await create(world)
        async with Producer(client(world, "first"), name="loader") as first:
            await first.open("orders")
            delivery = await first.send("orders", b"key", b"0", source_position=b"line 1")
            await delivery
            async with Producer(client(world, "second"), name="loader") as second:
                await second.open("orders")
                assert b"line 1" == second.source_position
                with pytest.raises(RequestRejectedError) as caught:
                    await (await first.send("orders", b"key", b"1", source_position=b"line 2"))
                assert "fenced" == caught.value.verdict


async def test_queue_and_checkpoint_read_everything():
    world = OneShard()
    async with world.leader():
        await create(world)
        await produce(world, 100)
        async with reader(world, "q", subscription="queue", type="QUEUE") as queue:
            found: dict[bytes, list[int]] = {}
            await consume(queue, found, 100)
            assert in_order(100) == found
        async with reader(world, "p", subscription="point", type="CHECKPOINT") as point:
            half = [await anext(point) for _ in range(50)]
            positions = point.positions
        resumed = {"subscription": "point", "type": "CHECKPOINT", "positions": positions}
        async with reader(world, "p", **resumed) as point:
            rest = [await anext(point) for _ in range(50)]
            await asyncio.sleep(0.1)
            assert await point.caught_up()
    assert 100 == len({(record.segment, record.offset) for record in half + rest})


@pytest.mark.parametrize("new_records", [0, 40])
async def test_positions_from_before_a_restore_of_an_older_ledger_are_refused(new_records: int):
    """Waiting there would skip the records that get these offsets next, and so would going on behind them."""
    world = OneShard()
    point = {"subscription": "point", "type": "CHECKPOINT"}
    async with world.leader():
        await create(world, segments=1)
        await produce(world, 20)
        backup = dict(world.store.objects)
        await produce(world, 30)
        async with reader(world, "p", **point) as old:
            assert 50 == len([await anext(old) for _ in range(50)])
            positions = old.positions

    restored = OneShard()
    restored.store.objects.update(backup)
    async with restored.leader():
        await produce(restored, new_records)
        with pytest.raises(OtherHistoryError, match="an older ledger was put back"):
            async with reader(restored, "p", **point, positions=positions):
                pass
        async with Admin(client(restored, "admin")) as admin:
            assert [] == await admin.list_subscriptions("orders"), "a refused consumer joins nothing"
        async with reader(restored, "p", **point) as new:
            assert list(range(20 + new_records)) == [(await anext(new)).offset for _ in range(20 + new_records)]


async def test_positions_of_a_deleted_topic_are_refused_by_the_one_that_was_created_again():
    world = OneShard()
    point = {"subscription": "point", "type": "CHECKPOINT"}
    async with world.leader(), Admin(client(world, "admin")) as admin:
        await create(world, segments=1)
        await produce(world, 10)
        async with reader(world, "p", **point) as old:
            assert 10 == len([await anext(old) for _ in range(10)])
            positions = old.positions
        await admin.delete_topic("orders")
        await admin.create_topic("orders")
        await produce(world, 20, "again")
        with pytest.raises(PositionOutOfRangeError, match="with id 1, which was deleted: the present topic has id 3"):
            async with reader(world, "p", **point, positions=positions):
                pass
        async with reader(world, "p", **point) as new:
            assert list(range(20)) == [(await anext(new)).offset for _ in range(20)]


@pytest.mark.parametrize("read", [10, 60])
async def test_a_segment_that_was_pruned_before_its_end_is_an_error_now_and_after_a_restart(read: int):
    world = OneShard(retention=RetentionSettings(checkpoint_retention_seconds=0))
    point = {"subscription": "point", "type": "CHECKPOINT"}
    gone = "segment 0 of topic 'orders' was pruned before it was read: its records 10 to 59 are gone"
    async with world.leader(), Admin(client(world, "admin")) as admin, AsyncExitStack() as stack:
        await create(world, segments=1)
        await produce(world, 60)
        old = await stack.enter_async_context(reader(world, "p", **point))
        assert list(range(read)) == [(await anext(old)).offset for _ in range(read)]
        positions = old.positions
        await admin.split("orders", 0)
        assert (0,) == (await admin.prune_topic("orders")).segments
        await produce(world, 20, "again")
        if read == 60:
            assert 20 == len([await anext(old) for _ in range(20)])
        else:
            with pytest.raises(PositionOutOfRangeError, match=gone):
                await asyncio.wait_for(read_all(old, 21), 60)
            with pytest.raises(PositionOutOfRangeError, match=gone):
                await stack.enter_async_context(reader(world, "p", **point, positions=positions))
            positions = without_segments(positions, [0])
        async with reader(world, "p2", **point, positions=positions) as new:
            await old.__aexit__(None, None, None)
            assert 20 == len([await anext(new) for _ in range(20)])
        stack.pop_all()


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
            with pytest.raises(OtherHistoryError, match="Start it without its positions"):
                await asyncio.wait_for(anext(point), 60)
            await stack.aclose()


async def delete(world: OneShard, *, force: bool = True) -> None:
    async with Admin(client(world, "admin")) as admin:
        await admin.delete_subscription("orders", "billing", force=force)


async def test_deleting_a_subscription_fences_its_consumers_and_does_not_recreate_it():
    world = OneShard()
    registrations: list[bytes] = []

    def spy(message) -> None:
        if "/requests/" in message.topic and b"\xa8register" in message.payload:
            registrations.append(message.payload)

    async with world.leader() as leader:
        await create(world)
        await produce(world, 20)
        world.broker.spies.append(spy)
        async with reader(world) as consumer:
            await consume(consumer, {}, 20)
            await delete(world)
            with pytest.raises(FencedError, match="was deleted; restart the program to create a new one"):
                async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                    await anext(consumer)
        # A broker may deliver late copies of all that it ever sent: here of the first registration, which names no
        # subscription, and of the one that was rejected.
        world.broker.spies.remove(spy)
        assert len(registrations) == 2
        async with world.client("late") as late:
            for payload in registrations:
                late.send_raw(payload)
                await asyncio.sleep(1)
        assert leader.state.topics["orders"].subscriptions == {}
    assert world.registry.get_sample_value("headgate_consumers_removed_total", {"reason": "subscription_deleted"}) == 1


async def test_deleting_a_topic_fences_its_consumers():
    world = OneShard()
    async with world.leader():
        await create(world)
        await produce(world, 20)
        async with reader(world) as consumer:
            await consume(consumer, {}, 20)
            async with Admin(client(world, "admin")) as admin:
                await admin.delete_topic("orders", force=True)
            with pytest.raises(FencedError, match="topic 'orders' of consumer"):
                async with asyncio.timeout(1):  # far below a heartbeat, so a push did it
                    await anext(consumer)


async def test_a_replaced_consumer_learns_which_client_has_its_name():
    world = OneShard()
    async with world.leader():
        await create(world)
        async with reader(world) as consumer:
            await asyncio.sleep(1)
            async with Consumer(client(world, "newer"), topic="orders", subscription="billing", name=consumer.name):
                with pytest.raises(FencedError, match="at client 'anonymous/newer': stop this one"):
                    async with asyncio.timeout(1):
                        await anext(consumer)


async def test_a_consumer_of_a_forgotten_subscription_does_not_recreate_it():
    """The shard has forgotten the subscription; the consumer's registration names its id."""
    world = OneShard()
    async with world.leader() as leader:
        await create(world)
        async with reader(world) as consumer:
            world.broker.cut("client-c")
            await asyncio.sleep(100)
            await delete(world)
            assert leader.state.deleted_members.of("orders", "billing") == []
            world.broker.heal("client-c")
            with pytest.raises(FencedError):
                async with asyncio.timeout(120):
                    await anext(consumer)
        assert leader.state.topics["orders"].subscriptions == {}


async def test_a_restarted_program_creates_a_new_subscription():
    world = OneShard()
    async with world.leader():
        await create(world)
        await produce(world, 20)
        for _ in range(2):
            found: dict[bytes, list[int]] = {}
            async with reader(world) as consumer:
                await consume(consumer, found, 20)
            assert in_order(20) == found, "from the beginning, the second time too"
            await delete(world, force=False)


async def test_lists_of_any_length_arrive_in_pages():
    """Each topic of 1024 segments, subscription and backlog takes a tenth of a page or more."""
    world = OneShard()
    names = [f"topic-{n:02}" for n in range(12)]
    async with world.leader(), Admin(client(world, "admin")) as admin, client(world, "raw") as raw:
        for name in names:
            await admin.create_topic(name, segments=1024)
            register = m.RegisterConsumer(
                topic=name, subscription="s", consumer="c", incarnation=1, subscription_type="STREAM"
            )
            await raw.request(0, lambda register=register: register)

        assert [each.topic for each in await admin.list_topics()] == names
        assert [each.topic for each in await admin.list_subscriptions()] == names
        assert [each.topic for each in await admin.backlog()] == names
        assert [len(each.segments) for each in await admin.list_subscriptions()] == [1024] * len(names)
        for request in (m.ListTopics(), m.ListSubscriptions(), m.DescribeBacklog()):
            first = (await raw.request(0, lambda request=request: request)).body
            assert isinstance(first, m.PageReply)
            assert first.next is not None, "one page does not hold everything"
            assert len(m.encode(first)) < 512 * 1024


@pytest.mark.parametrize("lost", [20, 40])
async def test_a_consumer_of_a_lost_history_fails_and_its_next_start_misses_nothing(lost: int):
    """A backup with 10 records is put back while it runs: 25 new records take the offsets of lost ones.

    The term that writes them has the leader epoch of a lost term.
    """
    world = OneShard()
    found: dict[bytes, list[int]] = {}
    async with AsyncExitStack() as stack:
        async with world.leader():
            await create(world, segments=1)
            await produce(world, 10)
            consumer = await stack.enter_async_context(reader(world))
            await consume(consumer, found, 10)
            await asyncio.sleep(1)
        backup = dict(world.store.objects)
        async with world.leader():
            await produce(world, 10 + lost)
            await consume(consumer, found, 10 + lost)
            await asyncio.sleep(1)
        world.store.objects.clear()
        world.store.objects.update(backup)
        async with world.leader() as leader:
            assert 2 == leader.leader_epoch
            await produce(world, 25)
            with pytest.raises(
                OtherHistoryError, match="is not in the ledger of shard 0: an older ledger was put back"
            ):
                await consume(consumer, found, 100)
            assert {10} == {each.acknowledged_offset for each in (await described(world)).segments}
            again: dict[bytes, list[int]] = {}
            async with reader(world) as restarted:
                await consume(restarted, again, 25)
    assert in_order(25) == again


async def described(world: OneShard):
    async with Admin(client(world, "admin")) as admin:
        return await admin.describe_subscription("orders", "billing")


async def read_all(consumer: Consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]
