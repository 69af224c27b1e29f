"""Disabling and enabling the intake of MQTT devices loses no message with a PUBACK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from structlog.testing import capture_logs

from controller.devices.subscriptions import SENTINEL_INTERVAL_SECONDS
from controller.leader.leader import ShardLeader
from controller.settings.load import IngestSettings
from headgate.protocol import messages as m
from tests.support.fakes.device_broker import FakeDeviceBroker, FakeDeviceSession
from tests.support.waiting import never, until
from tests.support.worlds.device_environment import SESSION, Devices, create_topic
from tests.support.worlds.one_shard import CLUSTER

pytestmark = pytest.mark.looptime

OFF = IngestSettings(mqtt_devices=False)
ORDERS = m.publish_filters(CLUSTER, "orders")
SENTINELS = m.device_sentinel_topic(CLUSTER, 0)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def session_closed(devices: Devices, leader: ShardLeader) -> None:
    """Return once the session is closed. It is empty then, and gets no more messages."""
    await until(lambda: leader.devices.subscriptions._session is None)
    assert (set(), 0) == (devices.broker.filters(SESSION), devices.broker.waiting(SESSION))
    assert devices.metric("device_session_open", shard="0") == 0
    assert not devices.publish("orders/a", b"unmatched")


async def test_disabling_stores_the_queued_messages_and_empties_the_session() -> None:
    """With more messages than the broker delivers at once, and a frozen store."""
    devices = Devices(FakeDeviceBroker(window=3))
    async with devices.running() as (leader, _):
        assert devices.metric("device_session_open", shard="0") == 1
        devices.shard.store.freeze()
        assert all(devices.publish("orders/a", number) for number in numbers(50))
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(5)
        assert devices.broker.waiting(SESSION) == 50
        devices.shard.store.thaw()
        with capture_logs() as logs:
            await session_closed(devices, leader)

    assert numbers(50) == await devices.values()
    assert [("device.session_closed", 0)] == [(line["event"], line["shard"]) for line in logs]


async def test_the_session_gets_no_messages_after_its_filters_are_removed() -> None:
    devices = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with devices.running() as (leader, _):
        devices.publish("orders/a", b"before")
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: not ORDERS & devices.broker.filters(SESSION))
        assert not devices.publish("orders/a", b"after")
        await session_closed(devices, leader)

    assert [b"before"] == await devices.values()


async def test_enabling_again_subscribes_to_the_current_topics(devices: Devices) -> None:
    async with devices.running() as (leader, client):
        began = asyncio.get_running_loop().time()
        for round_number in range(3):
            leader.devices.subscriptions.set_enabled(enabled=False)
            await session_closed(devices, leader)
            await create_topic(client, f"other-{round_number}")  # Replied to, although it is not subscribed to.
            leader.devices.subscriptions.set_enabled(enabled=True)
            await until(lambda: len(devices.broker.filters(SESSION)) == 2 * round_number + 4)  # noqa: B023 - awaited here
            devices.publish(f"other-{round_number}/a", b"%d" % round_number)
            await devices.all_acknowledged()
        assert devices.metric("device_session_open", shard="0") == 1
        assert asyncio.get_running_loop().time() - began < SENTINEL_INTERVAL_SECONDS, (
            "each time the session closes at once"
        )

    assert numbers(3) == await devices.values()


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_enabling_again_before_the_session_is_closed_loses_nothing(seconds: float) -> None:
    """At any step: each exchange with the broker takes a second."""
    devices = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with devices.running() as (leader, _):
        devices.publish("orders/a", b"0")
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(seconds)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await asyncio.sleep(10)
        assert ORDERS == devices.broker.filters(SESSION)
        devices.publish("orders/a", b"1")
        await devices.all_acknowledged()

    assert numbers(2) == await devices.values()


async def test_a_term_that_starts_disabled_stores_the_messages_of_an_earlier_term(devices: Devices) -> None:
    async with devices.running():
        pass
    devices.publish_all("orders/a", numbers(5))
    devices.shard.ingest = OFF

    async with devices.shard.leader("b") as leader:
        await until(lambda: not devices.broker.filters(SESSION))
        await session_closed(devices, leader)

    assert numbers(5) == await devices.values()


@pytest.mark.parametrize("ingest", [OFF, IngestSettings()], ids=["disabled", "enabled"])
async def test_a_term_removes_the_filter_of_a_topic_that_was_deleted_just_before_a_crash(
    devices: Devices, ingest: IngestSettings
) -> None:
    """Otherwise the broker queues what devices publish to it, and no leader reads that."""
    async with devices.running() as (_, client):
        devices.broker.stop()
        await client.call(m.DeleteTopic, topic="orders", token="d")
    assert ORDERS == devices.broker.filters(SESSION)
    devices.broker.start()
    devices.shard.ingest = ingest

    async with devices.shard.leader("b"), devices.shard.client("later") as client:
        await until(lambda: not devices.broker.filters(SESSION))
        assert not devices.publish("orders/a", b"lost")
        await client.call(m.CreateTopic, topic="orders", token="c", segments=1, leader_epoch=2)
        await never(lambda: devices.broker.filters(SESSION) != (ORDERS if ingest.mqtt_devices else set()), 10)


async def test_a_term_that_starts_disabled_leaves_an_empty_session() -> None:
    devices = Devices(ingest=OFF)
    async with devices.shard.leader() as leader, devices.shard.client() as client:
        await until(lambda: devices.metric("device_session_open", shard="0") is not None)
        await session_closed(devices, leader)
        await create_topic(client)
        await never(lambda: devices.broker.filters(SESSION), 60)


@pytest.mark.parametrize("disable", [True, False], ids=["disabled", "topic deleted"])
async def test_a_deposed_leader_removes_no_filter_of_its_successor(devices: Devices, disable: bool) -> None:
    """It is disabled, or deletes a topic, before it notices, and takes the session back."""
    async with devices.running() as (leader, client):
        await devices.shard.begin("b")  # Its term chunk takes the number, unknown to a.
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "devices-0")
        if disable:
            leader.devices.subscriptions.set_enabled(enabled=False)
        else:
            client.send(m.DeleteTopic, topic="orders", token="d")
        await until(task.done)
        assert ORDERS <= devices.broker.filters(SESSION)
        assert devices.publish("orders/a", b"promised")


@pytest.mark.parametrize("notices", [True, False], ids=["disabled too", "unaware"])
async def test_a_deposed_leader_leaves_no_filter_in_the_session_that_its_successor_emptied(
    devices: Devices, notices: bool
) -> None:
    """It reaches the broker, but not the store, so it reconnects, also after the disabled successor has disconnected."""
    async with devices.running() as (deposed, _):
        devices.isolate_store()
        if notices:
            deposed.devices.subscriptions.set_enabled(enabled=False)
        devices.shard.ingest = OFF
        with capture_logs() as logs:
            async with devices.shard.leader("b"):
                await until(lambda: any(line["event"] == "device.session_closed" for line in logs))
                await never(lambda: devices.broker.filters(SESSION), 5)


@pytest.mark.parametrize("tenths", range(0, 60, 3))
async def test_a_topic_can_be_created_at_any_moment_of_disabling(tenths: int) -> None:
    """The request gets its reply, and enabling again subscribes to the topic."""
    devices = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with devices.running() as (leader, client):
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(tenths / 10)
        await create_topic(client, "late")
        await session_closed(devices, leader)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: ORDERS | m.publish_filters(CLUSTER, "late") == devices.broker.filters(SESSION))


async def test_the_filter_of_a_topic_deleted_during_an_outage_is_removed_after_it(devices: Devices) -> None:
    async with devices.running() as (_, client):
        devices.broker.stop()
        await client.call(m.DeleteTopic, topic="orders", token="d")
        assert ORDERS == devices.broker.filters(SESSION)
        devices.broker.start()
        await until(lambda: not devices.broker.filters(SESSION))


class Session(FakeDeviceSession):
    """Records calls, and can lose sentinels."""

    def __init__(self, devices: Devices, handler: object) -> None:
        super().__init__(devices.broker, SESSION, handler)  # type: ignore[arg-type]
        self.devices = devices
        self.removed: list[tuple[list[str], int]] = []
        self.sentinels: list[bytes] = []
        self.lost_sentinels = 0

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        self.removed.append((list(topic_filters), connection))
        return await super().remove_subscriptions(topic_filters, connection)

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        self.sentinels.append(payload)
        if len(self.sentinels) > self.lost_sentinels:
            super().publish_sentinel(topic, payload)


@pytest.fixture
def opened(devices: Devices) -> list[Session]:
    """The sessions that the leaders open."""
    opened: list[Session] = []

    def open_session(_: int, handler: object) -> Session:
        opened.append(Session(devices, handler))
        return opened[-1]

    devices.shard.open_session = open_session  # type: ignore[assignment]
    return opened


async def test_a_filter_is_removed_only_on_a_connection_older_than_a_chunk(
    devices: Devices, opened: list[Session]
) -> None:
    async with devices.running() as (leader, _):
        devices.shard.store.freeze()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(1)
        devices.broker.drop(SESSION)
        await until(lambda: opened[0].connection == 2)
        await asyncio.sleep(1)
        assert ORDERS == devices.broker.filters(SESSION)
        assert [] == opened[0].removed, "no chunk was created"
        devices.shard.store.thaw()
        await session_closed(devices, leader)

    assert [(sorted(ORDERS), 1), (sorted(ORDERS), 2), ([SENTINELS], 2)] == opened[0].removed


async def test_a_filter_that_is_wanted_again_before_a_chunk_is_created_stays(
    devices: Devices, opened: list[Session]
) -> None:
    async with devices.running() as (leader, _):
        devices.shard.store.freeze()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await asyncio.sleep(1)
        leader.devices.subscriptions.set_enabled(enabled=True)
        devices.shard.store.thaw()
        await never(lambda: ORDERS != devices.broker.filters(SESSION), 5)

    assert [] == opened[0].removed


async def test_filters_follow_durable_creations_and_deletions_of_topics(devices: Devices) -> None:
    """Also those that are accepted while an earlier change waits for its chunk."""
    changed_after: list[tuple[str, str, int]] = []

    class RecordingSession(FakeDeviceSession):
        async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            changed_after.extend(("add", topic_filter, leader.commit.durable) for topic_filter in topic_filters)
            return await super().add_subscriptions(topic_filters, connection)

        async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            changed_after.extend(("remove", topic_filter, leader.commit.durable) for topic_filter in topic_filters)
            return await super().remove_subscriptions(topic_filters, connection)

    devices.shard.open_session = lambda _, handler: RecordingSession(devices.broker, SESSION, handler)
    async with devices.running(topic=None) as (leader, client):
        await create_topic(client)
        changed_after.clear()
        devices.shard.store.freeze()
        chunks = []
        for send in (
            partial(client.send, m.CreateTopic, topic="a", token="a"),
            partial(client.send, m.CreateTopic, topic="b", token="b"),
            partial(client.send, m.DeleteTopic, topic="orders", token="c"),
        ):
            send()
            await asyncio.sleep(0.1)
            chunks.append(leader.commit.newest)
        devices.shard.store.thaw()
        filters = {each for name in "ab" for each in m.publish_filters(CLUSTER, name)}
        await until(lambda: filters == devices.broker.filters(SESSION))

    durable = {topic_filter: chunk for _, topic_filter, chunk in changed_after}
    assert ["add"] * 4 + ["remove"] * 2 == [change for change, _, _ in changed_after]
    changed = [m.publish_filters(CLUSTER, name) for name in ("a", "b", "orders")]
    assert all(durable[each] >= chunk for chunk, one in zip(chunks, changed, strict=True) for each in one)


async def test_a_topic_created_while_an_earlier_change_waits_is_subscribed_to_once_its_own_chunk_is_durable(
    devices: Devices,
) -> None:
    """With a store that takes a second: the chunk that the first topic waits for is older than the second one's."""
    durable_at: dict[str, int] = {}

    class RecordingSession(FakeDeviceSession):
        async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            durable_at.update(dict.fromkeys(topic_filters, leader.commit.durable))
            return await super().add_subscriptions(topic_filters, connection)

    devices.shard.open_session = lambda _, handler: RecordingSession(devices.broker, SESSION, handler)
    async with devices.running(topic=None) as (leader, client):
        devices.shard.store.latency_seconds = (1.0, 1.0)
        client.send(m.CreateTopic, topic="first", token="a")
        await asyncio.sleep(0.1)
        waits_for = leader.commit.newest
        await until(lambda: leader.commit.durable == waits_for - 1)
        client.send(m.CreateTopic, topic="second", token="b")
        await asyncio.sleep(0.1)
        creation = leader.commit.newest
        assert creation > waits_for
        second = m.publish_filters(CLUSTER, "second")
        await until(lambda: second <= durable_at.keys())

    assert m.publish_filters(CLUSTER, "first") <= durable_at.keys()
    assert min(durable_at[each] for each in second) >= creation


