"""One shard whose topics are external, in virtual time."""

from contextlib import asynccontextmanager

from drain.protocol import DrainedResponse
from headgate.client.admin import Admin
from headgate.client.source_listing import ExternalLayout
from headgate.protocol.requests import SegmentImport
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client


def seg(label: str, first: int, last: int, parents: str = "", sealed: bool = False) -> SegmentImport:
    return SegmentImport(segment=label, hashes=(str(first), str(last)), parents=list(parents), sealed=sealed)


def layout(*segments: SegmentImport) -> ExternalLayout:
    return ExternalLayout(segments, positions="opaque", hash_bits=4)


SPLIT = layout(seg("a", 0, 15, sealed=True), seg("b", 0, 7, "a"), seg("c", 8, 15, "a"))


class ExternalTopicShard(OneShard):
    """A shard without Spark: a segment is drained if it is acknowledged to its sealed end."""

    async def drained(self, query):
        topic = self.leading.state.topics_by_id[query.topic_id]
        position = self.leading.state.subscriptions[query.subscription_id].position
        ends = {s: topic.layout.segments[s].end_offset for s in query.segments}
        drained = {s: end for s, end in ends.items() if position(s) >= end and self.drain_problem is None}
        return DrainedResponse(id=0, drained=drained, watermark=query.at_least_chunk)


@asynccontextmanager
async def world():
    cluster = ExternalTopicShard()
    async with cluster.leader() as leader:
        cluster.leading = leader
        async with Admin(client(cluster, "admin")) as admin:
            yield cluster, admin
