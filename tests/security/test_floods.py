"""A device fills the broker with what it may publish, to displace what others publish."""

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from bench.harness.raw_client import RawClient
from controller.access.file import read_access_file
from controller.connections.broker import BrokerConnection
from controller.leadership.session_secret import SessionSecret
from controller.local.broker_access import BrokerAccess
from controller.local.supervised_process import ProcessSpec
from controller.settings.load import Settings
from controller.settings.sections import BrokerSettings, ClusterSettings, LedgerSettings
from headgate.protocol.codec import ClusterDescription, publish_filters
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.transport.mqtt_packets import ArrivedMessage
from headgate.transport.mqtt_persistent_session import MAX_UNACKNOWLEDGED_MESSAGES, MqttPersistentSession
from metrics import events
from shard.access.broker_rules import BrokerFormat, export
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.secret_files import write_secret
from tests.support.servers.cluster import SecuredBroker
from tests.support.servers.programs import TEST_SECONDS
from tests.support.waiting import until
from tests.support.worlds.device_environment import create_topic
from tests.support.worlds.one_shard import OneShard

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
SECRET = SessionSecret(SessionSecret.new_digits())
describe = partial(ClusterDescription, protocol=PROTOCOL_VERSION, shards=1, ledger_url="")
PASSWORDS = {"daemon": "d", "gateway": "g", "sensor": "s"}
QUEUED = 100
"""Messages that the broker keeps for a session, besides those in flight. The shipped limit is higher, as is the number of
messages that an attacker can send."""
RETAINED = MAX_UNACKNOWLEDGED_MESSAGES + 2 * QUEUED


class SmallBroker(SecuredBroker):
    """A broker whose limits are reached soon."""

    async def _process_spec(self, port: int) -> ProcessSpec:
        spec = await super()._process_spec(port)
        with (self.folder / "mosquitto.conf").open("a") as config:
            config.write(f"max_queued_messages {QUEUED}\nsys_interval 1\n")
        return spec


def small_broker(folder: Path) -> SmallBroker:
    """Return a broker with the rights of `ACCESS`, not yet started."""
    access, file = BrokerAccess(folder / "passwords", folder / "acl"), folder / "access.toml"
    file.write_text(ACCESS)
    acl = export(read_access_file(file), BrokerFormat.ACL_FILE, cluster=CLUSTER, daemon_user="daemon")
    access.write(PASSWORDS, acl)
    return SmallBroker(folder / "broker", 0, None, access)


async def publish_all(broker: SmallBroker, user: str, topic: str, count: int, *, retain: bool = False) -> None:
    """Publish as ``user``; return when the broker has acknowledged every message."""
    async with RawClient(broker.host, broker.port, f"{user}-1", user=user, password=PASSWORDS[user]) as device:
        names = [f"headgate/{CLUSTER}/publish/{topic}/{number}" for number in range(count)]
        answers = await asyncio.gather(*(device.publish(name, b"value", retain=retain) for name in names))
    assert set(answers) <= {"Success", "No matching subscribers"}


def daemon_connection(broker: SmallBroker, folder: Path, observer: events.Observer) -> BrokerConnection:
    """Return what makes the connections of a daemon."""
    password = str(write_secret(folder / "secret", b"d"))
    settings = Settings(
        ledger=LedgerSettings(url=folder.as_uri()),
        cluster=ClusterSettings(name=CLUSTER),
        broker=BrokerSettings(host=broker.host, port=broker.port, username="daemon", password_file=password),
    )
    return BrokerConnection(settings, observer, random.Random(1))


async def test_retained_messages_of_a_device_displace_none_of_another(tmp_path: Path) -> None:
    """The attacker has left when the next leader subscribes, and the broker would send it all that was retained.

    The leader reads on only when its first messages are durable. Meanwhile the other device publishes.
    """
    async with small_broker(tmp_path) as broker:
        await publish_all(broker, "sensor", "other", RETAINED, retain=True)
        deliveries: list[ArrivedMessage] = []
        acknowledged = asyncio.Event()

        def handle(delivery: ArrivedMessage) -> None:
            deliveries.append(delivery)
            if acknowledged.is_set():
                delivery.acknowledge()

        async with MqttPersistentSession(
            broker.host, broker.port, "shard-0", handler=handle, username="daemon", password="d"
        ) as session:
            await until(lambda: session.connected)
            filters = [each for topic in ("orders", "other") for each in publish_filters(CLUSTER, topic)]
            assert await session.add_subscriptions(filters, session.connection)
            await publish_all(broker, "gateway", "orders", QUEUED)
            acknowledged.set()
            for delivery in deliveries:
                delivery.acknowledge()
            await until(lambda: sum("/orders/" in each.topic for each in deliveries) == QUEUED)

    assert not any(delivery.retained for delivery in deliveries)


async def test_a_flood_while_no_leader_reads_displaces_no_message_of_another_topic(tmp_path: Path) -> None:
    """The attacker has filled its queue long before the other device publishes."""
    async with small_broker(tmp_path) as broker:
        connection, shard = daemon_connection(broker, tmp_path, RecordingObserver()), OneShard()
        connection.transport("one", SECRET, describe)
        shard.open_session = connection.device_session
        async with shard.leader("a"), shard.client() as client:
            for topic in ("orders", "other"):
                await create_topic(client, topic)
        await publish_all(broker, "sensor", "other", RETAINED)
        await publish_all(broker, "gateway", "orders", QUEUED)
        async with shard.leader("b") as leader:

            def stored(topic: str) -> int:
                return sum(tail.next_offset for tail in leader.state.topics[topic].tails.values())

            await until(lambda: stored("orders") == QUEUED)
            assert 0 < stored("other") < RETAINED, "the flood filled its own queue"


async def test_what_waits_for_one_ledger_is_not_stored_in_another(tmp_path: Path) -> None:
    """Both have a topic with the same id, and one follows the other in the cluster."""
    async with small_broker(tmp_path) as broker:
        connection = daemon_connection(broker, tmp_path, RecordingObserver())
        connection.transport("one", SECRET, describe)
        stored = []
        for shard in (OneShard(), OneShard()):
            shard.open_session = connection.device_session
            async with shard.leader() as leader, shard.client() as client:
                await create_topic(client, "orders")
                await publish_all(broker, "gateway", "orders", 1)
                tails = leader.state.topics["orders"].tails.values()
                await until(lambda tails=tails: any(each.next_offset for each in tails))
                stored.append(sum(each.next_offset for each in tails))
            await publish_all(broker, "gateway", "orders", QUEUED // 2)
        assert [1, 1] == stored


async def test_what_the_broker_drops_is_counted(tmp_path: Path) -> None:
    """A flood of one device looks like that of another, so operators learn of it."""
    async with small_broker(tmp_path) as broker:
        observer = RecordingObserver()
        async with daemon_connection(broker, tmp_path, observer).transport("one", SECRET, describe) as daemon:
            await until(lambda: daemon.connected)
            session = MqttPersistentSession(
                broker.host, broker.port, "shard-0", lambda _: None, username="daemon", password="d"
            )
            async with session:
                await until(lambda: session.connected)
                assert await session.add_subscriptions(sorted(publish_filters(CLUSTER, "other")), session.connection)
                await publish_all(broker, "sensor", "other", MAX_UNACKNOWLEDGED_MESSAGES + 2 * QUEUED)
                await until(lambda: sum(each.messages for each in observer.of(events.BrokerDroppedMessages)) >= QUEUED)
