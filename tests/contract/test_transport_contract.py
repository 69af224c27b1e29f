"""The contract of `Transport`: the same tests on the fake broker and on real ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.harness.tcp_proxy import Proxy
from controller.local.embedded import EmbeddedBroker
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import MqttTransport
from headgate.transport.port import MAX_PAYLOAD_BYTES, Transport
from tests.support.fakes.broker import FakeBroker
from tests.support.servers.real_brokers import BROKERS, expect_to_fail, real_broker, tls_of
from tests.support.waiting import never, until

Will = tuple[str, bytes, bool]


class FakeBrokerHarness:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._broker = FakeBroker()

    async def build(self, client_id: str, will: Will | None = None) -> Transport:
        return self._broker.transport(client_id, will)

    async def open(self, client_id: str, will: Will | None = None) -> Transport:
        return await opened(self._stack, await self.build(client_id, will))

    async def drop(self, client_id: str) -> None:
        self._broker.drop(client_id)

    async def begin_outage(self) -> None:
        self._broker.stop()

    async def end_outage(self) -> None:
        self._broker.start()


class MosquittoHarness:
    """Each client connects through its own proxy."""

    def __init__(self, stack: AsyncExitStack, broker: EmbeddedBroker) -> None:
        self._stack = stack
        self._broker = broker
        self._proxies: dict[str, Proxy] = {}

    async def build(self, client_id: str, will: Will | None = None) -> Transport:
        proxy = await self._stack.enter_async_context(Proxy(self._broker.host, self._broker.port))
        self._proxies[client_id] = proxy
        return MqttTransport("127.0.0.1", proxy.port, client_id, will=will, tls=tls_of(self._broker))

    async def open(self, client_id: str, will: Will | None = None) -> Transport:
        return await opened(self._stack, await self.build(client_id, will))

    async def drop(self, client_id: str) -> None:
        await self._proxies[client_id].cut()
        await self._proxies[client_id].heal()

    async def begin_outage(self) -> None:
        for proxy in self._proxies.values():
            await proxy.cut()

    async def end_outage(self) -> None:
        for proxy in self._proxies.values():
            await proxy.heal()


BrokerHarness = FakeBrokerHarness | MosquittoHarness
"""A broker whose connections can fail."""


async def opened(stack: AsyncExitStack, transport: Transport) -> Transport:
    await stack.enter_async_context(transport)
    await until(lambda: transport.connected)
    return transport


@pytest.fixture(params=BROKERS)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield FakeBrokerHarness(stack)
            return
        expect_to_fail(request.param, request.node.name)
        broker = await stack.enter_async_context(real_broker(tmp_path, request.param))
        yield MosquittoHarness(stack, broker)


class Inbox:
    """A handler that collects messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    def __call__(self, topic: str, payload: bytes) -> None:
        self.messages.append((topic, payload))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages]


async def test_a_message_reaches_every_subscriber_including_its_sender(harness: BrokerHarness) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    at_a, at_b = Inbox(), Inbox()
    await a.subscribe("x/y", at_a)
    await b.subscribe("x/y", at_b)

    assert a.publish("x/y", b"hello")

    await until(lambda: at_a.messages and at_b.messages)
    assert at_a.messages == at_b.messages == [("x/y", b"hello")]


async def test_the_order_of_one_sender_is_kept_across_topics_and_sizes(harness: BrokerHarness) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    inbox = Inbox()
    await b.subscribe("x/+", inbox)
    expected = [(f"x/{n % 3}", b"%d " % n + b"." * (n % 5 * 2000)) for n in range(500)]

    for topic, payload in expected:
        assert a.publish(topic, payload)

    await until(lambda: len(inbox.messages) >= len(expected))
    assert inbox.messages == expected


async def test_a_retained_message_reaches_present_and_later_subscribers_until_it_is_cleared(
    harness: BrokerHarness,
) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    early, late, later = Inbox(), Inbox(), Inbox()
    await b.subscribe("state", early, retained=True)

    a.publish("state", b"1", retain=True)
    a.publish("state", b"2", retain=True)
    await until(lambda: b"2" in early.payloads)
    c = await harness.open("c")
    await c.subscribe("state", late, retained=True)

    await until(lambda: late.messages)
    # Not the first one. amqtt may deliver the second one twice, to a client that subscribes while it passes it on.
    assert set(late.messages) == {("state", b"2")}
    a.publish("state", b"", retain=True)
    await until(lambda: b"" in early.payloads)
    d = await harness.open("d")
    await d.subscribe("#", later, retained=True)
    a.publish("other", b"after")
    await until(lambda: later.messages)
    assert later.messages == [("other", b"after")]


async def test_a_filter_ignores_retained_copies_unless_it_expects_them(harness: BrokerHarness, request) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    requests, states, connections = Inbox(), Inbox(), []
    b.on_connection(connections.append)
    await b.subscribe("requests", requests)
    a.publish("requests", b"once", retain=True)
    await until(lambda: requests.messages)

    await harness.drop("b")
    await until(lambda: connections[-2:] == [False, True])
    c = await harness.open("c")
    await c.subscribe("requests", states, retained=True)
    a.publish("requests", b"next")

    await until(lambda: b"next" in states.payloads and b"next" in requests.payloads)
    assert requests.payloads == [b"once", b"next"]
    if request.node.callspec.params["harness"] == "amqtt" and len(states.payloads) > 2:
        # It sends a copy to each new connection, because the filter of b matches, and c may already expect it.
        assert states.messages.pop(0) == ("requests", b"once")
    assert states.payloads == [b"once", b"next"]


