"""Users that ask for more than their quota, requests that the broker keeps, and strangers at the Spark process."""

import asyncio
import re

import pytest

from headgate.model import entries as e
from headgate.protocol.codec import requests_topic
from headgate.protocol.replies import Rejected
from headgate.protocol.requests import CreateTopic, DescribeTopic, OpenProducer, ProduceBatch, Record
from tests.support.servers.programs import TEST_SECONDS
from tests.support.waiting import until
from tests.support.worlds.security_scene import REPLY_SECONDS, Attack, Metric, Scene, Unseen

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

CLUSTER = "test"
FLOOD = 200


def exceeded(quota: str) -> Metric:
    return Metric("headgate_quota_exceeded_total", {"quota": quota})


async def creates_topics(scene: Scene, user: str) -> str:
    replies = [
        await scene.ask(user, CreateTopic(topic=f"team-{number}", token=f"token-{number}", segments=1))
        for number in range(3)
    ]
    return ", ".join(replies)


async def opens_producers(scene: Scene, user: str) -> str:
    return ", ".join([await scene.ask(user, OpenProducer(token=f"token-{number}")) for number in range(2)])


async def floods(scene: Scene, user: str) -> str:
    """Send ten times as many requests as a second allows, each of which is cheap; return the first refusal.

    Any of them may be accepted: one is every 50 ms, however many are refused.
    """
    client, replies = await scene.attacker(user), []
    topic = requests_topic(CLUSTER, 0, f"{user}/{user}-1")
    for _ in range(FLOOD):
        number, payload = scene.request(user, DescribeTopic(topic="other"))
        replies.append(scene.reply_to(number))
        client.publish_unconfirmed(topic, payload)
    for reply in asyncio.as_completed(replies, timeout=REPLY_SECONDS):
        if isinstance(answer := await reply, Rejected):
            return answer.verdict
    return "no refusal"


async def leaves_a_retained_batch(scene: Scene, user: str) -> str:
    """Let the broker keep a request, and end the daemon's connection, so that it subscribes again."""
    broker, daemon = scene.cluster.broker, scene.daemon
    attacker = await scene.attacker(user)
    topic = requests_topic(CLUSTER, 0, f"{user}/{user}-1")
    batch = ProduceBatch(topic="other", records=[Record(b"key", b"of the attacker", 0)])
    _, payload = scene.request(user, batch)
    await attacker.publish(topic, payload, retain=True)
    secret_id = re.findall(r"as (headgate:test:daemon:only:[0-9a-f]+) ", broker.log_path.read_text())[-1]
    connections = len(daemon.log_entries("broker.connected"))
    async with scene.raw(user, secret_id):
        pass
    await until(lambda: len(daemon.log_entries("broker.connected")) > connections)
    await scene.next_round()
    await attacker.publish(topic, b"", retain=True)
    described = await scene.describe("other")
    return f"stored {sum(segment.next_offset for segment in described.segments)} record"


ATTACKS = [
    Attack(
        "team",
        "creates more topics than its quota",
        creates_topics,
        "topic, quota_exceeded, quota_exceeded",
        exceeded("topics"),
        allowed=(e.TopicCreated,),
    ),
    Attack(
        "stranger",
        "opens more producers than its quota",
        opens_producers,
        "producer_identity, quota_exceeded",
        exceeded("producers"),
        allowed=(e.ProducerOpened,),
    ),
    Attack("stranger", "sends more requests than its quota", floods, "unavailable", exceeded("requests_per_second")),
    Attack(
        "rival",
        "leaves a retained request",
        leaves_a_retained_batch,
        "stored 1 record",
        Unseen("a session of MQTT 5 gets no copy of it, and the broker keeps it like any retained message"),
        allowed=(e.RecordsStored,),
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_what_exceeds_a_limit_has_no_effect(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)
