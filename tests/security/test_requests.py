"""Users with valid credentials send requests in their own name that they have no right to. The leader refuses them."""

from collections.abc import Awaitable, Callable

import pytest

from headgate.model.entries import SubscriptionType, TopicPolicy
from headgate.protocol import requests
from tests.support.servers.programs import TEST_SECONDS
from tests.support.worlds.security_scene import CONSUMER, PRODUCER, SUBSCRIPTION, TOPIC, Attack, Metric, Scene

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

DENIED = Metric("headgate_access_denied_total")
FORGOTTEN = Metric("headgate_batches_judged_total", {"verdict": "forgotten"})
INVALID = Metric("headgate_batches_judged_total", {"verdict": "invalid"})
SENDER = Metric("headgate_messages_malformed_total", {"reason": "sender"})
RECORDS = [requests.Record(b"key", b"forged", 0)]
TOKEN = "of-the-attacker"
Body = Callable[[Scene], requests.AnyRequestBody]


def asks(body: Body, *, named: str | None = None) -> Callable[[Scene, str], Awaitable[str]]:
    async def attempt(scene: Scene, user: str) -> str:
        return await scene.ask(user, body(scene), named=named)

    return attempt


def forbidden(user: str, act: str, body: Body) -> Attack:
    return Attack(user, act, asks(body), "forbidden", DENIED)


def as_the_consumer(kind: Callable[..., requests.AnyRequestBody], **fields: object) -> Body:
    """Return a request about the honest consumer. Its incarnation and generation are known: they are no secrets."""
    where = {"topic": TOPIC, "subscription": SUBSCRIPTION, "consumer": CONSUMER}
    return lambda scene: kind(**{**where, "incarnation": scene.incarnation, **fields})


def acknowledges(scene: Scene) -> requests.AcknowledgeBatch:
    body = as_the_consumer(
        requests.AcknowledgeBatch, acknowledgements=[requests.Acknowledgement(0, scene.generation, 0, 10**9)]
    )
    batch = body(scene)
    assert isinstance(batch, requests.AcknowledgeBatch)
    return batch


def forges(epoch: int, sequence: int) -> Body:
    """Return a batch in the name of the honest producer."""
    return lambda scene: requests.ProduceBatch(
        topic=TOPIC, records=RECORDS, producer_id=scene.producer_id, producer_epoch=epoch, sequence=sequence
    )


def produces(_: Scene) -> requests.ProduceBatch:
    return requests.ProduceBatch(topic=TOPIC, records=RECORDS)


def with_header(record: int = 0, name: str = "n", count: int = 1) -> Body:
    """Return a batch that the user may send, but for its headers."""
    headers = [requests.RecordHeader(record, name, b"forged")] * count
    return lambda _: requests.ProduceBatch(topic="other", records=RECORDS, headers=headers)


def on_topic(kind: Callable[..., requests.AnyRequestBody], topic: str = TOPIC, **fields: object) -> Body:
    return lambda _: kind(topic=topic, token=TOKEN, **fields)


def on_subscription(kind: Callable[..., requests.AnyRequestBody], **fields: object) -> Body:
    return lambda _: kind(topic=TOPIC, subscription=SUBSCRIPTION, token=TOKEN, **fields)


