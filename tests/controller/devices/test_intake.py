"""Plain devices: what they publish is stored at least once, and acknowledged to their broker when it is durable."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from controller.commit import TermEndedError
from controller.devices.intake import REJECTION_LOG_INTERVAL_SECONDS
from controller.devices.session_port import Delivery
from headgate.errors import TransportError
from headgate.protocol import messages as m
from tests.support.device_broker import FakeDeviceBroker, FakeDeviceSession
from tests.support.device_environment import SESSION, Devices, created, devices_connected
from tests.support.one_shard import CLUSTER, now_ms
from tests.support.waiting import until

pytestmark = pytest.mark.looptime


async def test_a_message_becomes_a_record_and_the_key_may_have_slashes() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        published_ms = now_ms()
        world.publish("orders/site-1/room 2/über", b"21.5")
        world.publish("orders//", b"")
        await world.all_acknowledged()

    rows = await world.records()
    assert [("site-1/room 2/über".encode(), b"21.5"), (b"/", b"")] == [(row["key"], row["value"]) for row in rows]
    assert all(0 <= row["timestamp_ms"] - published_ms < 1000 for row in rows), "the leader's clock"
    assert world.metric("device_records_stored_total", shard="0") == 2


async def test_the_broker_is_told_when_a_record_is_durable_and_not_before() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.shard.store.freeze()
        world.publish("orders/a", b"1")
        world.publish("orders/a", b"2")
        await asyncio.sleep(5)
        assert (2, 2, 0) == (
            world.broker.waiting(SESSION),
            world.metric("device_records_pending", shard="0"),
            world.metric("device_records_stored_total", shard="0") or 0,
        )

        world.shard.store.thaw()
        await world.all_acknowledged()
        assert world.metric("device_records_pending", shard="0") == 0

    assert [b"1", b"2"] == await world.values()


async def test_nothing_is_lost_while_nobody_leads_nor_when_a_leader_dies_with_some_in_flight() -> None:
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/a", b"1")
        await world.all_acknowledged()
        world.shard.store.freeze()
        world.publish("orders/a", b"2")
        await asyncio.sleep(1)
    world.shard.store.thaw()
    await asyncio.sleep(1)
    world.publish("orders/a", b"3")

    async with world.shard.leader("b"):
        await world.all_acknowledged()

    # The second may have been written by the reign that died: at least once, and never out of order.
    assert [b"1", b"2", b"3"] == list(dict.fromkeys(await world.values()))


async def test_a_deposed_leader_acknowledges_nothing_that_it_took() -> None:
    """It steals the session back, and cannot do harm with it."""
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "devices-0")
        await world.shard.begin("b")  # Its reign chunk takes the number; nobody has told a.
        world.publish("orders/a", b"1")
        await until(task.done)
        assert world.broker.waiting(SESSION) == 1

    async with world.shard.leader("c"):
        await world.all_acknowledged()
    assert [b"1"] == await world.values()


async def test_after_hand_over_has_begun_everything_is_left_to_the_next_leader() -> None:
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/a", b"1")
        await asyncio.sleep(0.0015)
        await leader.hand_over()
        before = await world.values()
        world.publish("orders/a", b"2")
        await asyncio.sleep(1)
        assert before == await world.values()
        assert world.broker.waiting(SESSION) == 1
    async with world.shard.leader("b"):
        await world.all_acknowledged()

    assert [b"1", b"2"] == await world.values()


@pytest.mark.parametrize(
    ("name", "payload", "retain", "reason"),
    [
        ("orders", b"1", False, "empty_key"),
        ("orders/", b"1", False, "empty_key"),
        ("orders/abc", bytes(m.MAX_RECORD_BYTES - 2), False, "too_large"),
        ("orders/a", b"1", True, "retained"),
    ],
)
async def test_what_cannot_be_stored_is_counted_and_does_not_come_again(
    name: str, payload: bytes, retain: bool, reason: str
) -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        if retain:
            world.publish(name, payload, retain=True)  # Before anybody follows: a copy comes with the subscription.
        await devices_connected(leader)
        await created(client)
        if not retain:
            world.publish(name, payload)
        world.publish("orders/abc", b"good")
        await until(lambda: world.metric("device_messages_rejected_total", reason=reason) == 1)
        await world.all_acknowledged()

    assert [b"good"] == await world.values()


async def test_the_largest_record_is_taken() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/abc", bytes(m.MAX_RECORD_BYTES - 3))
        await world.all_acknowledged()

    assert [m.MAX_RECORD_BYTES - 3] == [len(value) for value in await world.values()]


async def test_a_retained_publication_is_stored_once_whoever_leads() -> None:
    """A copy of it comes with each subscription, hence with each leader."""
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        world.publish("orders/a", b"1", retain=True)
        await world.all_acknowledged()
    for instance in ("b", "c"):
        async with world.shard.leader(instance) as leader:
            await devices_connected(leader)
            await world.all_acknowledged()

    assert [b"1"] == await world.values()


async def test_a_thousand_bad_messages_are_one_line_in_the_log_a_minute() -> None:
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        with capture_logs() as logs:
            for _ in range(1000):
                world.publish("orders/" + "x" * 5000, bytes(m.MAX_RECORD_BYTES))
            await world.all_acknowledged()
            await asyncio.sleep(REJECTION_LOG_INTERVAL_SECONDS)
            world.publish("orders/x", bytes(m.MAX_RECORD_BYTES))
            await world.all_acknowledged()
        complaints = [line for line in logs if line["event"] == "device.message_rejected"]

    assert [0, 999] == [line["suppressed"] for line in complaints]
    assert len(complaints[0]["mqtt_topic"]) == 200
    assert world.metric("device_messages_rejected_total", reason="too_large") == 1001


async def test_topics_are_followed_from_the_answer_to_their_creation_until_they_are_deleted() -> None:
    # A subscription takes far longer than a commit.
    world = Devices(FakeDeviceBroker(delay_seconds=1.0))
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        assert {m.publish_filter(CLUSTER, "orders")} == world.broker.filters(SESSION)
        world.publish("orders/a", b"1")
        world.publish("elsewhere/a", b"nobody's")
        await created(client, "other")
        await world.all_acknowledged()
        await client.call(m.DeleteTopic, topic="orders", token="d")
        assert {m.publish_filter(CLUSTER, "other")} == world.broker.filters(SESSION)

    assert [b"1"] == await world.values()


async def test_a_topic_is_created_without_waiting_for_a_broker_that_is_away() -> None:
    world = Devices()
    world.broker.stop()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await created(client)
        world.broker.start()
        await devices_connected(leader)
        await until(lambda: world.broker.filters(SESSION))
        world.publish("orders/a", b"1")
        await world.all_acknowledged()

    assert [b"1"] == await world.values()


async def test_a_topic_that_this_leader_does_not_know_is_thrown_away_only_by_a_leader() -> None:
    """It may be one that the successor of a deposed leader created."""
    world = Devices()
    async with world.shard.leader("a") as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        # What an earlier reign left at the broker: nobody leads when this one is deleted.
        world.broker._sessions[SESSION].filters.add(m.publish_filter(CLUSTER, "gone"))
        world.shard.store.freeze()
        world.publish("gone/a", b"1")
        await asyncio.sleep(5)
        assert world.broker.waiting(SESSION) == 1
        world.shard.store.thaw()
        await world.all_acknowledged()
        await until(lambda: world.broker.filters(SESSION) == {m.publish_filter(CLUSTER, "orders")})

    assert world.metric("device_messages_rejected_total", reason="unknown_topic") == 1


async def test_an_external_topic_is_not_followed_and_takes_no_messages() -> None:
    """Its records stand somewhere else."""
    world = Devices()
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client)
        fields = {"topic": "elsewhere", "token": "x", "segments": [m.SegmentImport(segment="a")]}
        assert isinstance(await client.call(m.ImportTopic, **fields), m.TopicImportReply)
        await until(lambda: world.broker.filters(SESSION) == {m.publish_filter(CLUSTER, "orders")})
        # A message that was on its way since a stored topic of that name was there.
        world.broker._sessions[SESSION].filters.add(m.publish_filter(CLUSTER, "elsewhere"))
        world.publish("elsewhere/a", b"1")
        await world.all_acknowledged()

    assert world.metric("device_messages_rejected_total", reason="external_topic") == 1


async def test_a_filter_that_the_broker_refuses_stops_nothing_else() -> None:
    class Confined(FakeDeviceSession):
        async def add_subscription(self, topic_filter: str) -> None:
            if "secret" in topic_filter:
                raise TransportError("not allowed")
            await super().add_subscription(topic_filter)

    world = Devices()
    world.shard.open_session = lambda _, handler: Confined(world.broker, SESSION, handler)
    async with world.shard.leader() as leader, world.shard.client() as client:
        await devices_connected(leader)
        await created(client, "secret")
        await created(client, "orders")
        world.publish("orders/a", b"1")
        await world.all_acknowledged()

    assert [b"1"] == await world.values()


async def test_a_bug_in_taking_a_message_ends_the_reign_and_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Devices()
    transport = world.shard.broker.transport("daemon-a")
    async with transport:
        leader = await world.shard.begin("a", transport)

        def broken(_: Delivery) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(leader.devices, "accept", broken)
        serving = asyncio.create_task(leader.serve())
        await devices_connected(leader)
        leader._on_delivery(None)  # type: ignore[arg-type]
        with pytest.raises(BaseExceptionGroup) as raised:
            await serving

    assert raised.group_contains(ZeroDivisionError)
    assert not raised.group_contains(TermEndedError)