async def test_a_broker_that_lost_its_sessions_gets_the_filters_again(devices: Devices) -> None:
    async with devices.running():
        devices.broker._sessions[SESSION].filters.clear()
        devices.broker.drop(SESSION)
        await until(lambda: ORDERS == devices.broker.filters(SESSION))


async def test_no_sentinel_is_sent_while_another_filter_exists() -> None:
    """Messages after it would be lost. Here the connection breaks while the filter is removed."""
    devices = Devices(FakeDeviceBroker(window=1, delay_seconds=0.1))

    class BreakingSession(Session):
        async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            if not self.removed:
                self.removed.append((list(topic_filters), connection))
                devices.broker.drop(SESSION)
                await until(lambda: self.connection > connection)
                return False
            if set(topic_filters) & ORDERS:
                await asyncio.sleep(1)
                devices.publish_all("orders/a", numbers(20))
            return await super().remove_subscriptions(topic_filters, connection)

    devices.shard.open_session = lambda _, handler: BreakingSession(devices, handler)
    async with devices.running() as (leader, _):
        leader.devices.subscriptions.set_enabled(enabled=False)
        await session_closed(devices, leader)

    assert numbers(20) == list(dict.fromkeys(await devices.values()))


async def test_a_sentinel_from_before_enabling_again_is_invalid(devices: Devices, opened: list[Session]) -> None:
    """It is queued between older and newer messages."""
    devices.broker = FakeDeviceBroker(window=1, delay_seconds=0.1)
    async with devices.running() as (leader, _):
        devices.publish_all("orders/a", numbers(40))
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: opened[0].sentinels)
        await asyncio.sleep(0.2)
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: ORDERS == devices.broker.filters(SESSION))
        devices.publish_all("orders/a", numbers(80)[40:])
        # Otherwise the broker would drop the first sentinel instead of queueing it.
        leader.devices.subscriptions.set_enabled(enabled=False)
        await session_closed(devices, leader)

    assert numbers(80) == list(dict.fromkeys(await devices.values()))


