"""What a broker keeps of clients that are gone: nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.harness.tcp_proxy import Proxy
from controller.local.embedded import EmbeddedBroker
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.protocol.codec import Presence, presence_filter
from headgate.settings.config import ClientConfig
from headgate.transport.mqtt import MqttTransport
from tests.support.samples.secret_files import write_secret
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


async def connect_once(broker: EmbeddedBroker, password: str, number: int) -> None:
    """Connect and leave; every second client crashes instead of leaving."""
    async with Proxy(broker.host, broker.port) as proxy:
        where = {"broker_host": "127.0.0.1", "broker_port": proxy.port, "ledger_url": "file:///nowhere"}
        config = ClientConfig(cluster=CLUSTER, username="shop", password_file=password, **where)
        async with Client.from_config(config, "client") as client:
            await until(lambda: client.transport.connected)
            if number % 2:
                await proxy.cut()


async def test_clients_that_connected_once_leave_no_retained_message(broker: EmbeddedBroker, tmp_path: Path) -> None:
    password = str(write_secret(tmp_path / "password", b"sesame"))
    async with MqttTransport(broker.host, broker.port, "leader") as leader:
        await until(lambda: leader.connected)
        announced: list[Presence] = []
        await leader.subscribe(
            presence_filter(CLUSTER), lambda topic, payload: announced.append(codec.read_presence(topic, payload))
        )
        for first in range(0, CLIENTS, TOGETHER):
            await asyncio.gather(*(connect_once(broker, password, number) for number in range(first, first + TOGETHER)))
        await until(lambda: len({each.client_id for each in announced if not each.online}) == CLIENTS)
        assert len({each.client_id for each in announced}) == CLIENTS, "a will names the client as it names itself"

        retained: list[str] = []
        leader.publish("headgate/end", b"end", retain=True)
        async with MqttTransport(broker.host, broker.port, "observer") as observer:
            await until(lambda: observer.connected)
            await observer.subscribe("headgate/#", lambda topic, _: retained.append(topic), retained=True)
            await until(lambda: "headgate/end" in retained)

    assert retained == ["headgate/end"]
