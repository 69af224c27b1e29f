"""What is followed of plain devices: switched off and on under a leader, nothing that they have a PUBACK for is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from controller.devices.subscriptions import SENTINEL_INTERVAL_SECONDS
from controller.leader.leader import ShardLeader
from controller.settings.load import IngestSettings
from headgate.protocol import messages as m
from tests.support.device_broker import FakeDeviceBroker, FakeDeviceSession
from tests.support.device_environment import SESSION, Devices, created, devices_connected
from tests.support.one_shard import CLUSTER
from tests.support.waiting import never, until

pytestmark = pytest.mark.looptime

OFF = IngestSettings(mqtt_devices=False)
ORDERS = m.publish_filter(CLUSTER, "orders")
MARKS = m.device_sentinel_topic(CLUSTER, 0)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def left(world: Devices, leader: ShardLeader) -> None:
    """Return once the session is left; then it is empty, and keeps nothing more."""
    await until(lambda: leader.devices.subscriptions._session is None)
    assert (set(), 0) == (world.broker.filters(SESSION), world.broker.waiting(SESSION))
    assert world.metric("device_session_open", shard="0") == 0
    assert not world.publish("orders/a", b"nobody's")


async def test_switched_off_it_stores_what_waits_at_the_broker_and_leaves_the_session_empty() -> None:
    """More than the broker gives out at once, and the store is slow."""
    world = Devices(FakeDeviceBroker(window=3))
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        assert world.metric("device_session_open", shard="0") == 1
        world.shard.store.freeze()
        assert all(world.publish("orders/a", number) for number in numbers(50))
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(5)
        assert world.broker.waiting(SESSION) == 50
        world.shard.store.thaw()
        with capture_logs() as logs:
            await left(world, leader)

    assert numbers(50) == await world.values()
    assert [("device.session_left", 0)] == [(line["event"], line["shard"]) for line in logs]


async def test_what_is_published_after_the_filters_are_gone_is_nobodys() -> None:
    world = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/a", b"before")
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: ORDERS not in world.broker.filters(SESSION))
        assert not world.publish("orders/a", b"after")
        await left(world, leader)

    assert [b"before"] == await world.values()


async def test_switched_on_again_it_follows_what_there_is_by_then() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        began = asyncio.get_running_loop().time()
        for round_number in range(3):
            leader.devices.subscriptions.set_enabled(enabled=False)
            await left(world, leader)
            await created(client, f"other-{round_number}")  # answered, though nobody follows it
            leader.devices.subscriptions.set_enabled(enabled=True)
            await until(lambda: len(world.broker.filters(SESSION)) == round_number + 2)  # noqa: B023 - awaited here
            world.publish(f"other-{round_number}/a", b"%d" % round_number)
            await world.all_acknowledged()
        assert world.metric("device_session_open", shard="0") == 1
        assert asyncio.get_running_loop().time() - began < SENTINEL_INTERVAL_SECONDS, "each time it leaves at once"

    assert numbers(3) == await world.values()


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_switched_on_again_before_it_has_left_it_goes_on(seconds: float) -> None:
    """Wherever it is: each word with the broker takes a second."""
    world = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/a", b"0")
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(seconds)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await asyncio.sleep(10)
        assert {ORDERS} == world.broker.filters(SESSION)
        world.publish("orders/a", b"1")
        await world.all_acknowledged()

    assert numbers(2) == await world.values()


async def test_a_reign_that_begins_switched_off_stores_what_an_earlier_one_left() -> None:
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
    for number in numbers(5):
        world.publish("orders/a", number)
    world.shard.ingest = OFF

    async with world.shard.leader("b") as leader:
        await until(lambda: not world.broker.filters(SESSION))
        await left(world, leader)

    assert numbers(5) == await world.values()


async def test_a_reign_that_begins_switched_off_and_finds_nothing_leaves_an_empty_session() -> None:
    world = Devices(ingest=OFF)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await until(lambda: world.metric("device_session_open", shard="0") is not None)
        await left(world, leader)
        await created(client)
        await never(lambda: world.broker.filters(SESSION), 60)


async def test_a_deposed_leader_drops_nothing_that_its_successor_follows() -> None:
    """Told to switch off, or to delete a topic, before it knows; and it steals the session back."""
    for tell_off in (True, False):
        world = Devices()
        async with world.shard.leader("a") as leader, world.shard.client() as client:
            await devices_connected(leader)
            await created(client)
            await world.shard.begin("b")  # Its reign chunk takes the number; nobody has told a.
            task = next(task for task in asyncio.all_tasks() if task.get_name() == "devices-0")
            if tell_off:
                leader.devices.subscriptions.set_enabled(enabled=False)
            else:
                client.send(m.DeleteTopic, topic="orders", token="d")
            await until(task.done)
            assert ORDERS in world.broker.filters(SESSION)
            assert world.publish("orders/a", b"promised")


@pytest.mark.parametrize("tenths", range(0, 60, 3))
async def test_a_topic_is_created_at_any_time_while_it_is_leaving(tenths: int) -> None:
    """Answered, and followed once it is switched on again."""
    world = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(tenths / 10)
        await created(client, "late")
        await left(world, leader)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: {ORDERS, m.publish_filter(CLUSTER, "late")} == world.broker.filters(SESSION))


async def test_a_topic_that_is_deleted_while_the_broker_is_away_is_dropped_when_it_is_back() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.broker.stop()
        await client.call(m.DeleteTopic, topic="orders", token="d")
        assert {ORDERS} == world.broker.filters(SESSION)
        world.broker.start()
        await until(lambda: not world.broker.filters(SESSION))


class Session(FakeDeviceSession):
    """Keeps what was asked of it."""

    def __init__(self, world: Devices, handler: object) -> None:
        super().__init__(world.broker, SESSION, handler)  # type: ignore[arg-type]
        self.world = world
        self.dropped: list[tuple[list[str], int]] = []
        self.marks: list[bytes] = []
        self.lost_marks = 0

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        self.dropped.append((list(topic_filters), connection))
        return await super().remove_subscriptions(topic_filters, connection)

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        self.marks.append(payload)
        if len(self.marks) > self.lost_marks:
            super().publish_sentinel(topic, payload)


def with_session(world: Devices) -> list[Session]:
    """Let the world's reigns open sessions that are in the list returned."""
    opened: list[Session] = []

    def open_session(_: int, handler: object) -> Session:
        opened.append(Session(world, handler))
        return opened[-1]

    world.shard.open_session = open_session  # type: ignore[assignment]
    return opened


