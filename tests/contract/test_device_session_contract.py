"""The contract of `MqttPersistentSession`: the same tests on the fake broker and on real ones."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiomqtt  # noqa: TID251 - an MQTT device is any client
import pytest

from bench.harness.tcp_proxy import Proxy
from controller.local.embedded import EmbeddedBroker
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import CONFIRMATION_TIMEOUT_SECONDS, MqttPersistentSession
from tests.support.fakes.device_broker import FakeDeviceBroker
from tests.support.servers.real_brokers import BROKERS, LACKS, BrokerKind, expect_to_fail, real_broker, tls_of
from tests.support.source_folders import ROOT
from tests.support.waiting import never, until

SESSION = "headgate-test-shard-0"
GUIDE = (ROOT / "docs" / "operations" / "install.md").read_text()
CLOSE_SECONDS = 20.0
"""A busy machine may need this long."""


class FakeBrokerHarness:
    def __init__(self) -> None:
        self._broker = FakeDeviceBroker()

    async def session(self, handler: Callable[[ArrivedMessage], None]) -> MqttPersistentSession:
        return self._broker.session(SESSION, handler)

    async def publish(self, topic: str, *payloads: bytes, retain: bool = False) -> None:
        for payload in payloads:
            self._broker.publish(topic, payload, retain=retain)

    async def drop(self) -> None:
        self._broker.drop(SESSION)


class MosquittoHarness:
    """The newest session goes through a proxy, which can be cut."""

    def __init__(self, stack: AsyncExitStack, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._stack = stack
        self._proxy: Proxy | None = None

    async def session(self, handler: Callable[[ArrivedMessage], None]) -> MqttPersistentSession:
        self._proxy = await self._stack.enter_async_context(Proxy(self.broker.host, self.broker.port))
        return MqttPersistentSession("127.0.0.1", self._proxy.port, SESSION, handler, tls=tls_of(self.broker))

    async def publish(self, topic: str, *payloads: bytes, retain: bool = False) -> None:
        tls = tls_of(self.broker)
        async with aiomqtt.Client(
            self.broker.host,
            getattr(self.broker, "devices_port", self.broker.port),
            protocol=aiomqtt.ProtocolVersion.V311,
            tls_context=None if tls is None else tls.context(),
        ) as device:
            for payload in payloads:
                await device.publish(topic, payload, qos=1, retain=retain)

    async def drop(self) -> None:
        await self._proxy.cut()
        await self._proxy.heal()


BrokerHarness = FakeBrokerHarness | MosquittoHarness
"""A broker, a device that publishes at QoS 1, and one session."""


@pytest.fixture(params=BROKERS)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield FakeBrokerHarness()
            return
        expect_to_fail(request.param, request.node.name)
        broker = await stack.enter_async_context(real_broker(tmp_path, request.param))
        yield MosquittoHarness(stack, broker)


class Intake:
    """A handler that collects deliveries and optionally acknowledges them."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self.deliveries: list[ArrivedMessage] = []
        self._acknowledges = acknowledges

    def __call__(self, delivery: ArrivedMessage) -> None:
        self.deliveries.append(delivery)
        if self._acknowledges:
            delivery.acknowledge()

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.deliveries]


async def connected(session: MqttPersistentSession) -> None:
    await until(lambda: session.connected)


@asynccontextmanager
async def subscribed(harness: BrokerHarness, intake: Intake) -> AsyncIterator[MqttPersistentSession]:
    """A session that gets what the devices of a topic publish."""
    async with await harness.session(intake) as session:
        await connected(session)
        await session.add_subscriptions(["publish/orders/#"], session.connection)
        yield session


