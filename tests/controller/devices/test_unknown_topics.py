"""What MQTT devices publish to topics that do not exist is counted and logged, at a limited cost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from controller.devices.intake import LOGGED_TOPICS, DeviceIntake
from controller.devices.unknown_topics import UnknownTopicWatch
from headgate.errors import TransportError
from headgate.model.hashing import ShardMap
from headgate.protocol.mqtt_topics import all_publications_filters
from headgate.transport.port import MessageHandler
from tests.support.fakes.broker import FakeTransport
from tests.support.worlds.device_environment import Devices
from tests.support.worlds.one_shard import CLUSTER, BareClient

pytestmark = pytest.mark.looptime

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
        async def subscribe(self, topic_filter: str, handler: MessageHandler, *, retained: bool = False) -> None:
            await super().subscribe(topic_filter, handler, retained=retained)
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
