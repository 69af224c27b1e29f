"""A device fills the broker with what it may publish, to displace what others publish."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.harness.raw_client import RawClient
from controller.access.broker_rules import BrokerFormat, export
from controller.access.file import read_access_file
from controller.devices.session_port import Delivery
from controller.local.broker_access import BrokerAccess
from controller.local.secured_cluster import SecuredBroker
from controller.local.supervised_process import ProcessSpec
from headgate.protocol import messages as m
from headgate.transport.mqtt_persistent_session import MAX_UNACKNOWLEDGED_MESSAGES, MqttPersistentSession
from tests.support.servers.programs import TEST_SECONDS
from tests.support.waiting import until

pytestmark = [pytest.mark.security, pytest.mark.timeout(TEST_SECONDS)]

CLUSTER = "test"
ACCESS = """
[[users.gateway]]
role = "device"
topics = ["orders"]
[[users.sensor]]
role = "device"
topics = ["other"]
"""
PASSWORDS = {"daemon": "d", "gateway": "g", "sensor": "s"}
QUEUED = 100
"""Messages that the broker keeps for a session, besides those in flight. The shipped limit is higher, as is the number of
messages that an attacker can send."""
RETAINED = MAX_UNACKNOWLEDGED_MESSAGES + 2 * QUEUED


class SmallBroker(SecuredBroker):
    """A broker whose limits are reached soon."""

    def _process_spec(self, port: int) -> ProcessSpec:
        spec = super()._process_spec(port)
        with (self.folder / "mosquitto.conf").open("a") as config:
            config.write(f"max_queued_messages {QUEUED}\n")
        return spec


async def publish_all(broker: SmallBroker, user: str, topic: str, count: int, *, retain: bool = False) -> None:
    """Publish as ``user``; return when the broker has acknowledged every message."""
    async with RawClient(broker.host, broker.port, f"{user}-1", user=user, password=PASSWORDS[user]) as device:
        names = [f"headgate/{CLUSTER}/publish/{topic}/{number}" for number in range(count)]
        answers = await asyncio.gather(*(device.publish(name, b"value", retain=retain) for name in names))
    assert set(answers) <= {"Success", "No matching subscribers"}


async def test_retained_messages_of_a_device_displace_none_of_another(tmp_path: Path) -> None:
    """The attacker has left when the next leader subscribes, and the broker would send it all that was retained.

    The leader reads on only when its first messages are durable. Meanwhile the other device publishes.
    """
    access = BrokerAccess(tmp_path / "passwords", tmp_path / "acl")
    (tmp_path / "access.toml").write_text(ACCESS)
    rules = export(
        read_access_file(tmp_path / "access.toml"), BrokerFormat.ACL_FILE, cluster=CLUSTER, daemon_user="daemon"
    )
    access.write(PASSWORDS, rules)
    async with SmallBroker(tmp_path / "broker", 0, None, access) as broker:
        await publish_all(broker, "sensor", "other", RETAINED, retain=True)
        deliveries: list[Delivery] = []
        acknowledged = asyncio.Event()

        def handle(delivery: Delivery) -> None:
            deliveries.append(delivery)
            if acknowledged.is_set():
                delivery.acknowledge()

        async with MqttPersistentSession(
            broker.host, broker.port, "shard-0", handler=handle, username="daemon", password="d"
        ) as session:
            await until(lambda: session.connected)
            filters = [m.publish_filter(CLUSTER, topic) for topic in ("orders", "other")]
            assert await session.add_subscriptions(filters, session.connection)
            await publish_all(broker, "gateway", "orders", QUEUED)
            acknowledged.set()
            for delivery in deliveries:
                delivery.acknowledge()
            await until(lambda: sum("/orders/" in each.topic for each in deliveries) == QUEUED)

    assert not any(delivery.retained for delivery in deliveries)