DELETES = on_topic(requests.DeleteTopic, force=True)
CREATES = on_topic(requests.CreateTopic, topic="mine", segments=64)
SEEKS = on_subscription(requests.SeekSubscription, to="earliest")
CREATES_SUBSCRIPTION = on_subscription(requests.CreateSubscription, subscription_type=SubscriptionType.STREAM)
EVICTS = on_subscription(requests.EvictConsumer, consumer=CONSUMER)
DELETES_SUBSCRIPTION = on_subscription(requests.DeleteSubscription, force=True)
JOINS = as_the_consumer(requests.RegisterConsumer, incarnation=2**62, subscription_type=SubscriptionType.STREAM)
STRANGER_JOINS = as_the_consumer(requests.RegisterConsumer, consumer="mine", subscription_type=SubscriptionType.STREAM)
ATTACKS = [
    *(forbidden(user, "produces without a right", produces) for user in ("stranger", "colleague", "grafana", "team")),
    Attack("rival", "forges the next batch of another producer", asks(forges(0, 10**6)), "forgotten", FORGOTTEN),
    Attack("rival", "repeats a batch of another producer", asks(forges(0, 0)), "forgotten", FORGOTTEN),
    Attack("rival", "raises the epoch of another producer", asks(forges(7, 0)), "forgotten", FORGOTTEN),
    Attack("colleague", "forges a batch of another producer", asks(forges(0, 1)), "forgotten", FORGOTTEN),
    Attack("rival", "forges a header of headgate's", asks(with_header(name="headgate-reason")), "invalid", INVALID),
    Attack("rival", "sends too many headers", asks(with_header(count=65)), "invalid", INVALID),
    Attack("rival", "sends a header of no record", asks(with_header(record=1)), "invalid", INVALID),
    forbidden(
        "rival",
        "fences another producer",
        lambda scene: requests.OpenProducer(token=TOKEN, producer_id=scene.producer_id, producer_epoch=0),
    ),
    forbidden(
        "rival",
        "opens the producer of another",
        lambda _: requests.OpenProducer(token=TOKEN, name=PRODUCER, incarnation=1),
    ),
    forbidden("rival", "repeats the token of another", lambda scene: requests.OpenProducer(token=scene.producer_token)),
    *(
        forbidden(user, "deletes a named producer", lambda _: requests.DeleteProducer(producer=PRODUCER, token=TOKEN))
        for user in ("rival", "team")
    ),
    forbidden("colleague", "lists all producers", lambda _: requests.ListProducers()),
    *(
        forbidden(user, "transfers a shard", lambda _: requests.TransferShard(daemon="other", token=TOKEN))
        for user in ("rival", "grafana", "team")
    ),
    *(
        forbidden(user, action, lambda _, command=command: command)
        for action, command in (
            ("empties a daemon", requests.SetMaintenance(daemon="first", on=True, token=TOKEN)),
            ("raises the feature level", requests.RaiseLevel(level=1, token=TOKEN)),
            ("adds shards", requests.SetShards(shards=8, before=4, token=TOKEN)),
        )
        for user in ("rival", "grafana", "team")
    ),
    *(forbidden(user, "deletes a topic", DELETES) for user in ("rival", "colleague", "grafana", "team")),
    *(forbidden(user, "creates a topic", CREATES) for user in ("rival", "colleague", "grafana", "team")),
    forbidden("rival", "splits a segment", on_topic(requests.SplitSegment, segment=0)),
    forbidden("grafana", "shortens the retention", on_topic(requests.SetTopicPolicy, policy=TopicPolicy(max_age_ms=0))),
    forbidden("colleague", "prunes a topic", on_topic(requests.PruneTopic)),
    forbidden("stranger", "describes a topic", lambda _: requests.DescribeTopic(topic=TOPIC)),
    forbidden("stranger", "lists all topics", lambda _: requests.ListTopics()),
    *(forbidden(user, "moves a subscription", SEEKS) for user in ("snoop", "rival", "grafana")),
    *(
        forbidden(user, "deletes a subscription", DELETES_SUBSCRIPTION)
        for user in ("snoop", "colleague", "rival", "team")
    ),
    *(forbidden(user, "evicts a consumer", EVICTS) for user in ("snoop", "colleague")),
    forbidden("snoop", "creates a subscription", CREATES_SUBSCRIPTION),
    forbidden("snoop", "joins a subscription", STRANGER_JOINS),
    forbidden("rival", "joins a subscription", STRANGER_JOINS),
    forbidden("colleague", "takes the name of a consumer", JOINS),
    forbidden("snoop", "acknowledges for a consumer", acknowledges),
    forbidden("colleague", "acknowledges for a consumer", acknowledges),
    forbidden("colleague", "leaves for a consumer", as_the_consumer(requests.LeaveConsumer)),
    forbidden("colleague", "reports that a consumer holds nothing", as_the_consumer(requests.Heartbeat, held=[])),
    forbidden("colleague", "confirms a revocation", as_the_consumer(requests.ConfirmRevoked, released=[(0, 1)])),
    *(
        Attack(user, "names another client", asks(DELETES, named="admin-1"), "invalid", SENDER)
        for user in ("rival", "grafana")
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_a_request_without_a_right_is_refused(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)
