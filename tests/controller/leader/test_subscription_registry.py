"""Requests about subscriptions that the leader answers or refuses."""

import re

import pytest

from headgate.protocol import messages as m
from tests.support.worlds.one_shard import OneShard

pytestmark = pytest.mark.looptime

CONSUMER = {"topic": "orders", "subscription": "s", "consumer": "ada", "incarnation": 1}


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (m.ExplainSubscription, {"segment": 9}, r"no segment 9; segments: \[0, 1\]"),
        (m.ExplainSubscription, {"consumer": "bob"}, "no consumer 'bob'; consumers: ada"),
        (m.ExplainSubscription, {"subscription": "other"}, "other"),
        (m.PlanChanges, {"splits": [9]}, "9"),
        (m.PlanChanges, {"topic": "unknown"}, "unknown"),
    ],
    ids=["segment", "consumer", "subscription", "split", "topic"],
)
async def test_a_query_about_a_missing_object_is_refused_with_the_choices(kind, fields, reason):
    shard = OneShard()
    async with shard.leader(), shard.client() as client:
        await client.call(m.CreateTopic, topic="orders", segments=2, token="1")
        await client.call(m.RegisterConsumer, **CONSUMER, subscription_type="STREAM")

        reply = await client.call(kind, **{"topic": "orders", "subscription": "s", **fields})

    assert isinstance(reply, m.Rejected)
    assert reply.verdict == "invalid"
    assert re.search(reason, reply.reason)


async def test_a_late_copy_of_an_eviction_evicts_no_later_consumer_of_the_name():
    shard = OneShard()
    evict = {"topic": "orders", "subscription": "s", "consumer": "ada", "token": "2"}
    async with shard.leader(), shard.client() as client:
        await client.call(m.CreateTopic, topic="orders", token="1")
        await client.call(m.RegisterConsumer, **CONSUMER, subscription_type="STREAM")
        assert await client.call(m.EvictConsumer, **evict) == m.Done()
        await client.call(m.RegisterConsumer, **{**CONSUMER, "incarnation": 2}, subscription_type="STREAM")
        assert await client.call(m.EvictConsumer, **evict) == m.Done()
        described = (await client.call(m.DescribeSubscription, topic="orders", subscription="s")).subscription

    assert [("ada", 2)] == [(each.consumer, each.incarnation) for each in described.consumers]


@pytest.mark.parametrize("successor", [None, "bob"], ids=["a new topic", "a new subscription of the name"])
async def test_a_late_copy_of_a_first_registration_is_fenced_after_its_topic_was_created_again(successor):
    """A consumer that no longer runs would hold all segments until its grace period ends."""
    shard = OneShard()
    first = {**CONSUMER, "subscription_type": "STREAM"}
    async with shard.client() as client:
        async with shard.leader("a"):
            await client.call(m.CreateTopic, topic="orders", token="1")
            await client.call(m.RegisterConsumer, **first)
            await client.call(m.DeleteTopic, topic="orders", token="2", force=True)
            await client.call(m.CreateTopic, topic="orders", token="3")
            if successor is not None:
                await client.call(m.RegisterConsumer, **{**first, "consumer": successor})
            late = await client.call(m.RegisterConsumer, **first)
        async with shard.leader("b") as leader:
            later = await client.call(m.RegisterConsumer, **first, leader_epoch=2)
            consumers = [set(each.consumers) for each in leader.state.subscriptions.values()]
            restarted = await client.call(m.RegisterConsumer, **{**first, "incarnation": 2}, leader_epoch=2)

    assert ("fenced", "fenced") == (late.verdict, later.verdict)
    assert consumers == ([] if successor is None else [{successor}])
    assert isinstance(restarted, m.Registered), "the restarted program is welcome"


async def test_a_repeated_acknowledgement_has_no_further_effect_and_needs_no_identity():
    shard = OneShard()
    async with shard.client() as client, shard.leader("a") as leader:
        await client.call(m.CreateTopic, topic="orders", segments=2, token="1")
        registered = await client.call(m.RegisterConsumer, **CONSUMER, subscription_type="STREAM")
        await client.call(m.ProduceBatch, topic="orders", records=[m.Record(b"k", b"v", 0), m.Record(b"z", b"v", 0)])
        held = {grant.segment: grant.generation for grant in registered.grants}
        parts = [m.Acknowledgement(0, held[0], 0, 0), m.Acknowledgement(1, held[1] + 5, 0, 1)]
        first = await client.call(m.AcknowledgeBatch, **CONSUMER, acknowledgements=parts)
        again = await client.call(m.AcknowledgeBatch, **CONSUMER, acknowledgements=parts)
        producers = len(leader.state.producers)

    assert [1] == [index for index, _ in first.rejected]
    assert (first, 0) == (again, producers)
