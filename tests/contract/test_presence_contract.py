"""What a broker keeps of clients that are gone: nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.harness.tcp_proxy import Proxy
from controller.local.embedded import EmbeddedBroker
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.protocol.announcements import Presence
from headgate.protocol.mqtt_topics import presence_filter
from headgate.transport.mqtt import MqttTransport
from tests.support.servers.real_brokers import real_broker
from tests.support.waiting import until

pytestmark = pytest.mark.contract

CLUSTER = "one"
CLIENTS = 60
TOGETHER = 20


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with real_broker(tmp_path) as broker:
        yield broker


async def connect_once(broker: EmbeddedBroker, number: int) -> None:
    """Connect and leave; every second client crashes instead of leaving."""
    client_id = f"client-{number}"
    async with Proxy(broker.host, broker.port) as proxy:
        transport = MqttTransport("127.0.0.1", proxy.port, client_id, will=Client.will(CLUSTER, client_id))
        async with Client(transport=transport, store=None, cluster=CLUSTER, client_id=client_id):
            await until(lambda: transport.connected)
            if number % 2:
                await proxy.cut()


async def test_clients_that_connected_once_leave_no_retained_message(broker: EmbeddedBroker) -> None:
    async with MqttTransport(broker.host, broker.port, "leader") as leader:
        await until(lambda: leader.connected)
        announced: list[Presence] = []
        await leader.subscribe(
            presence_filter(CLUSTER), lambda topic, payload: announced.append(codec.read_presence(topic, payload))
        )
        for first in range(0, CLIENTS, TOGETHER):
            await asyncio.gather(*(connect_once(broker, number) for number in range(first, first + TOGETHER)))
        await until(lambda: len({each.client_id for each in announced if not each.online}) == CLIENTS)

        retained: list[str] = []
        leader.publish("headgate/end", b"end", retain=True)
        async with MqttTransport(broker.host, broker.port, "observer") as observer:
            await until(lambda: observer.connected)
            await observer.subscribe("headgate/#", lambda topic, _: retained.append(topic), retained=True)
            await until(lambda: "headgate/end" in retained)

    assert retained == ["headgate/end"]
