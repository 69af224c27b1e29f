"""A leader refuses what exceeds a quota, and slows down who exceeds a rate. Nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer, ProducerSettings
from headgate.errors import RequestRejectedError
from headgate.protocol import messages as m
from metrics.label_values import Quota
from shard.access.quotas import DEFAULT_LIMITS, MAX_REFUSALS_PER_SECOND, Limits
from shard.access.rules import AccessRules, Right, Role
from shard.requests.quota import IDLE_PRODUCER_MS
from tests.headgate.client.test_against_the_leader import client as client_of
from tests.support.worlds.one_shard import OneShard

pytestmark = pytest.mark.looptime

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


async def test_topics_beyond_the_quota_are_refused_until_one_is_deleted() -> None:
    async with shard_with(topics=2) as shard, Admin(client(shard, "shop")) as shop:
        await shop.create_topic("a")
        await shop.create_topic("b")
        with pytest.raises(RequestRejectedError, match=r"user shop has 2 topics .* its quota topics is 2") as refused:
            await shop.create_topic("c")
        await shop.delete_topic("a")
        await shop.create_topic("c")

    assert "quota_exceeded" == refused.value.verdict
    assert 1 == exceeded(shard, "topics")


async def test_a_repeated_command_is_answered_although_the_quota_is_used_up() -> None:
    async with shard_with(topics=1) as shard, shard.client("client-shop", "shop") as shop:
        first = await shop.call(m.CreateTopic, topic="a", token="same")
        again = await shop.call(m.CreateTopic, topic="a", token="same")

    assert first == again


async def test_the_owner_of_a_topic_pays_for_its_segments_also_when_another_user_splits_them() -> None:
    async with shard_with(segments=3) as shard:
        async with Admin(client(shard, "shop")) as shop:
            await shop.create_topic("mine", 1)
            await shop.split("mine", 0)
            await shop.split("orders", 0)
        async with Admin(client(shard, "operator")) as operator:
            with pytest.raises(RequestRejectedError, match="user shop has 3 segments on this shard"):
                await operator.split("mine", 1)

    assert 1 == exceeded(shard, "segments")


async def test_an_import_counts_as_well() -> None:
    listing = [m.SegmentImport(segment=label, hashes=None) for label in "ab"]
    async with shard_with(segments=1) as shard, shard.client("client-shop", "shop") as shop:
        refused = await shop.call(m.ImportTopic, topic="kinesis", token="i", segments=listing)

    assert ("quota_exceeded", 1) == (refused.verdict, exceeded(shard, "segments"))


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
        await shop.call(m.RegisterConsumer, **registration("c1"))
        other = await shop.call(m.RegisterConsumer, **registration("c2", "other"))
        second = await shop.call(m.RegisterConsumer, **registration("c2"))
        third = await shop.call(m.RegisterConsumer, **registration("c3"))
        restarted = await shop.call(m.RegisterConsumer, **registration("c2", incarnation=2))
        await shop.call(m.LeaveConsumer, topic="orders", subscription="s", consumer="c1", incarnation=1)
        later = await shop.call(m.RegisterConsumer, **registration("c3"))
        listed = await shop.call(m.ListSubscriptions)

    assert [True] * 3 == [isinstance(reply, m.Registered) for reply in (second, restarted, later)]
    assert ["quota_exceeded"] * 2 == [other.verdict, third.verdict]
    assert ["s"] == [each.subscription for each in listed.subscriptions]
    assert (1, 1) == (exceeded(shard, "consumers"), exceeded(shard, "subscriptions"))


async def test_a_consumer_learns_at_once_that_its_user_may_have_no_more() -> None:
    async with shard_with(consumers=0) as shard:
        with pytest.raises(RequestRejectedError, match="its quota consumers is 0"):
            async with Consumer(client(shard, "shop"), topic="orders", subscription="s", type="STREAM"):
                pass


async def test_a_producer_learns_at_once_that_its_user_may_have_no_more() -> None:
    async with shard_with(producers=1) as shard, Producer(client(shard, "shop", "first")) as first:
        await first.send_and_wait("orders", b"key", b"1")
        async with Producer(client(shard, "shop", "second")) as second:
            with pytest.raises(RequestRejectedError, match="user shop has 1 producers") as refused:
                await second.open("orders")
            with pytest.raises(RequestRejectedError, match="user shop has 1 producers"):
                await second.send_and_wait("orders", b"key", b"2")
        await first.send_and_wait("orders", b"key", b"3")

    assert "quota_exceeded" == refused.value.verdict
    assert 2 == exceeded(shard, "producers")


async def test_a_program_that_restarts_often_gets_a_producer_in_exchange_for_an_idle_one() -> None:
    async with shard_with(producers=2) as shard, shard.client("client-shop", "shop") as shop:
        first = await shop.call(m.OpenProducer, token="1")
        second = await shop.call(m.OpenProducer, token="2")
        refused = await shop.call(m.OpenProducer, token="3")
        await asyncio.sleep(IDLE_PRODUCER_MS / 1000 + 10)
        await shop.call(
            m.ProduceBatch,
            topic="orders",
            records=[m.Record(b"k", b"v", 0)],
            producer_id=first.producer_id,
            sequence=0,
        )
        third = await shop.call(m.OpenProducer, token="3")
        gone = await shop.call(m.OpenProducer, token="4", producer_id=second.producer_id)

    assert "quota_exceeded" == refused.verdict
    assert isinstance(third, m.ProducerIdentity)
    assert "forgotten" == gone.verdict


SMALL = ProducerSettings(batch_bytes=200, linger_seconds=0, max_in_flight=128)


async def test_a_producer_beyond_its_rate_slows_down_and_stores_everything_once_and_in_order() -> None:
    """The window of one producer is less than the debt that is allowed, so no batch is sent twice."""
    async with shard_with(requests_per_second=200) as shard:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        async with Producer(client(shard, "shop"), settings=SMALL) as producer:
            deliveries = [await producer.send("orders", b"key", b"%d" % n * 30) for n in range(700)]
            placed = [await delivery for delivery in deliveries]
            resent = producer.resent_batches
        seconds = loop.time() - began

    assert list(range(700)) == [each.offset for each in placed]
    assert 0 == resent
    assert seconds > 1
    assert shard.registry.get_sample_value("headgate_replies_delayed_total", {"shard": "0"})
    assert 0 == shard.registry.get_sample_value("headgate_replies_waiting", {"shard": "0"})
    assert 0 == exceeded(shard, "requests_per_second")


@pytest.mark.parametrize(
    "limits", [{"requests_per_second": 20}, {"bytes_per_second": 10_000}], ids=lambda each: str(*each)
)
async def test_refused_batches_are_sent_again_and_stored_once_and_in_order(limits: dict[str, float]) -> None:
    """The windows of three producers are more than the debt that is allowed."""
    async with shard_with(**limits) as shard:

        async def produce(number: int) -> list[int]:
            async with Producer(client(shard, "shop", f"p{number}"), settings=SMALL) as producer:
                deliveries = [await producer.send("orders", b"%d" % number, b"%d" % n * 40) for n in range(80)]
                return [(await delivery).offset for delivery in deliveries]

        offsets = await asyncio.gather(*(produce(number) for number in range(3)))

    (quota,) = limits
    assert exceeded(shard, quota) > 0
    assert [sorted(each) for each in offsets] == offsets
    assert list(range(240)) == sorted(offset for each in offsets for offset in each)


async def test_other_users_are_not_delayed() -> None:
    async with shard_with(requests_per_second=1) as shard, shard.client("client-shop", "shop") as shop:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            shop.send(m.ListTopics)
        async with Producer(client(shard, "operator")) as producer:
            began = loop.time()
            await producer.send_and_wait("orders", b"key", b"value")

    assert loop.time() - began < 0.5


async def test_a_flood_is_not_read_and_is_refused_with_limited_effort() -> None:
    with capture_logs() as logs:
        async with shard_with(requests_per_second=10) as shard, shard.client("client-shop", "shop") as shop:
            flood = m.encode(
                m.Request(request_id=7, protocol=m.PROTOCOL_VERSION, client_id="client-shop", body=m.ListTopics())
            )
            for _ in range(100):
                shop.send_raw(flood)
            refused = await shop.call(m.DeleteTopic, topic="orders", token="x", force=True)
            for _ in range(1900):
                shop.send_raw(flood)
            await asyncio.sleep(60)
            answered = [reply.body for reply in shop.replies[7]]
            later = await shop.call(m.ListTopics)

    refusals = [body for body in answered if isinstance(body, m.Rejected)]
    assert "unavailable" == refused.verdict
    assert "user shop exceeds its quota requests_per_second of 10 on this daemon" in refused.reason
    assert 20 <= len(answered) - len(refusals) <= 40
    assert MAX_REFUSALS_PER_SECOND - 5 <= len(refusals) <= MAX_REFUSALS_PER_SECOND * 3
    assert 2000 - 40 <= exceeded(shard, "requests_per_second") <= 2001
    assert {"unavailable"} == {body.verdict for body in refusals}
    assert ["orders"] == [topic.topic for topic in later.topics]
    logged = [(line["client"], line["quota"]) for line in logs if line["event"] == "quota.exceeded"]
    assert [("shop/client-shop", "requests_per_second")] == logged


async def test_a_message_that_cannot_be_answered_is_dropped() -> None:
    """It does not begin as an envelope does, and a message beyond the rate is not decoded."""
    async with shard_with(requests_per_second=1) as shard, shard.client("client-shop", "shop") as shop:
        for _ in range(100):
            shop.send_raw(b"\xff" * 1000)
        await asyncio.sleep(1)

    malformed = shard.registry.get_sample_value("headgate_messages_malformed_total", {"reason": "invalid"})
    assert 100 == malformed + exceeded(shard, "requests_per_second")
    assert exceeded(shard, "requests_per_second") > 90


async def test_a_higher_quota_applies_to_the_next_request() -> None:
    async with shard_with(topics=0) as shard, Admin(client(shard, "shop")) as shop:
        with pytest.raises(RequestRejectedError):
            await shop.create_topic("a")
        shard.access.rules = AccessRules(USERS, limits={"shop": Limits(topics=1)})
        await shop.create_topic("a")


async def test_descriptions_name_the_user_who_created_it() -> None:
    async with shard_with() as shard, Admin(client(shard, "operator")) as operator:
        async with Consumer(client(shard, "billing"), topic="orders", subscription="s", type="STREAM"):
            (subscription,) = await operator.list_subscriptions("orders")
        topic = await operator.describe_topic("orders")

    assert ("operator", "billing") == (topic.user, subscription.user)


async def test_quotas_survive_a_change_of_leader() -> None:
    """Owners are part of the ledger."""
    shard = OneShard()
    shard.access.rules = AccessRules(USERS, limits={"shop": Limits(topics=1)})
    async with shard.leader(), Admin(client(shard, "shop")) as shop:
        await shop.create_topic("a")
    async with shard.leader("b"), Admin(client(shard, "shop", "again")) as shop:
        with pytest.raises(RequestRejectedError, match="user shop has 1 topics"):
            await shop.create_topic("b")
