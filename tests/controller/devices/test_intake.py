"""Messages of MQTT devices are stored at least once, and acknowledged once durable."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from controller.devices.intake import LOGGED_TOPICS, DeviceIntake, UnknownTopicWatch
from headgate.errors import TransportError
from headgate.model.headers import Headers
from headgate.model.layout import ShardMap
from headgate.protocol.codec import all_publications_filters, publish_filters
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.transport.port import MessageHandler
from tests.support.fakes.broker import FakeTransport
from tests.support.fakes.device_broker import FakeDeviceSession
from tests.support.waiting import until
from tests.support.worlds.device_environment import SESSION, Devices, create_topic, devices_connected
from tests.support.worlds.one_shard import CLUSTER, BareClient


@pytest.mark.parametrize(
    ("name", "payload", "headers", "reason"),
    [
        ("orders", b"1", (), "empty_key"),
        ("orders/", b"1", (), "empty_key"),
        ("orders/abc", bytes(MAX_RECORD_BYTES - 2), (), "too_large"),
        ("orders/abc", bytes(MAX_RECORD_BYTES - 3), (("n", b""),), "too_large"),
        ("orders/a", b"1", (("n", b""),) * 65, "invalid_headers"),
        ("orders/a", b"1", (("headgate-reason", b"forged"),), "invalid_headers"),
        ("orders/a", b"1", (), "retained"),
    ],
)
async def test_a_message_that_cannot_be_stored_is_counted_and_acknowledged(
    devices: Devices, name: str, payload: bytes, headers: Headers, reason: str
) -> None:
    retain = reason == "retained"
    devices.broker.mqtt5 = not retain
    async with devices.shard.leader() as leader, devices.shard.client() as client:
        if retain:
            devices.publish(name, payload, retain=True)  # Before the subscription, which delivers a copy.
        await devices_connected(leader)
        await create_topic(client)
        if not retain:
            devices.publish(name, payload, headers=headers)
        devices.publish("orders/abc", b"good", headers=(("content-type", b"text/plain"),))
        await until(lambda: devices.metric("device_messages_rejected_total", reason=reason) == 1)
        await devices.all_acknowledged()

    assert [(b"good", (("content-type", b"text/plain"),) if devices.broker.mqtt5 else ())] == [
        (row["value"], row["headers"]) for row in await devices.records()
    ]


@pytest.mark.parametrize("mqtt5", [True, False])
async def test_a_retained_message_is_stored_once_across_leaders(devices: Devices, mqtt5: bool) -> None:
    """Without MQTT 5, each subscription, so each leader, gets a copy of it."""
    devices.broker.mqtt5 = mqtt5
    async with devices.running():
        devices.publish("orders/a", b"1", retain=True)
        await devices.all_acknowledged()
    for instance in ("b", "c"):
        async with devices.shard.leader(instance) as leader:
            await devices_connected(leader)
            await devices.all_acknowledged()

    assert [b"1"] == await devices.values()


async def test_a_message_in_the_session_of_another_topic_is_not_stored(devices: Devices) -> None:
    """Another history of the ledger gave the id to another topic. After a barrier: a successor may know better."""
    async with devices.running() as (_, client):
        await create_topic(client, "other")
        devices.broker.filters(SESSION).update(publish_filters(CLUSTER, "other"))
        devices.shard.store.freeze()
        devices.publish("other/a", b"1")
        await asyncio.sleep(5)
        assert devices.broker.waiting(SESSION) == 1
        devices.shard.store.thaw()
        await devices.all_acknowledged()

    assert [b"1"] == await devices.values()
    assert devices.metric("device_messages_rejected_total", reason="unknown_topic") == 1


async def test_a_filter_that_the_broker_rejects_affects_no_other_topic(devices: Devices) -> None:
    class RestrictedSession(FakeDeviceSession):
        async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
            if any("secret" in topic_filter for topic_filter in topic_filters):
                raise TransportError("not allowed")
            return await super().add_subscriptions(topic_filters, connection)

    devices.shard.open_session = lambda name, handler, _: RestrictedSession(devices.broker, name, handler)
    async with devices.running(topic=None) as (_, client):
        await create_topic(client, "secret")
        await create_topic(client, "orders")
        devices.publish("orders/a", b"1")
        await devices.all_acknowledged()
        states = ("subscribed", "missing")
        await until(lambda: [1, 1] == [devices.metric("device_sessions", shard="0", state=each) for each in states])

    assert [b"1"] == await devices.values()


FILTER = all_publications_filters(CLUSTER)[0]


@dataclass
class Watching:
    """A running watch beside the leader of one shard, which has the topic ``orders``."""

    devices: Devices
    daemon: FakeTransport
    device: FakeTransport
    client: BareClient
    enabled: bool = True
    leads: bool = True
    shards: ShardMap = field(default_factory=lambda: ShardMap((1,)))

    async def publish(self, *names: str) -> None:
        for name in names:
            assert self.device.publish(f"headgate/{CLUSTER}/publish/{name}" if name else FILTER[:-2], b"21.5")
        await asyncio.sleep(2)

    def rejected(self, reason: str = "unknown_topic") -> float | None:
        return self.devices.metric("device_messages_rejected_total", reason=reason)

    @property
    def subscribed(self) -> bool:
        return FILTER in self.daemon._handlers


@asynccontextmanager
async def watching(devices: Devices) -> AsyncIterator[Watching]:
    broker = devices.shard.broker
    async with (
        devices.running() as (leader, client),
        broker.transport("daemon-watch") as daemon,
        broker.transport("device") as device,
    ):
        found = Watching(devices, daemon, device, client)

        def intakes() -> Sequence[DeviceIntake | None]:
            return [leader.devices if found.leads else None]

        watch = UnknownTopicWatch(
            cluster=CLUSTER,
            transport=daemon,
            intakes=intakes,
            shards=lambda: found.shards,
            enabled=lambda: found.enabled,
        )
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(3)
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_publications_to_unknown_topics_are_counted_and_others_are_not(devices: Devices) -> None:
    async with watching(devices) as watch:
        await watch.publish("orders/site-1", "ordres/site-1", "orders/site-2/a", "ORDERS/x", "ordres", "")

        assert watch.rejected() == 4


async def test_each_unknown_topic_is_logged_once_per_minute_and_their_number_is_limited(devices: Devices) -> None:
    async with watching(devices) as watch:
        with capture_logs() as logs:
            await watch.publish(*["ordres/site-1"] * 3, "odrers/site-1")
            await watch.publish(*(f"topic-{number}/a" for number in range(2 * LOGGED_TOPICS)))
        lines = [line for line in logs if line["event"] == "device.message_rejected"]

    assert [line["mqtt_topic"].rpartition("publish/")[2] for line in lines[:2]] == ["ordres/site-1", "odrers/site-1"]
    assert {line["reason"] for line in lines} == {"unknown_topic"}
    assert LOGGED_TOPICS / 2 < len(lines) <= LOGGED_TOPICS
    assert watch.rejected() == 4 + 2 * LOGGED_TOPICS


async def test_a_subscription_that_the_broker_rejects_ends_the_watch_and_nothing_else(devices: Devices) -> None:
    """The transport would request the filter again with each connection, and fail again."""

    class RestrictedTransport(FakeTransport):
        async def subscribe(self, topic_filter: str, handler: MessageHandler, **options: bool) -> None:
            await super().subscribe(topic_filter, handler, **options)
            raise TransportError("not allowed")

    async with devices.running() as (leader, _), RestrictedTransport(devices.shard.broker, "d", None) as daemon:
        watch = UnknownTopicWatch(
            cluster=CLUSTER,
            transport=daemon,
            intakes=lambda: [leader.devices],
            shards=lambda: ShardMap((1,)),
            enabled=lambda: True,
        )
        with capture_logs() as logs:
            await watch.run()

        assert [line["event"] for line in logs] == ["device.watch_rejected"]
        assert FILTER not in daemon._handlers
