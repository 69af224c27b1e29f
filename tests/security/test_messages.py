"""Users with valid credentials publish and read what is not theirs. The broker refuses it.

mosquitto accepts any subscription, and then passes on what its client may read. It counts refusals for no single
client, so operators find them in its log (``log_type all``).
"""

from collections.abc import Awaitable, Callable

import pytest

from headgate.protocol import codec
from headgate.protocol.codec import (
    ChunkAnnouncement,
    ClusterDescription,
    HeadAnnouncement,
    LeaderAnnouncement,
    Presence,
    chunk_topic,
    cluster_topic,
    device_sentinel_topic,
    head_topic,
    leader_topic,
    presence_topic,
    replies_topic,
    requests_topic,
)
from headgate.protocol.replies import ConsumerFenced
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DeleteTopic
from tests.support.servers.programs import TEST_SECONDS
from tests.support.worlds.security_scene import CONSUMER, SUBSCRIPTION, TOPIC, Attack, BrokerLog, Scene

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

CLUSTER = "test"
REFUSED = "Not authorized"
LEADER = leader_topic(CLUSTER, 0)
PUBLICATION = f"headgate/{CLUSTER}/publish/{TOPIC}/key"
FALSE_LEADER = LeaderAnnouncement(shard=0, leader_epoch=999, instance="mine", window=128)
FALSE_CHUNK = ChunkAnnouncement.of(b"PAR1", shard=0, number=1, term_id=1, key=0)
FALSE_HEAD = HeadAnnouncement(shard=0, leader_epoch=1, head=10**9)
FALSE_CLUSTER = ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, ledger_url="file:///tmp/mine")
FALSE_PUSH = ConsumerFenced(
    topic=TOPIC, subscription=SUBSCRIPTION, consumer=CONSUMER, incarnation=1, leader_epoch=1, reason="forged"
)


def publishes(topic: str, payload: bytes, *, retain: bool = False) -> Callable[[Scene, str], Awaitable[str]]:
    async def attempt(scene: Scene, user: str) -> str:
        return await (await scene.attacker(user)).publish(topic, payload, retain=retain)

    return attempt


def requests_as(victim: str) -> Callable[[Scene, str], Awaitable[str]]:
    """Publish a deletion to the request topic of ``victim``."""

    async def attempt(scene: Scene, user: str) -> str:
        _, payload = scene.request(user, DeleteTopic(topic=TOPIC, token="x", force=True), named=f"{victim}-1")
        topic = requests_topic(CLUSTER, 0, f"{victim}/{victim}-1")
        return await (await scene.attacker(user)).publish(topic, payload)

    return attempt


def spoofs_presence(*, retain: bool) -> Callable[[Scene, str], Awaitable[str]]:
    """Report that the client of the honest consumer is gone."""

    async def attempt(scene: Scene, user: str) -> str:
        victim = scene.consumer_client_id
        gone = codec.encode(Presence(client_id=victim, online=False))
        topic = presence_topic(CLUSTER, f"billing/{victim}")
        return await (await scene.attacker(user)).publish(topic, gone, retain=retain)

    return attempt


def replies_to_the_consumer(payload: bytes) -> Callable[[Scene, str], Awaitable[str]]:
    async def attempt(scene: Scene, user: str) -> str:
        topic = replies_topic(CLUSTER, f"billing/{scene.consumer_client_id}")
        return await (await scene.attacker(user)).publish(topic, payload)

    return attempt


def denied(topic: str) -> BrokerLog:
    """Return the line about a refused message; ``topic`` may be a pattern."""
    return BrokerLog(rf"Denied PUBLISH from {{id}} \(.*'{topic}'")


