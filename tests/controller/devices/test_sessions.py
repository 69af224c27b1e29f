"""Disabling and enabling the intake of MQTT devices loses no message with a PUBACK."""

import asyncio
from collections.abc import Sequence
from typing import get_args

import pytest
from structlog.testing import capture_logs

from controller.devices.sessions import COUNT_INTERVAL_SECONDS, COUNTS_PER_REPORT, SENTINEL_INTERVAL_SECONDS
from controller.leader.leader import ShardLeader
from controller.settings.sections import IngestSettings
from headgate.protocol.codec import device_sentinel_topic
from headgate.protocol.requests import CreateTopic, DeleteTopic
from metrics.label_values import DeviceSessionState
from tests.support.fakes.device_broker import FakeDeviceBroker, FakeDeviceSession
from tests.support.waiting import never, until
from tests.support.worlds.device_environment import ORDERS, SESSION, Devices
from tests.support.worlds.one_shard import CLUSTER

STATES = get_args(DeviceSessionState)
SUBSCRIBED = {"shard": "0", "state": "subscribed"}
OFF = IngestSettings(mqtt_devices=False)
SENTINELS = device_sentinel_topic(CLUSTER, 0, 1)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def session_closed(devices: Devices, leader: ShardLeader) -> None:
    """Return once every session is closed. It is removed then, and gets no more messages."""
    await until(lambda: not leader.devices.sessions._sessions)
    assert set() == devices.broker.sessions()
    await until(lambda: [0, 0, 0] == [devices.metric("device_sessions", shard="0", state=each) for each in STATES])
    assert not devices.publish("orders/a", b"unmatched")


async def test_disabling_stores_the_queued_messages_and_empties_the_session() -> None:
    """With more messages than the broker delivers at once, and a frozen store."""
    devices = Devices(FakeDeviceBroker(window=3))
    async with devices.running() as (leader, _):
        await until(lambda: devices.metric("device_sessions", **SUBSCRIBED) == 1)
        devices.shard.store.freeze()
        assert all(devices.publish("orders/a", number) for number in numbers(50))
        leader.devices.sessions.set_enabled(enabled=False)
        await asyncio.sleep(5)
        assert devices.broker.waiting(SESSION) == 50
        devices.shard.store.thaw()
        with capture_logs() as logs:
            await session_closed(devices, leader)

    assert numbers(50) == await devices.values()
    assert [("device.session_closed", 0, 1)] == [(line["event"], line["shard"], line["topic_id"]) for line in logs]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_enabling_again_before_the_session_is_closed_loses_nothing(seconds: float) -> None:
    """At any step: each exchange with the broker takes a second."""
    devices = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with devices.running() as (leader, _):
        devices.publish("orders/a", b"0")
        leader.devices.sessions.set_enabled(enabled=False)
        await asyncio.sleep(seconds)
        leader.devices.sessions.set_enabled(enabled=True)
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


@pytest.mark.parametrize("disable", [True, False], ids=["disabled", "topic deleted"])
async def test_a_deposed_leader_removes_no_filter_of_its_successor(devices: Devices, disable: bool) -> None:
    """It is disabled, or deletes a topic, before it notices, and takes the session back."""
    async with devices.running() as (leader, client):
        await devices.shard.begin("b")  # Its term chunk takes the number, unknown to a.
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "devices-0")
        if disable:
            leader.devices.sessions.set_enabled(enabled=False)
        else:
            client.send(DeleteTopic, topic="orders", token="d")
        await until(task.done)
        assert ORDERS <= devices.broker.filters(SESSION)
        assert devices.publish("orders/a", b"promised")


async def test_sessions_that_the_broker_does_not_accept_are_logged_once_per_minute_but_none_that_is_being_opened(
    devices: Devices,
) -> None:
    async with devices.running():
        devices.broker.stop()
        with capture_logs() as logs:
            await asyncio.sleep(COUNTS_PER_REPORT * COUNT_INTERVAL_SECONDS)
            assert not [line for line in logs if line["event"] == "device.sessions_missing"], "it may come"
            await asyncio.sleep(2 * COUNTS_PER_REPORT * COUNT_INTERVAL_SECONDS)
        missing = [line for line in logs if line["event"] == "device.sessions_missing"]

    assert [(1, 1, "the broker is stopped")] * 2 == [
        (line["sessions"], line["topic_id"], line["reason"]) for line in missing
    ]


class Session(FakeDeviceSession):
    """Records calls, and can lose sentinels."""

    def __init__(self, devices: Devices, handler: object) -> None:
        super().__init__(devices.broker, SESSION, handler)  # type: ignore[arg-type]
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
    opened: list[Session] = []

    def open_session(_: str, handler: object, __: object) -> Session:
        opened.append(Session(devices, handler))
        return opened[-1]

    devices.shard.open_session = open_session  # type: ignore[assignment]
    return opened


async def test_a_forged_or_outdated_sentinel_is_ignored(devices: Devices, opened: list[Session]) -> None:
    async with devices.running() as (leader, _):
        leader.devices.sessions.set_enabled(enabled=False)
        await session_closed(devices, leader)
        earlier = opened[0].sentinels[-1]
        leader.devices.sessions.set_enabled(enabled=True)
        await until(lambda: ORDERS <= devices.broker.filters(SESSION))
        opened[1].lost_sentinels = 1
        leader.devices.sessions.set_enabled(enabled=False)
        await until(lambda: {SENTINELS} == devices.broker.filters(SESSION))
        for payload in (earlier, b"", b"1", b"0.2", b"1.99", b"\xff.\xff"):
            assert devices.broker.publish(SENTINELS, payload)
        await never(lambda: not leader.devices.sessions._sessions, SENTINEL_INTERVAL_SECONDS / 2)
        assert devices.broker.waiting(SESSION) == 0, "it is not delivered again"
        await session_closed(devices, leader)


@pytest.mark.parametrize("ingest", [OFF, IngestSettings()], ids=["disabled", "enabled"])
async def test_a_term_removes_the_filter_of_a_topic_that_was_deleted_just_before_a_crash(
    devices: Devices, ingest: IngestSettings
) -> None:
    """Otherwise the broker queues what devices publish to it, and no leader reads that."""
    async with devices.running() as (_, client):
        devices.broker.stop()
        await client.call(DeleteTopic, topic="orders", token="d")
    assert ORDERS == devices.broker.filters(SESSION)
    devices.broker.start()
    devices.shard.ingest = ingest

    async with devices.shard.leader("b"), devices.shard.client("later") as client:
        await until(lambda: not devices.broker.sessions())
        assert not devices.publish("orders/a", b"lost")
        await client.call(CreateTopic, topic="orders", token="c", segments=1, leader_epoch=2)
        created = ["2"] if ingest.mqtt_devices else []
        await never(lambda: [each.split(":")[5] for each in devices.broker.sessions()] != created, 10)


async def test_the_session_of_a_topic_deleted_during_an_outage_is_removed_after_it(devices: Devices) -> None:
    async with devices.running() as (leader, client):
        devices.broker.stop()
        await client.call(DeleteTopic, topic="orders", token="d")
        await asyncio.sleep(3600)
        assert ORDERS == devices.broker.filters(SESSION)
        assert leader.state.tombstones, "a next leader would remove the session"
        devices.broker.start()
        await until(lambda: not devices.broker.sessions())
        await until(lambda: not leader.state.tombstones)