async def test_messages_of_a_device_arrive_in_order_with_their_topic(harness: BrokerHarness) -> None:
    """Those above the protocol's limit arrive, too, and are refused: a broker would acknowledge and drop them."""
    intake, large = Intake(), bytes(MAX_MESSAGE_BYTES + 1)
    async with subscribed(harness, intake):
        await harness.publish("publish/orders/a/b", *(b"%d" % n for n in range(50)))
        await harness.publish("publish/orders", large)
        await harness.publish("publish/other/a", b"not subscribed")
        await harness.publish("publish/orders/z", b"last")
        await until(lambda: b"last" in intake.payloads)

    assert [b"%d" % n for n in range(50)] + [large, b"last"] == intake.payloads
    assert ["publish/orders/a/b", "publish/orders", "publish/orders/z"] == list(
        dict.fromkeys(delivery.topic for delivery in intake.deliveries)
    )
    assert not any(delivery.retained for delivery in intake.deliveries)


async def test_messages_published_without_a_connection_wait_for_the_next_one(harness: BrokerHarness) -> None:
    """The next connection does not subscribe: the session has the subscriptions."""
    first, second = Intake(), Intake()
    async with subscribed(harness, first):
        pass
    await harness.publish("publish/orders/a", b"1", b"2", b"3")

    async with await harness.session(second) as session:
        await connected(session)
        await until(lambda: len(second.payloads) == 3)

    assert [[], [b"1", b"2", b"3"]] == [first.payloads, second.payloads]


async def test_only_unacknowledged_messages_are_delivered_again(harness: BrokerHarness) -> None:
    first, second = Intake(acknowledges=False), Intake()
    async with subscribed(harness, first) as session:
        await harness.publish("publish/orders/a", *(b"%d" % n for n in range(6)))
        await until(lambda: len(first.payloads) == 6)
        for delivery in first.deliveries[:3]:
            delivery.acknowledge()

    async with await harness.session(second) as session:
        await connected(session)
        await until(lambda: len(second.payloads) >= 3)
        await never(lambda: len(second.payloads) > 3, 0.3)

    assert [b"3", b"4", b"5"] == second.payloads


async def test_what_was_not_acknowledged_on_the_connection_of_its_delivery_is_delivered_again(harness: BrokerHarness):
    """On a later connection the broker's number may belong to another message."""
    intake, rest = Intake(acknowledges=False), Intake()
    async with subscribed(harness, intake):
        await harness.publish("publish/orders/a", b"1", b"2")
        await until(lambda: len(intake.payloads) == 2)
        await harness.drop()
        await until(lambda: len(intake.payloads) >= 4)
        for delivery in intake.deliveries[:2]:
            delivery.acknowledge()

    async with await harness.session(rest):
        await until(lambda: len(rest.payloads) == 2)
        await harness.publish("publish/orders/a", b"3")
        await until(lambda: b"3" in rest.payloads)
    assert [b"1", b"2"] * 2 + [b"1", b"2", b"3"] == intake.payloads + rest.payloads


async def test_a_new_connection_takes_over_the_session(harness: BrokerHarness) -> None:
    old, new = Intake(acknowledges=False), Intake()
    async with subscribed(harness, old):
        await harness.publish("publish/orders/a", b"1")
        await until(lambda: old.payloads)
        async with await harness.session(new) as session:
            await until(lambda: session.connected and new.payloads)
            old.deliveries[0].acknowledge()

    assert [b"1"] == new.payloads[:1]


async def test_a_session_gets_no_copies_of_retained_messages_except_without_mqtt5(harness, request):
    """A copy is distinct from a publication, where the broker sends one."""
    intake = Intake()
    await harness.publish("publish/orders/a", b"old", retain=True)
    async with subscribed(harness, intake):
        await harness.publish("publish/orders/a", b"new", retain=True)
        await until(lambda: (b"new", False) in [(found.payload, found.retained) for found in intake.deliveries])

    copies = [(b"old", True)] if request.node.callspec.params["harness"] == "amqtt" else []
    assert [*copies, (b"new", False)] == [(found.payload, found.retained) for found in intake.deliveries]