REQUESTS = "headgate/test/shards/0/requests/.*"
PRESENCE = "headgate/test/clients/billing/.*/presence"
REPLIES = "headgate/test/clients/billing/.*/replies"
CHUNKS = chunk_topic(CLUSTER, 0)
SENTINELS = device_sentinel_topic(CLUSTER, 0, 1)
ATTACKS = [
    Attack(
        "rival", "announces itself as leader", publishes(LEADER, codec.encode(FALSE_LEADER)), REFUSED, denied(LEADER)
    ),
    *(
        Attack(
            user,
            "announces itself as leader, retained",
            publishes(LEADER, codec.encode(FALSE_LEADER), retain=True),
            REFUSED,
            denied(LEADER),
        )
        for user in ("rival", "colleague", "sensor", "grafana", "team")
    ),
    Attack("rival", "clears the leader", publishes(LEADER, b"", retain=True), REFUSED, denied(LEADER)),
    Attack(
        "rival",
        "announces a head",
        publishes(head_topic(CLUSTER, 0), codec.encode(FALSE_HEAD)),
        REFUSED,
        denied(head_topic(CLUSTER, 0)),
    ),
    *(
        Attack(user, "announces a chunk", publishes(CHUNKS, codec.encode(FALSE_CHUNK)), REFUSED, denied(CHUNKS))
        for user in ("rival", "colleague")
    ),
    Attack(
        "rival",
        "sends readers to another ledger",
        publishes(cluster_topic(CLUSTER), codec.encode(FALSE_CLUSTER), retain=True),
        REFUSED,
        denied(cluster_topic(CLUSTER)),
    ),
    Attack(
        "colleague", "fences the consumer", replies_to_the_consumer(codec.encode(FALSE_PUSH)), REFUSED, denied(REPLIES)
    ),
    Attack("colleague", "spoofs presence", spoofs_presence(retain=False), REFUSED, denied(PRESENCE)),
    Attack("colleague", "spoofs presence, retained", spoofs_presence(retain=True), REFUSED, denied(PRESENCE)),
    Attack("sensor", "spoofs presence", spoofs_presence(retain=False), REFUSED, denied(PRESENCE)),
    *(
        Attack(user, "requests as the administrator", requests_as("operator"), REFUSED, denied(REQUESTS))
        for user in ("rival", "colleague", "grafana", "team", "sensor")
    ),
    Attack("sensor", "sends requests at all", requests_as("sensor"), REFUSED, denied(REQUESTS)),
    *(
        Attack(user, "publishes device records", publishes(PUBLICATION, b"forged"), REFUSED, denied(PUBLICATION))
        for user in ("sensor", "shop", "grafana", "team")
    ),
    Attack("rival", "forges a sentinel of devices", publishes(SENTINELS, b"x"), REFUSED, denied(SENTINELS)),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_a_message_in_the_name_of_another_is_refused(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)


@pytest.mark.parametrize(
    ("user", "topic_filter"),
    [
        ("rival", "#"),
        ("sensor", "#"),
        ("colleague", "headgate/test/clients/+/+/replies"),
        ("grafana", "headgate/test/shards/+/requests/+/+"),
        ("snoop", "headgate/test/publish/#"),
        ("rival", "headgate/test/clients/+/+/presence"),
        ("shop", "headgate/test/shards/+/chunk"),
    ],
)
async def test_a_subscription_delivers_nothing_of_other_users(scene: Scene, user: str, topic_filter: str) -> None:
    """All users but devices may read announcements."""
    overheard: list[str] = []
    client_id = f"{user}-reads-{abs(hash(topic_filter))}"

    async def attempt(scene: Scene, _: str) -> str:
        async with scene.raw(user, client_id) as reader:
            await reader.subscribe(topic_filter, lambda topic, _: overheard.append(topic))
            await scene.next_round()
        return "nothing of others"

    await scene.attacked(Attack(user, "reads", attempt, "nothing of others", BrokerLog(f"{client_id} 1 ")))

    announced = {cluster_topic(CLUSTER), LEADER, head_topic(CLUSTER, 0)} if user != "sensor" else set()
    assert set(overheard) <= announced
