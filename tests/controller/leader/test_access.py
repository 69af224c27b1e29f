"""A leader acts on the rights and the identity of the sender that a request's topic names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.protocol import messages as m
from shard.access.rules import AccessRules, Right, Role
from tests.headgate.client.test_against_the_leader import client as client_of
from tests.support.worlds.one_shard import CLUSTER, OneShard

pytestmark = pytest.mark.looptime

RULES = AccessRules(
    {
        "operator": (Right(Role.ADMINISTRATOR),),
        "shop": (Right(Role.PRODUCER, ("orders",)),),
        "rival": (Right(Role.PRODUCER, ("orders",)), Right(Role.CONSUMER, ("orders",))),
        "billing": (Right(Role.CONSUMER, ("orders",), ("billing",)),),
        "grafana": (Right(Role.OBSERVER),),
    }
)
RECORDS = [m.Record(b"key", b"value", 0)]


@asynccontextmanager
async def shard_with_rules() -> AsyncIterator[OneShard]:
    """A led shard with the topic ``orders``."""
    shard = OneShard()
    shard.access.rules = RULES
    async with shard.leader():
        async with Admin(client(shard, "operator")) as admin:
            await admin.create_topic("orders", 1)
        yield shard


def client(shard: OneShard, user: str) -> Client:
    return client_of(shard, f"client-{user}", user)


def denied(shard: OneShard) -> float:
    return shard.registry.get_sample_value("headgate_access_denied_total") or 0.0


async def opened(shard: OneShard, user: str, **fields: object) -> m.AnyReplyBody:
    async with shard.client(f"client-{user}", user) as sender:
        return await sender.call(m.OpenProducer, token=f"token-{user}", **fields)


async def test_a_named_producer_belongs_to_its_user() -> None:
    async with shard_with_rules() as shard:
        mine = await opened(shard, "shop", name="import", incarnation=1)
        theirs = await opened(shard, "rival", name="import", incarnation=1)
        again = await opened(shard, "rival", producer_id=mine.producer_id, producer_epoch=mine.producer_epoch)

    assert [("forbidden", True), ("forbidden", True)] == [
        (reply.verdict, "belongs to another user" in reply.reason) for reply in (theirs, again)
    ]


async def test_a_forged_batch_counts_as_one_of_an_unknown_producer() -> None:
    """The honest producer's next batch is stored, and is no duplicate."""
    async with shard_with_rules() as shard:
        identity = await opened(shard, "shop")
        batch = {
            "topic": "orders",
            "records": RECORDS,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "sequence": 0,
        }
        async with shard.client("client-rival", "rival") as rival, shard.client("client-shop", "shop") as shop:
            forged = await rival.call(m.ProduceBatch, **batch)
            raised = await rival.call(m.ProduceBatch, **{**batch, "producer_epoch": identity.producer_epoch + 1})
            honest = await shop.call(m.ProduceBatch, **batch)

    assert ["forgotten", "forgotten"] == [forged.verdict, raised.verdict]
    assert isinstance(honest, m.Committed)
    assert not honest.duplicate


async def test_a_consumers_name_belongs_to_its_user() -> None:
    registration = {"topic": "orders", "subscription": "billing", "consumer": "c", "subscription_type": "STREAM"}
    async with (
        shard_with_rules() as shard,
        shard.client("client-billing", "billing") as owner,
        shard.client("client-rival", "rival") as rival,
    ):
        await owner.call(m.RegisterConsumer, **registration, incarnation=1)
        taken = await rival.call(m.RegisterConsumer, **registration, incarnation=2)
        named = {key: registration[key] for key in ("topic", "subscription", "consumer")}
        await rival.call(m.LeaveConsumer, **named, incarnation=1)
        kept = await owner.call(m.Heartbeat, **named, incarnation=1)

    assert ("forbidden", "consumer 'c' belongs to another user: use another name") == (taken.verdict, taken.reason)
    assert isinstance(kept, m.HeartbeatReply)


async def test_another_user_sends_no_request_for_a_consumer() -> None:
    """It has the same right to the subscription, and knows incarnation and generation."""
    registration = {"topic": "orders", "subscription": "billing", "consumer": "c", "subscription_type": "STREAM"}
    async with (
        shard_with_rules() as shard,
        shard.client("client-shop", "shop") as shop,
        shard.client("client-billing", "billing") as owner,
        shard.client("client-rival", "rival") as rival,
    ):
        await shop.call(m.ProduceBatch, topic="orders", records=RECORDS)
        registered = await owner.call(m.RegisterConsumer, **registration, start="earliest", incarnation=1)
        known = {key: registration[key] for key in ("topic", "subscription", "consumer")} | {"incarnation": 1}
        (grant,) = registered.grants
        part = m.Acknowledgement(grant.segment, grant.generation, 0, 1)
        replies = [
            await rival.call(m.AcknowledgeBatch, **known, acknowledgements=[part]),
            await rival.call(m.Heartbeat, **known, held=[]),
            await rival.call(m.LeaveConsumer, **known),
            await rival.call(m.ConfirmRevoked, **known, released=[(grant.segment, grant.generation)]),
        ]
        described = await owner.call(m.DescribeSubscription, topic="orders", subscription="billing")

    assert ["forbidden"] * 4 == [reply.verdict for reply in replies]
    assert 4 == denied(shard)
    assert [("granted", "c", 0)] == [
        (each.status, each.consumer, each.acknowledged_offset) for each in described.subscription.segments
    ]


async def test_a_request_in_another_clients_name_has_no_effect_and_is_answered_to_its_sender() -> None:
    async with (
        shard_with_rules() as shard,
        shard.client("client-rival", "rival") as rival,
        shard.client("client-operator", "operator") as operator,
    ):
        request = m.Request(
            request_id=5,
            protocol=m.PROTOCOL_VERSION,
            client_id="client-operator",
            body=m.DeleteTopic(topic="orders", token="x"),
        )
        rival.transport.publish(m.requests_topic(CLUSTER, 0, "rival/client-rival"), m.encode(request))
        reply = await rival.reply(5)
        topics = await operator.call(m.ListTopics)

    assert ("invalid", True) == (reply.verdict, "names client 'client-operator'" in reply.reason)
    assert ["orders"] == [topic.topic for topic in topics.topics]
    assert 5 not in operator.replies
    assert 1 == shard.registry.get_sample_value("headgate_messages_malformed_total", {"reason": "sender"})


async def test_a_stored_batch_is_answered_after_its_user_has_lost_the_right() -> None:
    """ "Not stored" would be untrue."""
    async with shard_with_rules() as shard:
        identity = await opened(shard, "shop")
        named = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
        async with shard.client("client-shop", "shop") as shop:
            await shop.call(m.ProduceBatch, topic="orders", records=RECORDS, **named, sequence=0)
            shard.access.rules = AccessRules({"shop": (Right(Role.PRODUCER, ("other",)),)})
            repeated = await shop.call(m.ProduceBatch, topic="orders", records=RECORDS, **named, sequence=0)
            later = await shop.call(m.ProduceBatch, topic="orders", records=RECORDS, **named, sequence=1)

    assert repeated.duplicate
    assert "forbidden" == later.verdict
