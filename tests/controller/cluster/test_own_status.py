"""The status of a daemon: counts at once, summaries and documents of what it leads."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from controller.cluster.own_status import shard_statuses, subscription_document, summaries, topic_document
from controller.leadership.policy.transitions import Role
from drain.protocol import Backlog, BacklogResponse
from headgate.protocol import requests
from headgate.protocol.codec import Presence
from headgate.protocol.replies import Registered, TopicImportReply
from headgate.views.subscriptions import SegmentBacklogInfo
from metrics.status import ShardCounts
from tests.support.samples.cluster_overviews import backlog
from tests.support.worlds.one_shard import OneShard
from web.api.overview import UnknownNameError


async def prepare(leader, client):
    """Make topic ``a`` with a split segment, and topic ``b`` with a queue whose two consumers went away."""
    for topic in ("a", "b"):
        await client.call(requests.CreateTopic, topic=topic, segments=2, token=topic)
    for name in ("ada", "bob"):
        await client.call(
            requests.RegisterConsumer,
            topic="b",
            subscription="s",
            consumer=name,
            incarnation=1,
            subscription_type="QUEUE",
        )
    await client.call(
        requests.RegisterConsumer, topic="a", subscription="t", consumer="cy", incarnation=1, subscription_type="STREAM"
    )
    await client.call(
        requests.ProduceBatch, topic="a", records=[requests.Record(str(n).encode(), b"x", 0) for n in range(64)]
    )
    await client.call(requests.SplitSegment, topic="a", segment=0, token="s")


async def test_counts_cover_all_topics():
    async with OneShard().led() as (leader, client):
        await prepare(leader, client)
        leader.on_presence(Presence(client_id=client.address, online=False))
        (counted,) = shard_statuses(
            [SimpleNamespace(leader=leader, leadership=SimpleNamespace(role=Role.LEADING), shard=0)]
        )

    assert counted.counts.longest_blocked_seconds > 0
    assert replace(counted.counts, longest_blocked_seconds=0) == ShardCounts(
        active_segments=5, sealed_segments=1, blocked_segments=2, consumers_in_grace=3
    )


async def test_documents_are_what_describe_and_backlog_answer():
    async with OneShard().led() as (leader, client):
        await prepare(leader, client)
        topic = await topic_document(leader, "a")
        found = await subscription_document(leader, "a", "t")
        described = (await client.call(requests.DescribeSubscription, topic="a", subscription="t")).subscription

    assert [each.segment for each in topic.topic.segments] == [each.segment for each in found.layout] == [0, 1, 2, 3]
    assert [(each.segment, each.status, each.blocked_by) for each in found.subscription.segments] == [
        (each.segment, each.status, each.blocked_by) for each in described.segments
    ]
    assert found.backlog.records == found.summary.backlog_records
    (blocked,) = found.explanation.segments
    (ancestor,) = blocked.blocked_by
    assert (ancestor.segment, ancestor.backlog_records) == (0, topic.topic.segments[0].next_offset)


async def test_unknown_names_are_errors():
    async with OneShard().led() as (leader, client):
        await prepare(leader, client)
        with pytest.raises(UnknownNameError, match="there is no topic 'x'"):
            await topic_document(leader, "x")
        with pytest.raises(UnknownNameError, match="topic 'a' has no subscription 'x'"):
            await subscription_document(leader, "a", "x")


async def test_rates_of_a_topic_are_not_shown_for_the_one_that_was_created_again():
    shard = OneShard()

    async def spark(request):
        rows = [
            Backlog(
                topic_id=each.topic_id,
                subscription_id=number,
                segment=0,
                seek_generation=0,
                sealed=False,
                records=7,
                size_bytes=70,
                oldest_ms=900,
                stored_per_second=1.0,
                acknowledged_per_second=2.0,
            )
            for number, each in leader.state.subscriptions.items()
        ]
        return BacklogResponse(id=1, rows=rows, watermark=3, as_of_ms=request.now_ms)

    async with shard.leader() as leader, shard.client() as client:
        leader.backlogs.context = replace(leader.context, backlog_source=spark, backlog_interval_seconds=900)
        rates, counting = [], None
        for round_ in "12":
            await client.call(requests.CreateTopic, topic="t", segments=1, token=round_)
            await client.call(
                requests.CreateSubscription, topic="t", subscription="s", subscription_type="STREAM", token="s" + round_
            )
            counting = counting or asyncio.create_task(leader.backlogs.run())
            await asyncio.sleep(1)
            _, (found,) = await summaries([leader])
            rates.append(found.acknowledged_per_second)
            await client.call(requests.DeleteTopic, topic="t", token="d" + round_)
        counting.cancel()
    assert [2.0, None] == rates


async def test_the_backlog_of_an_external_topic_is_that_of_its_tables_and_not_an_older_count():
    async with OneShard().led() as (leader, client):
        segments = [requests.SegmentImport(segment="s0")]
        reply = await client.call(requests.ImportTopic, topic="e", token="i", segments=segments, positions="offsets")
        assert isinstance(reply, TopicImportReply), reply
        registered = await client.call(
            requests.RegisterConsumer,
            topic="e",
            subscription="s",
            consumer="ada",
            incarnation=1,
            subscription_type="STREAM",
            external=True,
            start="earliest",
        )
        assert isinstance(registered, Registered), registered
        counted = [SegmentBacklogInfo(segment=0, sealed=False, records=48, label="s0")]
        newest = backlog(counted, topic="e", subscription="s")
        newest = msgspec.structs.replace(newest, unknown_reason="a table is late")

        async def latest(wanted):
            (number,) = leader.state.subscriptions
            return {number: newest} if wanted("e", "s") and not wanted("a", "s") else {}

        leader.backlogs.latest = latest
        (topic,), (found,) = await summaries([leader])

    assert (found.backlog_records, found.unknown_reason) == (48, "a table is late")
    assert (topic.external, topic.records, topic.stored_per_second, topic.backlog_records) == (True, None, None, 48)