async def test_nothing_is_delivered_after_unsubscribing(harness: BrokerHarness) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    stopped, other = Inbox(), Inbox()
    await b.subscribe("x", stopped)
    await b.subscribe("y", other)

    await b.unsubscribe("x")
    a.publish("x", b"1")
    a.publish("y", b"2")

    await until(lambda: other.messages)
    assert stopped.messages == []


async def test_the_broker_publishes_the_will_of_a_lost_client(harness: BrokerHarness) -> None:
    watcher = await harness.open("watcher")
    presence = Inbox()
    await watcher.subscribe("presence/+", presence)
    await harness.open("a", ("presence/a", b"gone", True))

    await harness.drop("a")

    await until(lambda: presence.messages)
    assert presence.messages == [("presence/a", b"gone")]


async def test_closing_publishes_no_will_and_loses_no_message(harness: BrokerHarness) -> None:
    watcher = await harness.open("watcher")
    inbox = Inbox()
    await watcher.subscribe("#", inbox)
    a = await harness.build("a", ("presence/a", b"gone", True))
    async with a:
        await until(lambda: a.connected)
        # It reads its own messages too, so there is unread input when it closes.
        await a.subscribe("data", Inbox())
        for n in range(300):
            a.publish("data", b"%d" % n + b"." * 3000)
        a.publish("presence/a", b"bye", retain=True)

    await until(lambda: b"bye" in inbox.payloads)
    assert len(inbox.messages) == 301
    assert b"gone" not in inbox.payloads


async def test_after_a_loss_subscriptions_exist_when_the_handlers_are_notified(harness: BrokerHarness) -> None:
    """The reply to a request sent at that moment is delivered."""
    a, b = await harness.open("a"), await harness.open("b")
    inbox = Inbox()
    states: list[bool] = []
    a.on_connection(states.append)
    a.on_connection(lambda connected: connected and a.publish("x", b"ping"))
    await a.subscribe("x", inbox)
    await a.subscribe("y/#", inbox)

    await harness.drop("a")
    await until(lambda: states == [False, True])

    assert a.connected
    b.publish("x", b"1")
    b.publish("y/z", b"2")
    await until(lambda: sorted(inbox.payloads) == [b"1", b"2", b"ping"])


async def test_publishing_fails_during_an_outage_and_works_afterwards(harness: BrokerHarness) -> None:
    a, b = await harness.open("a"), await harness.open("b")
    inbox = Inbox()

    await harness.begin_outage()
    await until(lambda: not a.connected and not b.connected)
    assert not a.publish("x", b"lost")
    # Returns immediately; waiting for the broker's confirmation would take longer.
    await asyncio.wait_for(b.subscribe("x", inbox), MqttTiming().subscribe_timeout_seconds * 0.9)
    await harness.end_outage()

    await until(lambda: a.connected and b.connected)
    assert a.publish("x", b"kept")
    await until(lambda: inbox.messages)
    assert inbox.payloads == [b"kept"]


async def test_a_client_opened_during_an_outage_connects_when_it_ends(harness: BrokerHarness) -> None:
    a = await harness.build("a")
    states: list[bool] = []
    a.on_connection(states.append)
    await harness.begin_outage()
    async with a:
        await never(lambda: a.connected, 0.3)

        await harness.end_outage()

        await until(lambda: a.connected)
        assert states == [True]


async def test_closing_during_an_outage_takes_a_few_seconds(harness: BrokerHarness) -> None:
    a = await harness.build("a")
    async with a:
        await until(lambda: a.connected)
        await harness.begin_outage()
        await until(lambda: not a.connected)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 20


async def test_a_second_client_with_the_same_id_disconnects_the_first(harness: BrokerHarness) -> None:
    first = await harness.open("a")
    lost: list[bool] = []
    first.on_connection(lost.append)

    await harness.open("a")

    await until(lambda: False in lost)


async def test_a_message_of_a_megabyte_is_delivered(harness: BrokerHarness) -> None:
    a = await harness.open("a")
    inbox = Inbox()
    await a.subscribe("big", inbox)
    payload = bytes(range(256)) * 4096

    assert a.publish("big", payload)

    await until(lambda: inbox.messages)
    assert inbox.payloads == [payload]


async def test_a_message_above_the_limit_is_not_sent_and_the_connection_stays_open(harness: BrokerHarness) -> None:
    """A broker closes the connection of a client that exceeds its limit."""
    a = await harness.open("a")
    inbox, states = Inbox(), []
    await a.subscribe("x", inbox)
    a.on_connection(states.append)

    assert not a.publish("x", b"." * (MAX_PAYLOAD_BYTES + 1))
    assert a.publish("x", b"." * MAX_PAYLOAD_BYTES)
    assert a.publish("x", b"next")

    await until(lambda: b"next" in inbox.payloads)
    assert [len(payload) for payload in inbox.payloads] == [MAX_PAYLOAD_BYTES, 4]
    assert states == []


async def test_the_broker_says_whether_a_message_with_qos_1_met_a_subscriber(harness: BrokerHarness) -> None:
    listener, sender = await harness.open("listener"), await harness.open("sender")
    await listener.subscribe("requests/+", lambda *_: None)

    def publish(*topics: str) -> None:
        for topic in topics:
            sender.publish(topic, b"", qos=1)

    publish("requests/1", "presence/1")
    await until(lambda: sender.is_unheard("presence/1"))
    assert not sender.is_unheard("requests/1")
    await listener.unsubscribe("requests/+")
    await listener.subscribe("presence/+", lambda *_: None)
    publish("presence/1", "requests/1")
    await until(lambda: sender.is_unheard("requests/1"))
    assert not sender.is_unheard("presence/1")
