"""Requests about subscriptions that the leader answers or refuses."""

import asyncio
import re
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from controller.leader.subscription_registry import drained_as_counted
from controller.settings.sections import RetentionSettings
from coordinator.membership import MAX_DISCONNECTED
from drain.protocol import DrainCheckError, DrainedResponse
from headgate.client.admin import Admin
from headgate.model import entries as e
from headgate.protocol import requests
from headgate.protocol.codec import Presence
from headgate.protocol.replies import Registered
from tests.support.worlds.command_shard import CommandShard
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client as connected

CONSUMER = {"topic": "orders", "subscription": "s", "consumer": "ada", "incarnation": 1}


async def test_the_consumers_of_a_client_that_is_gone_are_marked_in_steps_of_a_limited_size() -> None:
    shard, names = OneShard(), [f"c{n:03}" for n in range(MAX_DISCONNECTED + 1)]
    async with shard.leader() as leader, shard.client() as client:
        await client.call(requests.CreateTopic, topic="orders", segments=1, token="t")
        for name in names:
            await client.call(requests.RegisterConsumer, **CONSUMER | {"consumer": name}, subscription_type="QUEUE")
        consumers = leader.state.topics["orders"].subscriptions["s"].consumers
        away = [
            [name for name in names if consumers[name].disconnected_at_ms is not None]
            for _ in leader.subscription_registry.on_presence(
                Presence(client_id=client.address, online=False), asyncio.get_running_loop().time()
            )
        ]

        assert away == [[], names[:MAX_DISCONNECTED]]
        assert all(each.disconnected_at_ms is not None for each in consumers.values())


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (requests.ExplainSubscription, {"segment": 9}, r"no segment 9; segments: 0, 1$"),
        (requests.ExplainSubscription, {"consumer": "bob"}, "no consumer 'bob'; consumers: ada"),
        (requests.ExplainSubscription, {"subscription": "other"}, "other"),
        (requests.PlanChanges, {"splits": [9]}, "9"),
        (requests.PlanChanges, {"topic": "unknown"}, "unknown"),
    ],
    ids=["segment", "consumer", "subscription", "split", "topic"],
)
async def test_a_query_about_a_missing_object_is_refused_with_the_choices(kind, fields, reason):
    async with OneShard().led() as (_, client):
        await client.call(requests.CreateTopic, topic="orders", segments=2, token="1")
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM")

        reply = await client.call(kind, **{"topic": "orders", "subscription": "s", **fields})

    assert reply.verdict == "invalid"
    assert re.search(reason, reply.reason)


async def test_a_repeated_acknowledgement_has_no_further_effect_and_needs_no_identity():
    shard = OneShard()
    async with shard.client() as client, shard.leader("a") as leader:
        await client.call(requests.CreateTopic, topic="orders", segments=2, token="1")
        registered = await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM")
        await client.call(
            requests.ProduceBatch,
            topic="orders",
            records=[requests.Record(b"k", b"v", 0), requests.Record(b"z", b"v", 0)],
        )
        held = {grant.segment: grant.generation for grant in registered.grants}
        parts = [requests.Acknowledgement(0, held[0], 0, 0), requests.Acknowledgement(1, held[1] + 5, 0, 1)]
        first = await client.call(requests.AcknowledgeBatch, **CONSUMER, acknowledgements=parts)
        again = await client.call(requests.AcknowledgeBatch, **CONSUMER, acknowledgements=parts)
        producers = len(leader.state.producers)

    assert [1] == [index for index, _ in first.rejected]
    assert (first, 0) == (again, producers)


async def test_a_program_that_runs_need_not_have_read_what_came_and_went_and_one_that_starts_must():
    """Another consumer, which has left, was granted it."""
    shard = OneShard(retention=RetentionSettings(checkpoint_retention_seconds=0))
    async with shard.client() as client, shard.leader("a"), Admin(connected(shard, "admin")) as admin:
        await admin.create_topic("orders", segments=2)
        joins = CONSUMER | {"subscription_type": "CHECKPOINT"}
        topic_id = (await client.call(requests.RegisterConsumer, **joins)).topic_id
        await client.call(
            requests.ProduceBatch, topic="orders", records=[requests.Record(b"%d" % n, b"v", 0) for n in range(20)]
        )
        await admin.split("orders", 1)
        assert (1,) == (await admin.prune_topic("orders")).segments
        counted = {"kind": "split", "reason": "command"}
        assert 1 == shard.registry.get_sample_value("headgate_layout_changes_total", counted)
        joins |= {"positions": [(0, 0)], "positions_topic_id": topic_id}
        runs = await client.call(requests.RegisterConsumer, **joins)
        starts = await client.call(requests.RegisterConsumer, **joins | {"incarnation": joins["incarnation"] + 1})

    assert isinstance(runs, Registered)
    assert "segment 1 of topic 'orders' was created and pruned since" in starts.reason


async def test_a_count_of_a_chunk_that_this_leader_has_not_written_drains_nothing() -> None:
    ids = {"topic_id": 1, "subscription_id": 2}
    created = e.SubscriptionCreated(**ids, subscription="s", subscription_type="STREAM", order="strict", positions={})
    state = CommandShard(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"), created).state
    source = AsyncMock(return_value=DrainedResponse(id=0, drained={0: 5}, watermark=2))
    commit = SimpleNamespace(newest=1, when_durable=lambda _, then: then())
    with pytest.raises(DrainCheckError, match="has written 1: another leader writes this ledger"):
        await drained_as_counted(state, commit, source, state.subscriptions[2], frozenset({0}))