async def test_no_sentinel_is_sent_before_the_broker_has_confirmed_that_the_topics_are_removed() -> None:
    """The connection remains, and the broker rejects the first packet."""
    devices = Devices()
    sessions: list[Session] = []

    class RejectedSession(Session):
        async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            if self.removed:
                return await super().remove_subscriptions(topic_filters, connection)
            self.removed.append((list(topic_filters), connection))
            return False

    def open_session(_: int, handler: object) -> Session:
        sessions.append(RejectedSession(devices, handler))
        return sessions[-1]

    devices.shard.open_session = open_session  # type: ignore[assignment]
    async with devices.running() as (leader, _):
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: sessions[0].removed)
        await asyncio.sleep(1)
        assert ORDERS | {SENTINELS} == devices.broker.filters(SESSION)
        assert [] == sessions[0].sentinels
        await session_closed(devices, leader)
        assert 1 == len(sessions[0].sentinels)


async def test_a_sentinel_that_the_broker_dropped_is_sent_again(devices: Devices, opened: list[Session]) -> None:
    async with devices.running() as (leader, _):
        opened[0].lost_sentinels = 2
        began = asyncio.get_running_loop().time()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await session_closed(devices, leader)

    assert 3 == len(opened[0].sentinels)
    assert 0 <= asyncio.get_running_loop().time() - began - 2 * SENTINEL_INTERVAL_SECONDS < 1


