"""External topics from end to end in virtual time: the real leader, and a program that reads its own source."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest

from drain.protocol import DrainedResponse
from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
from headgate.client.producer import Producer
from headgate.client.source_listing import ExternalLayout
from headgate.errors import HeadgateError, RequestRejectedError
from headgate.protocol.messages import SegmentImport
from tests.headgate.client.test_against_the_leader import SMALL, client
from tests.support.waiting import until
from tests.support.worlds.one_shard import BEGAN_MS, OneShard

pytestmark = pytest.mark.looptime

RECORDS = 20
"""In each shard of the source."""


def seg(label: str, first: int, last: int, parents: str = "", sealed: bool = False) -> SegmentImport:
    return SegmentImport(segment=label, hashes=(str(first), str(last)), parents=list(parents), sealed=sealed)


def layout(*segments: SegmentImport) -> ExternalLayout:
    return ExternalLayout(segments, positions="opaque", hash_bits=4)


SPLIT = layout(seg("a", 0, 15, sealed=True), seg("b", 0, 7, "a"), seg("c", 8, 15, "a"))
MERGED = layout(
    seg("a", 0, 15, sealed=True),
    seg("b", 0, 7, "a", sealed=True),
    seg("c", 8, 15, "a", sealed=True),
    seg("d", 0, 15, "bc"),
)


class Source:
    """A stream outside headgate: numbered records in each shard; closed shards end."""

    def __init__(self, closed: str, pace_seconds: float = 0.05) -> None:
        self.pace_seconds = pace_seconds
        self.closed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.close(closed)
        self.read_order: list[tuple[str, int]] = []
        self.reading: dict[str, int] = defaultdict(int)

    def close(self, labels: str) -> None:
        for label in labels:
            self.closed[label].set()

    async def read(self, shard: GrantedSegment) -> None:
        self.reading[shard.label] += 1
        assert self.reading[shard.label] == 1, f"two readers of {shard.label}"
        try:
            for number in range(int(shard.checkpoint or 0), RECORDS):
                await asyncio.sleep(self.pace_seconds)
                self.read_order.append((shard.label, number))
                await shard.acknowledge(checkpoint=str(number + 1))
            await self.closed[shard.label].wait()
            await shard.finish()
        finally:
            self.reading[shard.label] -= 1

    def first(self, label: str) -> int:
        return self.read_order.index((label, 0))

    def last(self, label: str) -> int:
        return len(self.read_order) - 1 - self.read_order[::-1].index((label, RECORDS - 1))


class ExternalTopicShard(OneShard):
    """A shard without Spark: a segment is drained if it is acknowledged to its sealed end."""

    async def drained(self, query):
        topic = self.leading.state.topics_by_id[query.topic_id]
        position = self.leading.state.subscriptions[query.subscription_id].position
        ends = {s: topic.layout.segments[s].end_offset for s in query.segments}
        drained = {s: end for s, end in ends.items() if position(s) >= end}
        return DrainedResponse(id=0, drained=drained, watermark=query.at_least_chunk)


@asynccontextmanager
async def world():
    cluster = ExternalTopicShard()
    async with cluster.leader() as leader:
        cluster.leading = leader
        async with Admin(client(cluster, "admin")) as admin:
            yield cluster, admin


@asynccontextmanager
async def running(cluster: ExternalTopicShard, source: Source, name: str, **more):
    async with ExternalConsumer(client(cluster, name), topic="orders", subscription="s", name=name, **more) as consumer:
        task = asyncio.create_task(consumer.run(source.read))
        try:
            yield consumer
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_children_are_read_after_their_parents_and_after_a_reshard() -> None:
    source = Source(closed="a")
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with running(cluster, source, "one"), running(cluster, source, "two"):
            await until(lambda: ("b", RECORDS - 1) in source.read_order and ("c", RECORDS - 1) in source.read_order)
            source.close("bc")
            await asyncio.sleep(5)
            answer = await admin.import_topic("orders", MERGED)
            await until(lambda: ("d", RECORDS - 1) in source.read_order)
    assert (("d",), ("b", "c")) == (answer.created, answer.sealed)
    assert 4 * RECORDS == len(source.read_order), "each record once: no call failed"
    for parent, child in ("ab", "ac", "bd", "cd"):
        assert source.last(parent) < source.first(child)


async def test_the_next_holder_resumes_at_the_checkpoint() -> None:
    source = Source(closed="")
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 15)))
        async with running(cluster, source, "one"):
            await until(lambda: len(source.read_order) == RECORDS // 2)
        source.close("a")
        async with running(cluster, source, "two") as second:
            await until(lambda: ("a", RECORDS - 1) in source.read_order)
            assert [0] == second.segments
    assert [("a", n) for n in range(RECORDS)] == source.read_order


async def test_a_handover_ends_the_running_call_first_and_loses_no_record() -> None:
    """A second consumer gets segments while the first one reads. The source asserts that calls do not overlap."""
    source = Source(closed="", pace_seconds=0.5)
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 7), seg("b", 8, 15)))
        async with running(cluster, source, "one") as first:
            await until(lambda: len(source.read_order) >= RECORDS // 2)
            async with running(cluster, source, "two") as second:
                await until(lambda: len(set(source.read_order)) == 2 * RECORDS, 60)
                assert {0, 1} == {*first.segments, *second.segments}
                assert [1, 1] == [len(first.segments), len(second.segments)]
    assert [n for label, n in source.read_order if label == "a"] == sorted(
        n for label, n in source.read_order if label == "a"
    )
    assert 2 * RECORDS == len(source.read_order)


async def test_a_segment_moves_as_soon_as_the_call_that_reads_it_has_ended() -> None:
    """The call needs 3 s for that, far less than the time limit of a revocation."""
    loop = asyncio.get_running_loop()
    calls: list[tuple[str, str, float]] = []

    async def read(segment: GrantedSegment) -> None:
        calls.append(("begins", segment.label, loop.time()))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)
            calls.append(("ends", segment.label, loop.time()))

    source = Source(closed="")
    source.read = read  # type: ignore[method-assign]
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 7), seg("b", 8, 15)))
        async with running(cluster, source, "one"):
            await until(lambda: len(calls) == 2)
            async with running(cluster, source, "two"):
                await until(lambda: len(calls) == 4)
                (ended, old, ended_at), (began, new, began_at) = calls[2:]

    assert ("ends", "begins") == (ended, began)
    assert old == new
    assert began_at - ended_at < 2


async def test_a_checkpoint_is_passed_on_unchanged() -> None:
    checkpoint = " 49\t\u00e4\n "
    found: list[str | None] = []

    async def read(segment: GrantedSegment) -> None:
        found.append(segment.checkpoint)
        await segment.acknowledge(checkpoint=checkpoint)
        await asyncio.Event().wait()

    source = Source(closed="")
    source.read = read  # type: ignore[method-assign]
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 15)))
        for number in (1, 2):
            async with running(cluster, source, f"reader-{number}"):
                await until(lambda number=number: len(found) == number)

    assert [None, checkpoint] == found


async def test_checkpoints_and_grants_survive_a_leader_change() -> None:
    source = Source(closed="a")
    cluster = ExternalTopicShard()
    async with cluster.leader("a") as leader, Admin(client(cluster, "admin")) as admin:
        cluster.leading = leader
        await admin.import_topic("orders", SPLIT)
        async with running(cluster, source, "one"):
            await until(lambda: len(source.read_order) >= RECORDS // 2)
    async with cluster.leader("b") as leader:
        cluster.leading = leader
        async with running(cluster, source, "one"):
            await until(lambda: len(source.read_order) == 3 * RECORDS)
        described = await describe(cluster)
    assert {"a": "20", "b": "20", "c": "20"} == {p.label: p.checkpoint for p in described.segments}
    assert "drained" == described.segments[0].status


async def describe(cluster: ExternalTopicShard):
    async with Admin(client(cluster, "asking")) as admin:
        return await admin.describe_subscription("orders", "s")


async def test_a_segment_can_be_finished_before_its_seal_is_imported() -> None:
    source = Source(closed="a")
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 15)))
        async with running(cluster, source, "one"):
            await until(lambda: ("a", RECORDS - 1) in source.read_order)
            await asyncio.sleep(3)
            await admin.import_topic("orders", SPLIT)
            await until(lambda: len(source.read_order) == 3 * RECORDS, 20)


async def test_a_seek_to_the_earliest_record_reads_parents_first_again() -> None:
    source = Source(closed="a")
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with running(cluster, source, "one"):
            await until(lambda: len(source.read_order) == 3 * RECORDS)
            again = len(source.read_order)
            for to in ({"to": "latest"}, {"timestamp_ms": BEGAN_MS}):
                with pytest.raises(HeadgateError, match="external"):
                    await admin.seek("orders", "s", **to)
            await admin.seek("orders", "s", to="earliest")
            await until(lambda: len(source.read_order) == 6 * RECORDS)
    seconds = source.read_order[again:]
    assert [("a", n) for n in range(RECORDS)] == seconds[:RECORDS]


async def test_an_explanation_uses_the_names_of_the_source() -> None:
    """It does not call a whole shard one record."""
    source = Source(closed="", pace_seconds=5)
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with running(cluster, source, "one"):
            explained = await admin.explain("orders", "s")
        sentences = [" ".join(segment.sentences) for segment in explained.segments]
        with pytest.raises(RequestRejectedError, match="only its source splits"):
            await admin.plan("orders", "s", splits=[1])
    assert "Segment 0 (a) is read by one: not read to its end." == sentences[0]
    assert sentences[1].startswith(
        "Segment 1 (b) is blocked until segment 0 is drained. Segment 0 (a) is not read to its end"
    )
    assert "1 record" not in " ".join(sentences)
    assert {None} == {segment.backlog_records for segment in explained.segments}


async def test_a_call_that_returns_before_the_end_is_an_error_and_releases_no_child() -> None:
    async def forgets(_: GrantedSegment) -> None:
        await asyncio.sleep(1)

    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match="reading a returned before its end"):
                await consumer.run(forgets)
        described = await describe(cluster)
    assert ["waiting", "blocked", "blocked"] == [progress.status for progress in described.segments]


async def test_a_call_that_raises_ends_the_consumer_with_the_cause() -> None:
    async def breaks(segment: GrantedSegment) -> None:
        raise OSError(f"{segment.label} is unreachable")

    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match="unreachable") as caught:
                await consumer.run(breaks)
    assert isinstance(caught.value.__cause__, OSError)


async def test_offset_positions_drain_a_segment() -> None:
    seen: list[tuple[str, int]] = []

    async def read(segment: GrantedSegment) -> None:
        seen.append((segment.label, segment.start_offset))
        with pytest.raises(HeadgateError, match="give end_offset"):
            await segment.acknowledge(checkpoint="x")
        await segment.acknowledge(end_offset=7)
        await segment.finish()

    sealed = SegmentImport(segment="a", end_offset=10)
    child = SegmentImport(segment="b", parents=["a"])
    async with world() as (cluster, admin):
        await admin.import_topic("orders", ExternalLayout([sealed, child]))
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match="the end of b was unknown when it was granted"):
                await consumer.run(read)
        described = await describe(cluster)
    assert [("a", 0), ("b", 0)] == seen
    assert [10, 7] == [progress.acknowledged_offset for progress in described.segments]


async def test_opaque_positions_accept_no_offsets() -> None:
    async def read(segment: GrantedSegment) -> None:
        with pytest.raises(HeadgateError, match="no end_offset"):
            await segment.acknowledge(end_offset=7)
        await segment.finish(end_offset=7)

    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match="without end_offset"):
                await consumer.run(read)


async def test_a_consumer_of_the_wrong_kind_is_refused_and_creates_no_subscription() -> None:
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        await admin.create_topic("stored")
        with pytest.raises(RequestRejectedError, match="read its source with ExternalConsumer"):
            async with Consumer(client(cluster, "one"), topic="orders", subscription="s", start="earliest"):
                pass
        with pytest.raises(RequestRejectedError, match="read it with Consumer"):
            async with ExternalConsumer(client(cluster, "two"), topic="stored", subscription="s"):
                pass
        assert [] == await admin.list_subscriptions()


async def test_records_for_an_external_topic_are_refused_without_affecting_others() -> None:
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        await admin.create_topic("stored")
        async with Producer(client(cluster, "producer"), settings=SMALL) as producer:
            rejected = await producer.send("orders", b"k", b"v")
            taken = await producer.send("stored", b"k", b"v")
            with pytest.raises(RequestRejectedError, match="produce to its source"):
                await rejected
            assert 0 == (await taken).offset
        with pytest.raises(RequestRejectedError, match="split or merge at its source"):
            await admin.split("orders", 1)
