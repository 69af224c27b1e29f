"""Properties of the real MqttTransport only: bounds, private parts of its libraries, logging, frozen brokers."""

import asyncio
import math
import random
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import aiomqtt  # noqa: TID251 - its private parts are what is tested
import paho.mqtt.client
import pytest
from paho.mqtt.client import CallbackAPIVersion
from paho.mqtt.client import Client as PahoClient

from controller.local.embedded import EmbeddedBroker
from headgate.client.connection import Client
from headgate.errors import TransportError
from headgate.log.event_log import LogEvent
from headgate.settings.config import ClientConfig
from headgate.transport import mqtt
from headgate.transport.broker_tls import BrokerTls, TlsSockets
from headgate.transport.connection_options import EarlyLosses, MqttTiming, pause_after_attempt
from headgate.transport.mqtt import Attempt, MqttTransport
from headgate.transport.mqtt_packets import ArrivedMessage
from tests.support.fakes.broker import FakeBroker, FakeTransport
from tests.support.servers.scripted_broker import connack, scripted_broker
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg.event for record in caplog.records if isinstance(record.msg, LogEvent)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path) as broker:
        yield broker


@pytest.fixture
def timing() -> MqttTiming:
    return MqttTiming()


@pytest.fixture
async def transport(broker: EmbeddedBroker, timing: MqttTiming) -> AsyncIterator[MqttTransport]:
    async with MqttTransport(
        broker.host, broker.port, "a", timing=timing, max_outgoing_bytes=100_000, max_outgoing_messages=50
    ) as a:
        await until(lambda: a.connected)
        yield a


@pytest.fixture
def _no_immediate_writes(timing: MqttTiming) -> None:
    """Messages wait for the loop's next turn, however long nothing was written."""
    timing.immediate_write_after_idle_seconds = math.inf


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    broker.freeze()
    try:
        yield
    finally:
        broker.thaw()


def counted_attempts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets an item with each connection attempt."""
    attempts: list[object] = []
    connect = mqtt._connect

    async def counting(client: aiomqtt.Client) -> None:
        attempts.append(client)
        await connect(client)

    monkeypatch.setattr(mqtt, "_connect", counting)
    return attempts


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def paho_of(transport: MqttTransport) -> paho.mqtt.client.Client:
    return transport._client._client


MATCHING = [
    ("a", "a"),
    ("#", "a/b"),
    ("a/#", "a"),
    ("a/#", "a/b"),
    ("a/#", "a/b/c"),
    ("+", "a"),
    ("a/+", "a/"),
    ("a/+/c", "a/b/c"),
    ("+/+", "/a"),
    ("/+", "/a"),
    ("+/b/#", "a/b/c"),
    ("$SYS/#", "$SYS/x"),
    ("$SYS/+", "$SYS/x"),
]
NOT_MATCHING = [
    ("a", "a/b"),
    ("a/b", "a"),
    ("a/+", "a"),
    ("a/+", "a/b/c"),
    ("+", "/a"),
    ("a/+/c", "a/b/d"),
    ("a/#", "b"),
    ("a/+/#", "a"),
    ("#", "$SYS/x"),
    ("+/x", "$SYS/x"),
]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [*((*pair, True) for pair in MATCHING), *((*pair, False) for pair in NOT_MATCHING)],
)
@pytest.mark.parametrize("kind", ["mqtt", "fake"])
async def test_a_handler_receives_messages_that_its_filter_matches(kind, topic_filter, topic, matches):
    """The examples of MQTT 3.1.1, section 4.7, and the shapes of headgate's own topics."""
    received: list[tuple[str, bytes]] = []
    others: list[str] = []

    async def deliver(transport: MqttTransport | FakeTransport) -> None:
        if isinstance(transport, FakeTransport):
            transport.receive(topic, b"payload", retained=False)
        else:
            message = ArrivedMessage(topic, b"payload", qos=0, retained=False, number=0)
            transport._on_message(PahoClient(CallbackAPIVersion.VERSION2), message)
        await asyncio.sleep(0)

    transport = MqttTransport("no-broker.invalid", 1, "a") if kind == "mqtt" else FakeBroker().transport("a")
    await transport.subscribe("other", lambda topic, _: others.append(topic))
    await deliver(transport)  # What is remembered of it ends with the next subscription.
    await transport.subscribe(topic_filter, lambda topic, payload: received.append((topic, payload)))
    await deliver(transport)

    assert received == ([(topic, b"payload")] if matches else [])

    await transport.unsubscribe(topic_filter)
    await transport.unsubscribe(topic_filter)
    await deliver(transport)

    assert (len(received), others) == (int(matches), [])