async def test_a_session_ends_with_the_connection_that_is_to_end_it(harness: BrokerHarness) -> None:
    """Not with a later connection of the same client, which another one may have overtaken."""
    intake = Intake(acknowledges=False)
    async with subscribed(harness, intake) as session:
        first = session.connection
        session.end_at_close(first)
        await harness.drop()
        await until(lambda: session.connection > first)
        session.end_at_close(first)
        await harness.publish("publish/orders/a", b"1")
        await until(lambda: intake.payloads == [b"1"])
    async with await harness.session(intake) as session:
        await until(lambda: session.connected and intake.payloads == [b"1", b"1"])
        session.end_at_close(session.connection)
    await harness.publish("publish/orders/a", b"2")
    async with subscribed(harness, intake) as session:
        await harness.publish("publish/orders/a", b"3")
        await until(lambda: len(intake.payloads) > 2)

    assert [b"1", b"1", b"3"] == intake.payloads


async def test_removed_filters_deliver_nothing_whichever_connection_added_them(harness: BrokerHarness) -> None:
    intake = Intake()
    async with subscribed(harness, Intake()) as session:
        await session.add_subscriptions(["publish/other/#"], session.connection)
    async with await harness.session(intake) as session:
        await connected(session)
        assert await session.remove_subscriptions(
            ["publish/orders/#", "publish/never-subscribed/#"], session.connection
        )
        await harness.publish("publish/orders/a", b"1")
        await harness.publish("publish/other/a", b"2")
        await until(lambda: b"2" in intake.payloads)

    assert [b"2"] == intake.payloads


async def test_filters_are_removed_only_on_the_numbered_connection(harness: BrokerHarness) -> None:
    intake, states = Intake(), list[bool]()
    async with await harness.session(intake) as session:
        session.on_connection(states.append)
        assert session.connection == 0
        assert not await session.remove_subscriptions(["publish/orders/#"], 0)
        await connected(session)
        first = session.connection
        assert first > 0
        await session.add_subscriptions(["publish/orders/#"], session.connection)
        await harness.drop()
        await until(lambda: session.connection > first)

        assert not await session.remove_subscriptions(["publish/orders/#"], first)
        await harness.publish("publish/orders/a", b"still subscribed")
        await until(lambda: intake.payloads)
        assert await session.remove_subscriptions(["publish/orders/#"], session.connection)
        await harness.drop()
        await until(lambda: session.connection > first + 1)
        await session.add_subscriptions(["publish/other/#"], session.connection)
        await harness.publish("publish/orders/a", b"not subscribed")
        await harness.publish("publish/other/a", b"last")
        await until(lambda: b"last" in intake.payloads)

    assert [b"still subscribed", b"last"] == intake.payloads
    assert [True, False, True, False, True] == states[:5]


async def test_filters_are_added_only_on_the_numbered_connection(harness: BrokerHarness) -> None:
    """A client that connects again adds none automatically: another client may have removed them meanwhile."""
    intake, successor = Intake(), Intake()
    async with await harness.session(intake) as session:
        assert not await session.add_subscriptions(["publish/orders/#"], session.connection)
        await connected(session)
        first = session.connection
        assert await session.add_subscriptions(["publish/orders/#"], first)
        async with await harness.session(successor) as other:
            # Each takes the session over from the other, again and again.
            while not await other.remove_subscriptions(["publish/orders/#"], other.connection):
                await connected(other)
        await until(lambda: session.connection > first)
        assert not await session.add_subscriptions(["publish/orders/#"], first)
        await harness.publish("publish/orders/a", b"not subscribed")
        assert await session.add_subscriptions(["publish/other/#"], session.connection)
        await harness.publish("publish/other/a", b"last")
        await until(lambda: b"last" in intake.payloads)

    assert [[], [b"last"]] == [successor.payloads, intake.payloads]


async def test_a_sentinel_is_delivered_once_after_all_waiting_messages(harness: BrokerHarness) -> None:
    """With more messages than the broker has in flight (mosquitto with our settings: 1000; the fake too)."""
    intake = Intake(acknowledges=False)
    async with subscribed(harness, Intake()):
        pass
    await harness.publish("publish/orders/a", *(b"%d" % n for n in range(1100)))

    async with await harness.session(intake) as session:
        await connected(session)
        await session.add_subscriptions(["sentinels"], session.connection)
        assert await session.remove_subscriptions(["publish/orders/#"], session.connection)
        session.publish_sentinel("sentinels", b"the end")
        await until(lambda: len(intake.payloads) == 1000)
        for delivery in intake.deliveries:
            delivery.acknowledge()
        await until(lambda: b"the end" in intake.payloads)

    assert [*(b"%d" % n for n in range(1100)), b"the end"] == intake.payloads


