"""A leader refuses what exceeds a quota, and slows down who exceeds a rate. Nothing is lost, doubled or reordered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.producer import Producer, ProducerSettings
from headgate.protocol import codec
from headgate.protocol.replies import ProducerIdentity, Registered, Rejected
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import (
    DeleteTopic,
    ImportTopic,
    LeaveConsumer,
    ListSubscriptions,
    ListTopics,
    OpenProducer,
    ProduceBatch,
    Record,
    RegisterConsumer,
    Request,
    SegmentImport,
)
from metrics.label_values import Quota
from shard.access.quotas import DEFAULT_LIMITS, IDLE_PRODUCER_MS, MAX_REFUSALS_PER_SECOND
from shard.access.rules import AccessRules, Right, Role
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import batch, created
from tests.support.worlds.one_shard_programs import client as client_of

USERS = {
    "operator": (Right(Role.ADMINISTRATOR),),
    "shop": (Right(Role.ADMINISTRATOR),),
    "billing": (Right(Role.CONSUMER),),
}


@asynccontextmanager
async def shard_with(**of_shop: float) -> AsyncIterator[OneShard]:
    """A led shard with the topic ``orders`` of the operator, where the user shop has these limits."""
    shard = OneShard()
    shard.access.rules = AccessRules(USERS, limits={"shop": DEFAULT_LIMITS.changed(of_shop)})
    async with shard.leader():
        async with Admin(client(shard, "operator")) as admin:
            await admin.create_topic("orders", 1)
        yield shard


def client(shard: OneShard, user: str, client_id: str = "") -> Client:
    return client_of(shard, client_id or f"client-{user}", user)


def exceeded(shard: OneShard, quota: Quota) -> float:
    return shard.registry.get_sample_value("headgate_quota_exceeded_total", {"quota": quota}) or 0.0


def registration(consumer: str, subscription: str = "s", incarnation: int = 1) -> dict[str, object]:
    return {
        "topic": "orders",
        "subscription": subscription,
        "consumer": consumer,
        "incarnation": incarnation,
        "subscription_type": "STREAM",
    }


async def test_consumers_and_subscriptions_beyond_the_quota_are_refused_and_leave_nothing() -> None:
    async with shard_with(consumers=2, subscriptions=1) as shard, shard.client("client-shop", "shop") as shop:
        await shop.call(RegisterConsumer, **registration("c1"))
        other = await shop.call(RegisterConsumer, **registration("c2", "other"))
        second = await shop.call(RegisterConsumer, **registration("c2"))
        third = await shop.call(RegisterConsumer, **registration("c3"))
        restarted = await shop.call(RegisterConsumer, **registration("c2", incarnation=2))
        await shop.call(LeaveConsumer, topic="orders", subscription="s", consumer="c1", incarnation=1)
        later = await shop.call(RegisterConsumer, **registration("c3"))
        listed = await shop.call(ListSubscriptions)

    assert [True] * 3 == [isinstance(reply, Registered) for reply in (second, restarted, later)]
    assert ["quota_exceeded"] * 2 == [other.verdict, third.verdict]
    assert ["s"] == [each.subscription for each in listed.subscriptions]
    assert (1, 1) == (exceeded(shard, "consumers"), exceeded(shard, "subscriptions"))


async def test_an_import_beyond_a_quota_is_refused_and_its_dry_run_says_so() -> None:
    segments = [SegmentImport(segment=name) for name in "ab"]
    async with shard_with(topics=1, segments=1) as shard, shard.client("client-shop", "shop") as shop:
        replies = [
            await shop.call(ImportTopic, topic="table", segments=segments[:count], token=f"{count}", dry_run=dry_run)
            for count, dry_run in ((2, True), (2, False), (1, True), (1, False), (2, True))
        ]
        listed = await shop.call(ListTopics)

    over = "quota_exceeded"
    assert [over, over, "", "", over] == [getattr(each, "verdict", "") for each in replies]
    assert ["orders", "table"] == [each.topic for each in listed.topics]


async def test_a_program_that_restarts_often_gets_a_producer_in_exchange_for_an_idle_one() -> None:
    async with shard_with(producers=2) as shard, shard.client("client-shop", "shop") as shop:
        first = await shop.call(OpenProducer, token="1")
        second = await shop.call(OpenProducer, token="2")
        refused = await shop.call(OpenProducer, token="3")
        await asyncio.sleep(IDLE_PRODUCER_MS / 1000 + 10)
        await shop.call(
            ProduceBatch, topic="orders", records=[Record(b"k", b"v", 0)], producer_id=first.producer_id, sequence=0
        )
        third = await shop.call(OpenProducer, token="3")
        gone = await shop.call(OpenProducer, token="4", producer_id=second.producer_id)

    assert "quota_exceeded" == refused.verdict
    assert isinstance(third, ProducerIdentity)
    assert "forgotten" == gone.verdict


RECORDS = 8000
SMALL = ProducerSettings(batch_bytes=200, linger_seconds=0, max_in_flight=128)


async def test_a_producer_beyond_its_rate_slows_down_and_stores_everything_once_and_in_order() -> None:
    """The window of one producer is less than the debt that is allowed, so no batch is sent twice."""
    async with shard_with(requests_per_second=200) as shard:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        async with Producer(client(shard, "shop"), settings=SMALL) as producer:
            deliveries = [await producer.send("orders", b"key", b"%d" % n * 30) for n in range(RECORDS)]
            placed = [await delivery for delivery in deliveries]
            resent = producer.metrics().retried_batches
        seconds = loop.time() - began

    assert list(range(RECORDS)) == [each.offset for each in placed]
    assert 0 == resent
    assert seconds > 1
    assert shard.registry.get_sample_value("headgate_replies_delayed_total", {"shard": "0"})
    assert 0 == shard.registry.get_sample_value("headgate_replies_waiting", {"shard": "0"})
    assert 0 == exceeded(shard, "requests_per_second")


async def test_no_more_requests_are_read_than_replies_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.leader.outbox.MAX_DELAYED_REPLIES", 2)
    async with shard_with(requests_per_second=10) as shard, shard.client("client-shop", "shop") as shop:
        asked = {shop.send(ListTopics) for _ in range(16)}
        await asyncio.sleep(10)
        assert 2 < len(asked - shop.replies.keys()) < 6, "as if they were lost"
        assert not isinstance(await shop.call(ListTopics), Rejected)


async def test_the_explanation_of_a_subscription_names_a_rate_that_slows_its_consumers_down() -> None:
    async with shard_with(requests_per_second=10) as shard, shard.client("client-shop", "shop") as shop:
        await shop.call(RegisterConsumer, **registration("c1"))
        async with Admin(client(shard, "operator")) as admin:
            before = await admin.explain("orders", "s")
            for _ in range(20):
                shop.send(ListTopics)
            await asyncio.sleep(0.1)
            meanwhile = await admin.explain("orders", "s", segment=0)
            await asyncio.sleep(60)
            after = await admin.explain("orders", "s")

    reason = "user shop exceeds its quota requests_per_second of 10 on this daemon"
    assert [False, True, False] == [reason in str(each.summary) for each in (before, meanwhile, after)]


async def test_requests_of_another_version_are_counted_and_logged_once_a_minute_for_each_user() -> None:
    with capture_logs() as logs:
        async with shard_with() as shard, shard.client("client-shop", "shop") as shop:
            for protocol in range(1, 100):
                old = Request(request_id=7, protocol=protocol, client_id="client-shop", body=ListTopics())
                shop.send_raw(codec.encode(old))
            await asyncio.sleep(1)
            refused = [each.body for each in shop.replies[7] if isinstance(each.body, Rejected)]
    assert {"invalid"} == {each.verdict for each in refused if each.reason.startswith("a request of protocol")}
    assert 98 == shard.registry.get_sample_value("headgate_messages_malformed_total", {"reason": "protocol"})
    reasons = [line["reason"] for line in logs if line["event"] == "client.protocol_mismatch"]
    assert [f"a request of protocol 1; this leader supports protocol {PROTOCOL_VERSION}"] == [
        each.partition(":")[0] for each in reasons
    ]


async def test_a_flood_is_not_read_and_is_refused_with_limited_effort() -> None:
    with capture_logs() as logs:
        async with shard_with(requests_per_second=10) as shard, shard.client("client-shop", "shop") as shop:
            flood = codec.encode(
                Request(request_id=7, protocol=PROTOCOL_VERSION, client_id="client-shop", body=ListTopics())
            )
            for _ in range(100):
                shop.send_raw(flood)
            refused = await shop.call(DeleteTopic, topic="orders", token="x", force=True)
            for _ in range(1900):
                shop.send_raw(flood)
            await asyncio.sleep(60)
            answered = [reply.body for reply in shop.replies[7]]
            later = await shop.call(ListTopics)

    refusals = [body for body in answered if isinstance(body, Rejected)]
    assert "unavailable" == refused.verdict
    assert "user shop exceeds its quota requests_per_second of 10 on this daemon" in refused.reason
    assert 20 <= len(answered) - len(refusals) <= 40
    assert MAX_REFUSALS_PER_SECOND - 5 <= len(refusals) <= MAX_REFUSALS_PER_SECOND * 3
    assert 2000 - 40 <= exceeded(shard, "requests_per_second") <= 2001
    assert {"unavailable"} == {body.verdict for body in refusals}
    assert ["orders"] == [topic.topic for topic in later.topics]
    logged = [(line["client"], line["quota"]) for line in logs if line["event"] == "quota.exceeded"]
    assert [("shop/client-shop", "requests_per_second")] == logged


# A leader acts on the present rights of the sender. What attackers may not do is in tests/security/test_requests.py.


async def test_a_stored_batch_is_answered_after_its_user_has_lost_the_right() -> None:
    """ "Not stored" would be untrue."""
    shard = OneShard()
    async with shard.leader(), shard.client("client-shop", "shop") as shop:
        await created(shop)
        shard.access.rules = AccessRules({"shop": (Right(Role.PRODUCER, ("orders",)),)})
        identity = await shop.call(OpenProducer, token="t")
        await shop.call(ProduceBatch, **batch(identity, 0))
        shard.access.rules = AccessRules({"shop": (Right(Role.PRODUCER, ("other",)),)})
        repeated = await shop.call(ProduceBatch, **batch(identity, 0))
        later = await shop.call(ProduceBatch, **batch(identity, 1))

    assert repeated.duplicate
    assert "forbidden" == later.verdict