@pytest.mark.contract
async def test_the_private_attributes_of_aiomqtt_and_paho_exist(transport: MqttTransport) -> None:
    """Both libraries may change them at any time."""
    client = paho_of(transport)

    assert isinstance(client, paho.mqtt.client.Client)
    assert callable(client._sock_close)
    assert callable(PahoClient._handle_publish)
    assert {"command", "packet"} <= set(client._in_packet)
    assert isinstance(client._keepalive, int)
    assert isinstance(transport._client._misc_task, asyncio.Task)
    found = client.socket()
    assert isinstance(found, socket.socket)
    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.contract
async def test_a_message_after_a_pause_is_written_before_publish_returns_and_later_ones_in_the_next_turn(
    transport: MqttTransport, timing: MqttTiming
) -> None:
    got: list[bytes] = []
    await transport.subscribe("x", lambda _, payload: got.append(payload))

    timing.immediate_write_after_idle_seconds = 0.0
    assert transport.publish("x", b"first")
    assert not paho_of(transport).want_write()
    timing.immediate_write_after_idle_seconds = math.inf
    assert transport.publish("x", b"second")
    assert transport.publish("x", b"third", retain=True)
    assert paho_of(transport).want_write()
    await asyncio.sleep(0)
    assert not paho_of(transport).want_write()

    await until(lambda: got == [b"first", b"second", b"third"])


@pytest.mark.contract
@pytest.mark.usefixtures("_no_immediate_writes")
async def test_messages_beyond_the_maximum_number_are_dropped(transport: MqttTransport) -> None:
    accepted = [transport.publish("x", b"") for _ in range(60)]

    assert accepted == [True] * 50 + [False] * 10


@pytest.mark.contract
@pytest.mark.usefixtures("_no_immediate_writes")
async def test_messages_beyond_the_maximum_bytes_are_dropped_until_there_is_capacity(transport: MqttTransport) -> None:
    assert transport.publish("x", b"." * 90_000)
    assert not transport.publish("x", b"." * 10_001)

    # No other event: the socket accepts the waiting message.
    await until(lambda: transport.publish("x", b"." * 10_001))


@pytest.mark.contract
@pytest.mark.usefixtures("_no_immediate_writes")
async def test_a_single_message_may_exceed_the_maximum_bytes(transport: MqttTransport) -> None:
    assert transport.publish("x", b"." * 200_000)
    assert not transport.publish("x", b"")


@pytest.mark.contract
async def test_the_transport_detects_a_frozen_broker_and_reconnects(broker: EmbeddedBroker) -> None:
    states: list[bool] = []
    async with MqttTransport(
        broker.host, broker.port, "a", timing=MqttTiming(keepalive_seconds=600, ping_seconds=1), max_outgoing_messages=3
    ) as a:
        a.on_connection(states.append)
        await until(lambda: states == [True])
        with frozen(broker):
            assert [a.publish("x", b"", retain=True) for _ in range(4)] == [True, True, True, False]
            await until(lambda: states == [True, False])
            assert not a.publish("x", b"")

        await until(lambda: states == [True, False, True])
        # Messages of the lost connection no longer count.
        assert [a.publish("x", b"", retain=True) for _ in range(4)] == [True, True, True, False]


@pytest.mark.contract
async def test_a_broker_that_does_not_confirm_a_subscription_counts_as_lost(broker: EmbeddedBroker) -> None:
    timing = MqttTiming(subscribe_timeout_seconds=0.2, keepalive_seconds=60)
    got: list[bytes] = []
    async with MqttTransport(broker.host, broker.port, "a", timing=timing) as a:
        await until(lambda: a.connected)
        with frozen(broker):
            await a.subscribe("x", lambda _, payload: got.append(payload))
            await until(lambda: not a.connected)

        timing.subscribe_timeout_seconds = 60.0
        await until(lambda: a.connected)
        a.publish("x", b"1")
        await until(lambda: got == [b"1"])


