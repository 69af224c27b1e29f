"""The status of a daemon: counts at once, and descriptions of what it leads."""

from types import SimpleNamespace

import pytest

from controller.leadership.transitions import Role
from controller.status import current_backlogs, daemon_status, described_status
from headgate.protocol import messages as m
from metrics.status import ShardCounts
from tests.support.one_shard import OneShard

pytestmark = pytest.mark.looptime


def leading(leader):
    return SimpleNamespace(leader=leader, leadership=SimpleNamespace(role=Role.LEADING), shard=0)


async def test_counts_cover_all_topics_and_descriptions_come_on_request():
    shard = OneShard()
    async with shard.leader() as leader, shard.client() as client:
        for topic in ("a", "b"):
            await client.call(m.CreateTopic, topic=topic, segments=2, token=topic)
        await client.call(m.SplitSegment, topic="a", segment=0, token="s")
        for name in ("ada", "bob"):
            await client.call(
                m.RegisterConsumer, topic="b", subscription="s", consumer=name, incarnation=1, subscription_type="QUEUE"
            )
        leader.on_presence(m.Presence(client_id=client.address, online=False))
        (counted,) = daemon_status("one", "c", [leading(leader)]).shards
        (described,) = (await described_status("one", "c", [leading(leader)])).shards
        backlogs = await current_backlogs([leading(leader)], "b")

        assert await current_backlogs([leading(leader)], "a") == []

    assert counted.counts == ShardCounts(active_segments=5, sealed_segments=1, consumers_in_grace=2)
    assert (counted.topics, counted.subscriptions, counted.backlogs) == ((), (), ())
    assert [topic.topic for topic in described.topics] == ["a", "b"]
    assert [subscription.topic for subscription in described.subscriptions] == ["b"]
    assert described.backlogs == tuple(backlogs)
    assert described.counts == counted.counts
