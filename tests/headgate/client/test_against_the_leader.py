"""Producer, Consumer and Admin with the real leader of a shard, over a fake broker and store, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.errors import FencedError, RequestRejectedError
from headgate.protocol import messages as m
from shard.state.shard_state import ShardState
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import SMALL, client, consume, create, in_order, produce, reader

pytestmark = pytest.mark.looptime


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


async def test_reading_until_caught_up_waits_for_segments_of_a_crashed_predecessor_and_for_blocked_children():
    """Both look like a subscription without records: nothing arrives for a minute, and nothing is held."""
    world = OneShard()
    async with world.leader():
        await create(world, segments=1)
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
            assert consumer.acknowledged > 0
        assert [100, 100] == [sum((r.segment == 0) is parent for r in found) for parent in (True, False)]
        assert asyncio.get_running_loop().time() - began > 120
        await crashed._release()


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