@pytest.mark.contract
async def test_connection_attempts_to_a_frozen_broker_leave_no_open_sockets(broker, monkeypatch, caplog):
    timing = MqttTiming(connect_timeout_seconds=0.1)
    attempts = counted_attempts(monkeypatch)
    with frozen(broker):
        before = open_files()
        async with MqttTransport(broker.host, broker.port, "a", timing=timing) as a:
            await until(lambda: len(attempts) >= 4)
            assert not a.connected
        assert open_files() <= before
    assert logged(caplog) == ["broker.unreachable"]


@pytest.mark.contract
async def test_an_error_in_a_handler_is_reported_and_the_connection_stays_open(transport, caplog):
    got: list[bytes] = []
    states: list[bool] = []

    def handler(_topic: str, payload: bytes) -> None:
        if payload == b"bad":
            raise ZeroDivisionError
        got.append(payload)

    transport.on_connection(states.append)
    await transport.subscribe("x", handler)
    transport.publish("x", b"bad")
    transport.publish("x", b"good")

    await until(lambda: got == [b"good"])
    assert states == []
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.contract
async def test_two_programs_with_one_client_id_are_reported(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture):
    """Each one ends the other's connection. Neither amqtt nor mosquitto 2.0.11 says why it ends one."""
    if broker.kind == "amqtt":
        pytest.skip("amqtt keeps both connections; it runs where mosquitto is installed, as in CI")
    reports: list[str] = []
    async with (
        MqttTransport(broker.host, broker.port, "till", on_taken_over=lambda: reports.append("first")),
        MqttTransport(broker.host, broker.port, "till", on_taken_over=lambda: reports.append("second")),
    ):
        await until(lambda: reports.count("first") > 1 and reports.count("second") > 1)

    found = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    errors = [(each.event, each.fields["client_id"]) for each in found if each.event.startswith("mqtt.")]
    assert errors == [("mqtt.session_taken_over", "till")] * 2, "each program reports it once"
    reasons = {str(each.fields["reason"]) for each in found if each.event == "broker.unreachable"}
    assert "the broker closed the connection" in reasons
    assert not any("Unspecified error" in reason for reason in reasons)


async def test_a_rejected_subscription_is_an_error_that_names_the_filter_and_no_reason_not_to_connect_again() -> None:
    class RejectingClient:
        _disconnected, refused = asyncio.get_running_loop().create_future(), {"secret"}

        async def subscribe(self, filters: list[tuple[str, int]], **_: float) -> list[object]:
            return [paho.mqtt.client.ReasonCode(9, identifier=128 * (each in self.refused)) for each, _ in filters]

    transport = MqttTransport("no-broker.invalid", 1, "a")
    transport._attempt = Attempt(cast("Any", RejectingClient()), cast("Any", None), accepted=True)
    await transport.subscribe("open", lambda *_: None, optional=True)
    with pytest.raises(TransportError, match="subscription to secret:"):
        await transport.subscribe("secret", lambda *_: None)
    assert transport.router.filters == ["open"]
    RejectingClient.refused.add("open")
    await transport._subscribe_all(cast("Any", RejectingClient()))


@pytest.mark.parametrize("host", ["a..b", "ä" * 64, ".", "no-broker.invalid"])
async def test_a_host_that_cannot_be_looked_up_is_a_reason_and_no_bug(host: str, caplog: pytest.LogCaptureFixture):
    async with MqttTransport(host, 1883, "a") as a:
        await until(lambda: a.unreachable_reason is not None)

    assert ["broker.unreachable"] == logged(caplog)


@pytest.mark.contract
async def test_a_broker_that_closes_before_it_answers_is_noticed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not after the time-out, and paho's error of each attempt is not logged."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    timing = MqttTiming(connect_timeout_seconds=300.0)
    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with MqttTransport("127.0.0.1", port, "a", timing=timing) as a:
            await until(lambda: a.unreachable_reason is not None)

    assert (a.unreachable_reason or "").startswith("the broker closed the connection before it answered; if this port")
    assert ["broker.unreachable"] == [getattr(record.msg, "event", record.msg) for record in caplog.records]


async def test_a_broker_that_closes_while_a_client_subscribes_is_noticed_at_once() -> None:
    """Not after the time-out: a broker that restarts may be back by then."""

    async def close_after_connack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(connack())
        await reader.readuntil(b"answers")
        writer.close()

    timing = MqttTiming(subscribe_timeout_seconds=300.0)
    async with await asyncio.start_server(close_after_connack, "127.0.0.1", 0) as server:
        transport = MqttTransport("127.0.0.1", server.sockets[0].getsockname()[1], "a", timing=timing)
        await transport.subscribe("answers", lambda _topic, _payload: None)
        async with transport as a:
            await until(lambda: a.unreachable_reason is not None)

    assert a.unreachable_reason == "the broker closed the connection"


