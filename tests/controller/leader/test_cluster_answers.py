"""A leader answers for the cluster without waiting for it, and while its store is away."""

import asyncio

import pytest

from controller.leader.cluster_answers import MAX_PENDING_ANSWERS
from headgate.protocol.replies import ClusterReply
from headgate.protocol.requests import DescribeCluster
from tests.support.worlds.one_shard import OneShard

pytestmark = pytest.mark.looptime


class SlowCluster(OneShard):
    """Its overview waits until the test says so."""

    def __init__(self):
        super().__init__()
        self.ready = asyncio.Event()

    async def overview(self, instance, leader):
        await self.ready.wait()
        return await super().overview(instance, leader)


async def test_more_requests_than_may_wait_are_refused_as_unavailable():
    shard = SlowCluster()
    async with shard.leader(), shard.client() as client:
        waiting = [client.send(DescribeCluster) for _ in range(MAX_PENDING_ANSWERS)]
        refused = await client.call(DescribeCluster)
        assert (refused.verdict, "64 requests wait" in refused.reason) == ("unavailable", True)
        counted = "headgate_requests_over_limit_total"
        assert shard.registry.get_sample_value(counted, {"limit": "cluster_overviews"}) == 1
        shard.ready.set()
        for each in waiting:
            assert isinstance(await client.reply(each), ClusterReply)