async def test_a_filter_is_dropped_on_the_connection_that_a_chunk_was_created_after_and_on_no_later_one() -> None:
    world = Devices()
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.shard.store.freeze()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(1)
        world.broker.drop(SESSION)
        await until(lambda: opened[0].connection == 2)
        await asyncio.sleep(1)
        assert {ORDERS, MARKS} == world.broker.filters(SESSION)
        assert [] == opened[0].dropped, "no chunk was created"
        world.shard.store.thaw()
        await left(world, leader)

    assert [([ORDERS], 1), ([ORDERS], 2), ([MARKS], 2)] == opened[0].dropped


async def test_what_is_to_be_followed_again_before_a_chunk_was_created_is_not_dropped() -> None:
    world = Devices()
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.shard.store.freeze()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(1)
        leader.devices.subscriptions.set_enabled(enabled=True)
        world.shard.store.thaw()
        await until(lambda: {ORDERS} == world.broker.filters(SESSION))

    assert [([MARKS], 1)] == opened[0].dropped


async def test_no_mark_is_sent_while_anything_else_is_followed() -> None:
    """What comes behind it would be left behind. Here the connection breaks just when the filter is to be dropped."""
    world = Devices(FakeDeviceBroker(window=1, delay_seconds=0.1))

    class Broken(Session):
        async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            if not self.dropped:
                self.dropped.append((list(topic_filters), connection))
                world.broker.drop(SESSION)
                await until(lambda: self.connection > connection)
                return False
            if ORDERS in topic_filters:
                await asyncio.sleep(1)
                for number in numbers(20):
                    world.publish("orders/a", number)
            return await super().remove_subscriptions(topic_filters, connection)

    world.shard.open_session = lambda _, handler: Broken(world, handler)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        leader.devices.subscriptions.set_enabled(enabled=False)
        await left(world, leader)

    assert numbers(20) == list(dict.fromkeys(await world.values()))


async def test_a_mark_from_before_it_was_switched_on_again_says_nothing() -> None:
    """It waits behind what came before it, and before what came since."""
    world = Devices(FakeDeviceBroker(window=1, delay_seconds=0.1))
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        for number in numbers(40):
            world.publish("orders/a", number)
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: opened[0].marks)
        await asyncio.sleep(0.2)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: {ORDERS} == world.broker.filters(SESSION))
        for number in numbers(80)[40:]:
            world.publish("orders/a", number)
        # Else the first mark would be nobody's, and not wait.
        leader.devices.subscriptions.set_enabled(enabled=False)
        await left(world, leader)

    assert numbers(80) == list(dict.fromkeys(await world.values()))


async def test_a_mark_that_the_broker_threw_away_is_sent_again() -> None:
    world = Devices()
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        opened[0].lost_marks = 2
        began = asyncio.get_running_loop().time()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await left(world, leader)

    assert 3 == len(opened[0].marks)
    assert 0 <= asyncio.get_running_loop().time() - began - 2 * SENTINEL_INTERVAL_SECONDS < 1


async def test_what_was_stored_but_not_heard_of_before_the_connection_broke_is_read_again_before_it_leaves() -> None:
    """The mark is back, but no acknowledgement has reached the broker: all of it comes again."""
    world = Devices()
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: ORDERS not in world.broker.filters(SESSION))
        world.shard.store.freeze()
        world.broker._sessions[SESSION].filters.add(ORDERS)  # What comes before the mark, in the store's hands.
        for number in numbers(3):
            world.publish("orders/a", number)
        world.broker._sessions[SESSION].filters.discard(ORDERS)
        await until(lambda: leader.devices.subscriptions._empty_connection == 1)
        world.broker.drop(SESSION)
        world.shard.store.thaw()
        await left(world, leader)

    assert numbers(3) == list(dict.fromkeys(await world.values()))
    assert len(opened[0].marks) >= 2


async def test_a_mark_of_somebody_else_or_of_an_earlier_time_says_nothing() -> None:
    world = Devices()
    opened = with_session(world)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        leader.devices.subscriptions.set_enabled(enabled=False)
        await left(world, leader)
        earlier = opened[0].marks[-1]
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: ORDERS in world.broker.filters(SESSION))
        opened[1].lost_marks = 1
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: {MARKS} == world.broker.filters(SESSION))
        for payload in (earlier, b"", b"1", b"0.2", b"1.99", b"\xff.\xff"):
            assert world.broker.publish(MARKS, payload)
        await never(lambda: leader.devices.subscriptions._session is None, SENTINEL_INTERVAL_SECONDS / 2)
        assert world.broker.waiting(SESSION) == 0, "nor does it come again"
        await left(world, leader)


async def test_a_broker_that_is_away_is_waited_for() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.broker.stop()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await never(lambda: leader.devices.subscriptions._session is None, 60)
        world.broker.start()
        await left(world, leader)