async def test_closing_ends_the_wait_for_an_answer_that_the_broker_never_gives() -> None:
    async def only_accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(connack())
        await reader.read()
        writer.close()

    timing = MqttTiming(subscribe_timeout_seconds=300.0, close_timeout_seconds=0.1)
    async with await asyncio.start_server(only_accept, "127.0.0.1", 0) as server:
        async with MqttTransport("127.0.0.1", server.sockets[0].getsockname()[1], "a", timing=timing) as a:
            await until(lambda: a.connected)
            subscribing = asyncio.create_task(a.subscribe("answers", lambda _topic, _payload: None))
            await asyncio.sleep(0)
        async with asyncio.timeout(30.0):
            await subscribing


# An attempt to connect ends when it is not wanted any more, and not later than the wait for it.


@pytest.mark.parametrize("tls", [False, True], ids=["without TLS", "in the handshake"])
async def test_closing_does_not_wait_for_a_broker_that_does_not_answer(tls: bool) -> None:
    """A command that has said so must end, and not wait for its attempt."""
    limit_seconds = 100.0
    context = ssl.create_default_context()
    encrypted = BrokerTls(lambda: context, "localhost") if tls else None
    contacted = asyncio.Event()
    async with scripted_broker(b"", contacted) as port:
        timing = MqttTiming(connect_timeout_seconds=limit_seconds, keepalive_seconds=int(limit_seconds))
        transport = MqttTransport("127.0.0.1", port, "c", tls=encrypted, timing=timing)
        await transport.__aenter__()
        await contacted.wait()
        async with asyncio.timeout(limit_seconds / 2):
            await transport.__aexit__(None, None, None)

    assert transport.unreachable_reason is None


@pytest.mark.parametrize(("seconds", "expected"), [(None, 3.0), (0.5, 0.5), (4.0, 4.0), (60.0, 10.0)])
def test_an_attempt_does_not_outlive_the_wait_for_it(seconds: float | None, expected: float) -> None:
    assert MqttTiming.for_first_connection(seconds).connect_timeout_seconds == expected


def test_the_client_of_a_command_uses_the_wait_of_the_command(tmp_path: Path) -> None:
    config = ClientConfig(
        cluster="c", broker_host="h", broker_port=1, ledger_url=tmp_path.as_uri(), broker_timeout_seconds=4.0
    )
    transport = Client.from_config(config, "admin").transport

    assert isinstance(transport, MqttTransport)
    assert transport._timing.connect_timeout_seconds == 4.0


def test_after_closing_no_handshake_begins() -> None:
    """The thread that connects may reach it only then."""
    context = ssl.create_default_context()
    sockets = TlsSockets(BrokerTls(lambda: context, "localhost"))
    sockets.abort()
    with socket.socket() as plain, pytest.raises(ConnectionAbortedError):
        sockets.wrap_socket(plain)


# How long a transport waits before it connects again.


def test_connections_that_end_early_are_followed_by_growing_pauses() -> None:
    """Of two programs with one client id, each is connected while the other pauses, up to 30 seconds."""
    losses = EarlyLosses(random.Random(1).random)
    pauses = [0.0]
    for _ in range(200):
        pauses.append(losses.pause_after(min(2.0 ** len(pauses) / 40, 30.0)))

    assert max(pauses[1:4]) < 1
    assert max(pauses) <= 30
    assert sum(pauses[-100:]) / 100 > 10
    assert losses.in_a_row == 200


def test_the_loss_of_a_stable_connection_is_followed_by_a_short_pause() -> None:
    losses = EarlyLosses(random.Random(1).random)
    for _ in range(200):
        losses.pause_after(0.0)

    assert losses.pause_after(60.0) <= 0.1
    assert losses.in_a_row == 0
    assert losses.pause_after(6.0) <= 0.1, "five seconds are long after a short pause"


@pytest.mark.parametrize(("attempt_seconds", "pause_seconds"), [(0.0, 2.0), (0.5, 1.5), (3.0, 0.05)])
def test_the_time_of_a_failed_attempt_counts_as_its_pause(attempt_seconds: float, pause_seconds: float) -> None:
    """A network that returns while an attempt waits is used at once."""
    assert pause_after_attempt(2.0, attempt_seconds) == pause_seconds
