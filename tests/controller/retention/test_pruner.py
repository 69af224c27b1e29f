"""Pruning by the leader, automatic and on command, and the deletion of data."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import structlog

from controller.leader.leader import ShardLeader
from controller.settings.sections import RetentionSettings
from headgate.errors import StoreUnavailableError
from headgate.ledger.compacted import create_manifest
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.protocol import requests
from headgate.protocol.replies import Revocation
from shard.steps import complete
from tests.support.samples.manifests import compacted_object, manifest
from tests.support.worlds.one_shard import BareClient, OneShard

SOON = RetentionSettings(max_age_seconds=60, checkpoint_retention_seconds=120, delete_delay_seconds=30)
CONSUMER = {"topic": "orders", "subscription": "s", "consumer": "c", "incarnation": 1}


@asynccontextmanager
async def _split_topic(shard: OneShard, **policy: Any) -> AsyncIterator[tuple[ShardLeader, BareClient]]:
    """Topic orders with the sealed segment 0 of one record, and the active segments 1 and 2."""
    async with shard.leader() as leader, shard.client() as client:
        await client.call(requests.CreateTopic, topic="orders", token="1")
        if policy:
            await client.call(requests.SetTopicPolicy, topic="orders", token="2", policy=e.TopicPolicy(**policy))
        await client.call(requests.ProduceBatch, topic="orders", records=[requests.Record(b"k", b"v", 0)])
        await client.call(requests.SplitSegment, topic="orders", segment=0, token="3")
        yield leader, client


def _segments(leader: Any) -> list[int]:
    return sorted(leader.state.topics["orders"].layout.segments)


async def _write_compacted(shard: OneShard, topic_id: int, *segments: int) -> None:
    """Write compacted objects of ``segments`` and their manifest."""
    objects = [compacted_object(topic_id, each, f"compacted/shard=0000/run/{each}.parquet") for each in segments]
    for item in objects:
        await shard.store.create(item.path, b"records")
    await create_manifest(shard.store, manifest(1, 2, *objects))


def _compacted_names(shard: OneShard) -> list[str]:
    return sorted(path.rsplit("/", 1)[1] for path in shard.store.objects if path.startswith("compacted/"))


async def test_nothing_is_pruned_or_deleted_because_the_clock_jumps() -> None:
    """The leader did not live through the retention time."""
    shard = OneShard(retention=RetentionSettings(max_age_seconds=2 * 3600, delete_delay_seconds=2 * 3600))
    async with _split_topic(shard) as (leader, client):
        await asyncio.sleep(1)
        shard.clock_ahead_ms = 8 * 86_400_000
        await asyncio.sleep(60)
        assert _segments(leader) == [0, 1, 2]
        await client.call(requests.PruneTopic, topic="orders", token="4")
        shard.clock_ahead_ms *= 2
        await asyncio.sleep(60)
        assert set(leader.state.tombstones) == {(1, 0)}


async def test_a_pruned_segment_has_a_tombstone_until_its_data_is_deleted() -> None:
    shard = OneShard(retention=SOON)
    sample = shard.registry.get_sample_value
    async with _split_topic(shard) as (leader, _):
        await _write_compacted(shard, 1, 0, 1)
        await asyncio.sleep(75)
        assert _segments(leader) == [1, 2]
        await asyncio.sleep(18)
        assert _compacted_names(shard) == ["0.parquet", "1.parquet"], "a consumer may still be reading"
        assert set(leader.state.tombstones) == {(1, 0)}
        assert sample("headgate_segment_deletions_pending", {"shard": "0"}) == 1
        assert sample("headgate_segments_pruned_total") == 1
        await asyncio.sleep(27)
        assert _compacted_names(shard) == ["1.parquet"]
        assert leader.state.tombstones == {}
        assert sample("headgate_segment_deletions_pending", {"shard": "0"}) == 0


async def test_a_failed_deletion_is_retried_with_backoff() -> None:
    shard = OneShard(retention=SOON)
    attempts: list[float] = []
    overdue: list[float] = []

    async def delete(shard_number: int, topic_id: int, segments: Collection[int]) -> int:
        attempts.append(asyncio.get_running_loop().time())
        overdue.append(shard.registry.get_sample_value("headgate_deletion_overdue_seconds", {"shard": "0"}) or 0)
        if len(attempts) < 6:
            raise StoreUnavailableError("unreachable")
        return 1

    with structlog.testing.capture_logs() as logged:
        async with _split_topic(shard) as (leader, _):
            leader.pruner.context = replace(leader.context, delete_data=delete)
            await asyncio.sleep(1000)
            assert leader.state.tombstones == {}

    assert len(attempts) == 6
    assert overdue[0] < 11, "at most one round of 10 s late"
    assert [round(late - overdue[0]) for late in overdue] == [round(at - attempts[0]) for at in attempts]
    assert shard.registry.get_sample_value("headgate_deletion_overdue_seconds", {"shard": "0"}) == 0
    pauses = [after - before for before, after in pairwise(attempts)]
    assert pauses[-1] > 30, "it backs off"
    assert max(pauses) < 310
    assert shard.registry.get_sample_value("headgate_segment_deletions_failed_total") == 5
    assert [line["event"] for line in logged if line["event"].startswith("data.")][-1] == "data.deleted"


@pytest.mark.parametrize("writes", [False, True])
async def test_no_data_is_deleted_of_an_older_ledger_that_was_put_back_under_a_leader(writes: bool) -> None:
    """It may still have the segment, whose tombstone is in the lost one."""
    shard = OneShard(retention=SOON)
    async with _split_topic(shard) as (leader, _):
        await _write_compacted(shard, 1, 0, 1)
        await asyncio.sleep(75)
        assert set(leader.state.tombstones) == {(1, 0)}
        del shard.store.objects[chunk_path(0, leader.commit.durable)]
        if writes:
            leader.commit.barrier()
            await leader.commit.flush()
        await asyncio.sleep(300)
        assert _compacted_names(shard) == ["0.parquet", "1.parquet"]


async def test_data_is_deleted_only_after_the_pruning_is_durable() -> None:
    """Otherwise the next leader would not know of the pruning and would miss the data."""
    shard = OneShard(retention=RetentionSettings(max_age_seconds=10, delete_delay_seconds=0))
    shard.ingest = type(shard.ingest)(unreachable_seconds=900, write_timeout_seconds=900)
    async with _split_topic(shard) as (leader, _):
        attempts: list[int] = []

        async def delete(shard_number: int, topic_id: int, segments: Collection[int]) -> int:
            attempts.append(topic_id)
            return 0

        leader.pruner.context = replace(leader.context, delete_data=delete)
        shard.store.refuses_writes = True
        await asyncio.sleep(100)
        assert set(leader.state.tombstones) == {(1, 0)}
        assert attempts == []
        shard.store.refuses_writes = False
        await asyncio.sleep(20)
        assert attempts == [1]


async def test_a_command_prunes_now_and_returns_why_segments_are_retained() -> None:
    shard = OneShard(retention=RetentionSettings(ignore_subscriptions=True))
    async with _split_topic(shard) as (leader, client):
        cost = sum(leader.pruner._prune())
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM", start="earliest")
        assert sum(leader.pruner._prune()) > cost, "a look asks each subscription, so it may take another turn"
        answer = await client.call(requests.PruneTopic, topic="orders", token="4")
        assert answer.result.segments == ()
        assert [(kept.segment, "0 of 1" in kept.reason) for kept in answer.result.retained] == [(0, True)]

        acknowledged = requests.Acknowledgement(segment=0, generation=1, first_offset=0, end_offset=1)
        await client.call(requests.AcknowledgeBatch, **CONSUMER, acknowledgements=[acknowledged])
        dry = await client.call(requests.PruneTopic, topic="orders", token="5", dry_run=True)
        assert dry.result.segments == (), "it would open the children on the word of the leader alone"
        assert "1 of 1 records, and a drain check is missing" in dry.result.retained[0].reason
        shard.drained_segments[0] = 1
        await asyncio.sleep(1000)
        dry = await client.call(requests.PruneTopic, topic="orders", token="5", dry_run=True)
        assert dry.result.segments == (0,)
        assert _segments(leader) == [0, 1, 2]

        other = await client.call(requests.PruneTopic, topic="orders", token="5", shown=(3,))
        assert ("invalid", [0, 1, 2]) == (other.verdict, _segments(leader)), "segment 0 has drained since it was shown"
        first = await client.call(requests.PruneTopic, topic="orders", token="6", shown=(0, 3))
        again = await client.call(requests.PruneTopic, topic="orders", token="6")
        assert first.result.segments == again.result.segments == (0,), "a repeated command gets the same reply"
        assert _segments(leader) == [1, 2]
        registered = await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM")
        assert sorted(grant.segment for grant in registered.grants) == [1, 2], "its children are grantable"
        await client.call(requests.SplitSegment, topic="orders", segment=1, token="7")
        assert (await client.call(requests.PruneTopic, topic="orders", token="8")).result.segments == (1,)
        again = await client.call(requests.PruneTopic, topic="orders", token="6")
        assert again.result.segments == (0,), "not what another command has pruned since"
        unknown = await client.call(requests.PruneTopic, topic="missing", token="7")
        assert unknown.verdict == "invalid"


async def test_an_active_segment_is_rolled_and_what_no_subscription_holds_is_pruned() -> None:
    """No record is kept for longer than the greatest age and an eighth of it."""
    shard = OneShard(retention=RetentionSettings(ignore_subscriptions=True))
    async with shard.leader() as leader, shard.client() as client:
        await client.call(requests.CreateTopic, topic="orders", token="1")
        await client.call(requests.SetTopicPolicy, topic="orders", token="2", policy=e.TopicPolicy(max_age_ms=160_000))
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM", start="earliest")
        await client.call(requests.ProduceBatch, topic="orders", records=[requests.Record(b"k", b"v", 0)] * 3)
        await asyncio.sleep(31)
        assert [(1, (0,))] == [
            (each.segment_id, each.parents) for each in leader.state.topics["orders"].layout.active()
        ]
        await asyncio.sleep(300)
        answer = await client.call(requests.DescribeSubscription, topic="orders", subscription="s")
        reply = await client.call(requests.ProduceBatch, topic="orders", records=[requests.Record(b"k", b"v", 0)])

        assert [1] == _segments(leader), "an empty segment is not rolled"
        assert [(1, 0)] == [(each.segment, each.first_offset) for each in reply.placements]
        assert 3 == answer.subscription.dropped_records
        assert 3 == shard.registry.get_sample_value("headgate_retention_dropped_records_total")


async def test_a_consumer_gives_an_unread_segment_back_before_it_is_pruned() -> None:
    """Else it would deliver what it has queued of it after another consumer has delivered records of the children."""
    async with _split_topic(OneShard(), max_age_ms=0, ignore_subscriptions=True) as (leader, client):
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM", start="earliest")
        await client.call(requests.SplitSegment, topic="orders", segment=1, token="4")
        await asyncio.sleep(21)
        assert [0, 1, 2, 3, 4] == _segments(leader), "the sealed child of a segment that is held waits, too"
        assert [Revocation(segment=0, generation=1)] == client.pushes.pop().revoked
        await client.call(requests.ConfirmRevoked, **CONSUMER, released=[(0, 1)])
        await asyncio.sleep(10)
        assert [2, 3, 4] == _segments(leader) == [each.segment for each in client.pushes.pop().granted]


async def test_a_segment_that_is_kept_after_all_is_granted_again() -> None:
    async with _split_topic(OneShard(), max_age_ms=0, ignore_subscriptions=True) as (_, client):
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="STREAM", start="earliest")
        await asyncio.sleep(21)
        await client.call(requests.SetTopicPolicy, topic="orders", token="4", policy=e.TopicPolicy(max_age_ms=-1))
        await client.call(requests.ConfirmRevoked, **CONSUMER, released=[(0, 1)])
        await asyncio.sleep(10)
        assert [0] == [each.segment for each in client.pushes.pop().granted]


async def test_no_consumer_gives_back_what_no_child_waits_for() -> None:
    async with _split_topic(OneShard(), max_age_ms=0, ignore_subscriptions=True) as (leader, client):
        await client.call(requests.RegisterConsumer, **CONSUMER, subscription_type="QUEUE", start="earliest")
        await asyncio.sleep(21)
        assert [1, 2] == _segments(leader)


async def test_a_prune_of_a_topic_that_is_deleted_meanwhile_is_refused() -> None:
    shard = OneShard()
    async with _split_topic(shard) as (leader, client):
        steps = leader.pruner.prune_topic(requests.PruneTopic(topic="orders", token="4"))
        next(steps)
        await client.call(requests.DeleteTopic, topic="orders", token="5")
        decided = complete(steps)

    assert decided.verdict == "unavailable"


async def test_a_decision_follows_the_policy_that_was_set_meanwhile() -> None:
    """An operator who got the answer that everything is kept loses nothing."""
    async with _split_topic(OneShard(), max_age_ms=0) as (leader, client):
        steps = leader.pruner._prune()
        for _ in range(3):  # It has read the policy, and looks at the segments.
            next(steps)
        await client.call(requests.SetTopicPolicy, topic="orders", token="5", policy=e.TopicPolicy(max_age_ms=-1))
        list(steps)

        assert _segments(leader) == [0, 1, 2]