async def test_messages_without_a_confirmed_acknowledgement_are_read_again_before_closing(
    devices: Devices, opened: list[Session]
) -> None:
    """The sentinel is back, but no acknowledgement reached the broker, which delivers all again."""
    async with devices.running() as (leader, _):
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: not ORDERS & devices.broker.filters(SESSION))
        devices.shard.store.freeze()
        devices.broker._sessions[SESSION].filters.update(
            ORDERS
        )  # Messages before the sentinel, which the store delays.
        devices.publish_all("orders/a", numbers(3))
        devices.broker._sessions[SESSION].filters.difference_update(ORDERS)
        await until(lambda: leader.devices.subscriptions._empty_connection == 1)
        devices.broker.drop(SESSION)
        devices.shard.store.thaw()
        await session_closed(devices, leader)

    assert numbers(3) == list(dict.fromkeys(await devices.values()))
    assert len(opened[0].sentinels) >= 2


async def test_a_forged_or_outdated_sentinel_is_ignored(devices: Devices, opened: list[Session]) -> None:
    async with devices.running() as (leader, _):
        leader.devices.subscriptions.set_enabled(enabled=False)
        await session_closed(devices, leader)
        earlier = opened[0].sentinels[-1]
        leader.devices.subscriptions.set_enabled(enabled=True)
        await until(lambda: ORDERS <= devices.broker.filters(SESSION))
        opened[1].lost_sentinels = 1
        leader.devices.subscriptions.set_enabled(enabled=False)
        await until(lambda: {SENTINELS} == devices.broker.filters(SESSION))
        for payload in (earlier, b"", b"1", b"0.2", b"1.99", b"\xff.\xff"):
            assert devices.broker.publish(SENTINELS, payload)
        await never(lambda: leader.devices.subscriptions._session is None, SENTINEL_INTERVAL_SECONDS / 2)
        assert devices.broker.waiting(SESSION) == 0, "it is not delivered again"
        await session_closed(devices, leader)


async def test_disabling_waits_for_an_unreachable_broker(devices: Devices) -> None:
    async with devices.running() as (leader, _):
        devices.broker.stop()
        leader.devices.subscriptions.set_enabled(enabled=False)
        await never(lambda: leader.devices.subscriptions._session is None, 60)
        devices.broker.start()
        await session_closed(devices, leader)
