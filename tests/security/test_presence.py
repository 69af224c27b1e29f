"""A client reports only its own presence: not in a payload, and not as the last will of its connection."""

import socket

import pytest

from headgate import Admin
from headgate.protocol import codec
from headgate.protocol.codec import Presence, presence_topic
from tests.support.servers.programs import TEST_SECONDS
from tests.support.worlds.security_scene import SUBSCRIPTION, TOPIC, Attack, BrokerLog, Metric, Scene

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

CLUSTER = "test"
MALFORMED = Metric("headgate_messages_malformed_total", {"reason": "presence"})
VANISHED = BrokerLog("Client colleague-1-dies (closed its connection|disconnected)")
"""mosquitto discards a will that its client may not publish, and logs no more than the lost connection."""


async def names_the_consumer(scene: Scene, user: str) -> str:
    """Report on its own topic that the client of the honest consumer is gone."""
    gone = codec.encode(Presence(client_id=scene.consumer_client_id, online=False))
    topic = presence_topic(CLUSTER, f"{user}/{user}-1")
    return await (await scene.attacker(user)).publish(topic, gone)


async def leaves_a_will(scene: Scene, user: str) -> str:
    """Connect with the will of the honest consumer, and vanish."""
    topic = presence_topic(CLUSTER, f"billing/{scene.consumer_client_id}")
    gone = codec.encode(Presence(client_id=scene.consumer_client_id, online=False))
    client = scene.raw(user, f"{user}-1-dies")
    client._paho.will_set(topic, gone, qos=1)
    outcome = await client.connect()
    connection = client._paho.socket()
    if connection is not None:
        connection.shutdown(socket.SHUT_RDWR)
    await scene.next_round()
    await client.close()
    return outcome


ATTACKS = [
    Attack("colleague", "names another client in its presence", names_the_consumer, "Success", MALFORMED),
    Attack("colleague", "leaves the will of another client", leaves_a_will, "Success", VANISHED),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_the_consumer_stays_connected(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)

    async with Admin(scene.cluster.config_of("operator")) as admin:
        (consumer,) = (await admin.describe_subscription(TOPIC, SUBSCRIPTION)).consumers
    assert consumer.connected