async def test_a_sentinel_is_not_sent_without_a_connection(harness: BrokerHarness) -> None:
    intake = Intake()
    session = await harness.session(intake)
    session.publish_sentinel("sentinels", b"not sent")
    async with session:
        await connected(session)
        await session.add_subscriptions(["sentinels"], session.connection)
        session.publish_sentinel("sentinels", b"sent")
        await until(lambda: intake.payloads)

    assert [b"sent"] == intake.payloads


@pytest.mark.contract
async def test_removing_a_filter_fails_if_the_connection_is_lost_before_the_confirmation(tmp_path: Path) -> None:
    """It fails when the connection is lost, not when the time-out expires."""
    async with AsyncExitStack() as stack:
        harness = MosquittoHarness(stack, await stack.enter_async_context(real_broker(tmp_path)))
        async with subscribed(harness, Intake()) as session:
            await harness._proxy.blackhole()
            async with asyncio.timeout(CONFIRMATION_TIMEOUT_SECONDS / 2):
                confirmation = asyncio.create_task(
                    session.remove_subscriptions(["publish/orders/#"], session.connection)
                )
                await asyncio.sleep(0)
                await harness._proxy.cut()
                assert not await confirmation
                await until(lambda: session.connection == 0)


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["mosquitto", "mosquitto-tls"])
async def test_reading_pauses_at_the_unacknowledged_bytes_limit_and_loses_nothing(kind: BrokerKind, tmp_path: Path):
    """The rest stays with the broker. Acknowledging resumes reading, and the session can be closed while it pauses."""
    timing = MqttTiming(close_timeout_seconds=CLOSE_SECONDS)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(real_broker(tmp_path, kind))
        intake = Intake(acknowledges=False)
        session = MqttPersistentSession(
            broker.host, broker.port, SESSION, intake, tls=tls_of(broker), timing=timing, window=ReadingWindow(110_000)
        )
        async with session:
            await connected(session)
            await session.add_subscriptions(["publish/orders/#"], session.connection)
            await MosquittoHarness(stack, broker).publish("publish/orders/a", *(b"%04d" % n * 2500 for n in range(60)))
            await until(lambda: len(intake.payloads) == 10)
            await never(lambda: len(intake.payloads) > 10, 0.3)

            for n in range(40):
                await until(lambda wanted=n: len(intake.payloads) > wanted)
                intake.deliveries[n].acknowledge()
            await until(lambda: session._paused_client is not None)
            began = asyncio.get_running_loop().time()
        # The broker's answer follows the unread deliveries, which are read and discarded.
        assert asyncio.get_running_loop().time() - began < CLOSE_SECONDS
        rest = Intake()
        async with MqttPersistentSession(broker.host, broker.port, SESSION, rest, tls=tls_of(broker)) as session:
            await until(lambda: len(rest.payloads) >= 20)

    assert list(range(40, 60)) == [int(payload[:4]) for payload in rest.payloads]


@pytest.mark.contract
async def test_mosquitto_keeps_waiting_messages_across_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(real_broker(tmp_path))
        harness = MosquittoHarness(stack, broker)
        async with subscribed(harness, Intake()):
            pass
        await harness.publish("publish/orders/a", b"1", b"2")

        await broker.restart()

        intake = Intake()
        async with await harness.session(intake):
            await until(lambda: len(intake.payloads) == 2)
    assert [b"1", b"2"] == intake.payloads


def test_the_guide_says_what_each_broker_lacks() -> None:
    rows = re.findall(r"^\| (\w+).* \|$", GUIDE.partition("## Brokers")[2], re.MULTILINE)

    assert set(LACKS) <= set(rows)
    assert [] == [lack for lacks in LACKS.values() for lack in lacks if lack not in GUIDE]
