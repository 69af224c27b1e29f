"""What connections use of MQTT 5, and a broker that refuses it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiomqtt  # noqa: TID251 - an MQTT device is any client
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from controller.local.certificates import LocalCertificateAuthority
from controller.local.embedded import EmbeddedBroker, find_mosquitto
from controller.local.supervised_process import ProcessSpec
from headgate.files.tls import server_context
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import MqttTransport
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from tests.support.samples.client_configs import client_config
from tests.support.servers.real_brokers import real_broker
from tests.support.servers.scripted_broker import connack
from tests.support.servers.tls_broker import encrypted
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with real_broker(tmp_path) as broker:
        yield broker


@pytest.mark.contract
async def test_the_broker_sends_retained_messages_only_to_filters_that_expect_them(broker: EmbeddedBroker) -> None:
    """It need not store them for the others: they would displace messages there, which is how a client did harm."""
    async with MqttTransport(broker.host, broker.port, "a") as a, MqttTransport(broker.host, broker.port, "b") as b:
        await until(lambda: a.connected and b.connected)
        assert a.publish("x/1", b"retained", retain=True)
        got: list[bytes] = []
        await a.subscribe("x/1", lambda _, payload: got.append(payload), retained=True)
        await until(lambda: got == [b"retained"])
        await b.subscribe("x/#", lambda _, payload: got.append(payload))
        assert a.publish("x/2", b"new")
        await until(lambda: got == [b"retained", b"new"])

    assert b.router.ignored_retained == 0


async def test_a_broker_that_refuses_mqtt5_is_spoken_to_with_mqtt_3_1_1() -> None:
    versions: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version = (await reader.readuntil(b"MQTT") + await reader.readexactly(1))[-1]
        versions.append(version)
        writer.write(b"\x20\x02\x00\x00" if version == 4 else b"\x20\x02\x00\x01")
        while await reader.read(1000):
            pass
        writer.close()

    timing = MqttTiming(close_timeout_seconds=0.1)
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        MqttTransport("127.0.0.1", server.sockets[0].getsockname()[1], "a", timing=timing) as a,
    ):
        await until(lambda: a.connected)
        assert (versions, a.broker) == ([5, 4], None)


@pytest.mark.contract
async def test_a_message_of_a_device_has_its_properties_and_the_answer_what_it_correlates(broker: EmbeddedBroker):
    arrived: list[ArrivedMessage] = []
    asks = Properties(PacketTypes.PUBLISH)
    asks.ResponseTopic, asks.CorrelationData = "replies/a", b"17"
    asks.ContentType, asks.UserProperty = "text/plain", [("b", "é\ufeff"), ("a", "1"), ("b", "")]
    async with (
        aiomqtt.Client(broker.host, broker.port, protocol=aiomqtt.ProtocolVersion.V5) as device,
        MqttPersistentSession(broker.host, broker.port, "session", arrived.append) as session,
        MqttTransport(broker.host, broker.port, "daemon") as daemon,
    ):
        await until(lambda: session.connected and daemon.connected)
        await session.add_subscriptions(["publish/#"], session.connection)
        await device.subscribe("replies/a")
        await device.publish("publish/a", b"value", qos=1, properties=asks)
        await until(lambda: arrived)
        assert (arrived[0].response_topic, arrived[0].correlation_data) == ("replies/a", b"17")
        named = ("b", "é\ufeff".encode()), ("a", b"1"), ("b", b"")
        assert arrived[0].headers == (("content-type", b"text/plain"), *named)
        assert daemon.publish("replies/a", b"stored", correlation_data=b"17")
        answer = await anext(device.messages)

    assert (answer.payload, answer.properties.CorrelationData) == (b"stored", b"17")


class SmallPackets(EmbeddedBroker):
    """A broker that accepts packets of 10 000 bytes."""

    async def _process_spec(self, port: int) -> ProcessSpec:
        spec = await super()._process_spec(port)
        config = self.folder / "mosquitto.conf"
        config.write_text(config.read_text().replace("max_packet_size 5242880", "max_packet_size 10000"))
        return spec


@pytest.mark.contract
@pytest.mark.parametrize("topic", ["x", "x" * 1000])
async def test_the_largest_packet_of_the_broker_is_sent_and_no_larger_one(tmp_path: Path, topic: str) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed; CI installs it")
    got: list[int] = []
    async with SmallPackets(tmp_path, kind="mosquitto") as broker, MqttTransport(broker.host, broker.port, "a") as a:
        await until(lambda: a.connected)
        lost: list[bool] = []
        a.on_connection(lost.append)
        await a.subscribe(topic, lambda _, payload: got.append(len(payload)))
        limit = a.max_payload_bytes(topic)

        assert not a.publish(topic, bytes(limit + 1))
        assert a.publish(topic, bytes(limit), retain=True)

        await until(lambda: got)
    assert (got, lost) == ([limit], [False])
    assert 10_000 - len(topic) - 20 < limit < 10_000


# What TLS has decrypted is read, although no readiness of the socket announces it.


SIZE = 50


def publication(number: int) -> bytes:
    """Return PUBLISH of MQTT 5 at QoS 1 with ``SIZE`` bytes."""
    variable = b"\x00\x01t" + number.to_bytes(2, "big") + b"\x00"
    return bytes([0x32, len(variable) + SIZE]) + variable + b"%d" % number * SIZE


async def test_a_paused_session_resumes_with_messages_of_one_record(tmp_path: Path) -> None:
    """A broker may write several messages at once, which TLS encrypts and decrypts together."""
    authority = LocalCertificateAuthority(tmp_path)
    files = authority.issue("broker", hosts=("127.0.0.1",))
    context = server_context(certificate_file=files.certificate_file, key_file=files.key_file)
    paused = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(connack())
        writer.write(publication(1))
        await paused.wait()
        writer.write(b"".join(publication(number) for number in range(2, 6)))
        while await reader.read(1000):
            pass
        writer.close()

    received: list[ArrivedMessage] = []
    window = ReadingWindow(SIZE - 1)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        tls = encrypted(client_config(tls=True, ca_file=str(authority.ca_file)), "127.0.0.1")
        session = MqttPersistentSession(
            "127.0.0.1",
            port,
            "session",
            received.append,
            tls=tls,
            timing=MqttTiming(close_timeout_seconds=0.1),
            window=window,
        )
        async with session:
            await until(lambda: len(received) == 1)
            paused.set()
            for number in range(5):
                await until(lambda wanted=number: len(received) > wanted)
                received[number].acknowledge()
                received[number].acknowledge()  # Nothing more.
    assert window._used_bytes == 0

    assert [b"%d" % number * SIZE for number in range(1, 6)] == [delivery.payload for delivery in received]
