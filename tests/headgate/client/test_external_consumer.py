"""External topics from end to end in virtual time: the real leader, and a program that reads its own source."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
from headgate.client.processing.schedule import RetryPolicy
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, HeadgateError, RequestRejectedError
from headgate.process.background import end_tasks
from headgate.protocol.requests import SegmentImport
from tests.support.waiting import until
from tests.support.worlds.external_topic import SPLIT, ExternalTopicShard, layout, seg, world
from tests.support.worlds.one_shard_programs import client

RECORDS = 20
"""In each shard of the source."""


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


@asynccontextmanager
async def running(cluster: ExternalTopicShard, source: Source, name: str, **more):
    async with ExternalConsumer(client(cluster, name), topic="orders", subscription="s", name=name, **more) as consumer:
        task = asyncio.create_task(consumer.run(source.read))
        try:
            yield consumer
        finally:
            await end_tasks(task)


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


async def forgets(_consumer: ExternalConsumer, _segment: GrantedSegment) -> None:
    await asyncio.sleep(1)


async def breaks(_consumer: ExternalConsumer, segment: GrantedSegment) -> None:
    raise OSError(f"{segment.label} is unreachable")


@pytest.mark.parametrize(
    ("read", "text", "cause"),
    [
        (forgets, "reading a returned before its end", None),
        (lambda consumer, _: consumer.__aexit__(None), "close: it would wait for the handler or callback", None),
        (lambda consumer, _: consumer.run(print), "run: it would wait for the handler or callback", None),
        (breaks, "unreachable", OSError),
    ],
    ids=["it returns before the end", "it would wait for its close", "it would wait for its run", "it raises"],
)
async def test_a_call_that_does_not_read_to_the_end_is_an_error_and_releases_no_child(read, text, cause) -> None:
    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match=text) as caught:
                await asyncio.wait_for(consumer.run(lambda segment: read(consumer, segment)), 3)
        described = await describe(cluster)
    assert cause is None or isinstance(caught.value.__cause__, cause)
    assert ["waiting", "blocked", "blocked"] == [progress.status for progress in described.segments]


async def test_offset_positions_drain_a_segment() -> None:
    seen: list[tuple[str, int, int]] = []

    async def read(segment: GrantedSegment) -> None:
        seen.append((segment.label, segment.start_offset, segment.subscription_id))
        with pytest.raises(HeadgateError, match="give end_offset"):
            await segment.acknowledge(checkpoint="x")
        await segment.acknowledge(end_offset=7)
        assert 7 == segment.start_offset, "where a repeated call continues"
        await segment.finish()

    sealed, child = SegmentImport(segment="a", end_offset=10), SegmentImport(segment="b", parents=["a"])
    async with world() as (cluster, admin):
        await admin.import_topic("orders", ExternalLayout([sealed, child]))
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(HeadgateError, match="the end of b was unknown when it was granted"):
                await consumer.run(read)
        described = await describe(cluster)
    assert [("a", 0, described.subscription_id), ("b", 0, described.subscription_id)] == seen
    assert [10, 7] == [progress.acknowledged_offset for progress in described.segments]


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


async def test_a_call_that_raises_is_repeated_from_its_checkpoint_and_stop_ends_the_run() -> None:
    source, failures = Source(closed="a"), iter([5, 12])
    fails_at = next(failures)

    async def read(segment: GrantedSegment) -> None:
        nonlocal fails_at
        if int(segment.checkpoint or 0) >= fails_at:
            fails_at = next(failures, RECORDS)
        for number in range(int(segment.checkpoint or 0), RECORDS):
            if number == fails_at:
                raise ConnectionError("the source is away")
            source.read_order.append((segment.label, number))
            await segment.acknowledge(checkpoint=str(number + 1))
        await segment.finish()
        consumer.stop()

    async with world() as (cluster, admin):
        await admin.import_topic("orders", SPLIT)
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            with pytest.raises(ConfigError, match="use 'stop'"):
                await consumer.run(read, retry=RetryPolicy(then="skip"))
            await consumer.run(read, concurrency=1, retry=RetryPolicy(attempts=3))
    assert [("a", number) for number in range(RECORDS)] == source.read_order


async def test_no_more_segments_are_read_at_the_same_time_than_the_program_allows() -> None:
    source, at_once = Source(closed="abc"), []

    async def read(segment: GrantedSegment) -> None:
        at_once.append(sum(source.reading.values()))
        await source.read(segment)

    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 4), seg("b", 5, 9), seg("c", 10, 15)))
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            task = asyncio.create_task(consumer.run(read, concurrency=2))
            await until(lambda: len(source.read_order) == 3 * RECORDS)
            await end_tasks(task)
    assert (3, 1) == (len(at_once), max(at_once))


async def test_a_call_that_works_on_after_its_cancellation_has_ended_when_its_segment_moves() -> None:
    clock, at = asyncio.get_running_loop().time, dict[str, float]()

    async def works_on(_: GrantedSegment) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        finally:
            at["end"] = clock()

    async def follows(_: GrantedSegment) -> None:
        at["begin"] = clock()
        await asyncio.Event().wait()

    one, two = (SimpleNamespace(read=each) for each in (works_on, follows))
    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 7), seg("b", 8, 15)))
        async with running(cluster, one, "one"), running(cluster, two, "two"):
            await until(lambda: len(at) == 2, 100)
            assert 0.001 < at["begin"] - at["end"], "it had ended when the segment was confirmed"


async def test_the_end_of_the_lease_cancels_the_call_and_a_registration_begins_one_after_its_end() -> None:
    events: list[str] = []

    async def read(segment: GrantedSegment) -> None:
        events.append(f"begins at {segment.checkpoint}")
        await segment.acknowledge(checkpoint="7")
        with pytest.raises(HeadgateError, match="1025 characters in a checkpoint; limit 1024"):
            await segment.acknowledge(checkpoint=1025 * "8")
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(30)
            events.append("ends")

    async with world() as (cluster, admin):
        await admin.import_topic("orders", layout(seg("a", 0, 15)))
        async with ExternalConsumer(client(cluster, "one"), topic="orders", subscription="s") as consumer:
            task = asyncio.create_task(consumer.run(read))
            await asyncio.sleep(20)
            cluster.broker.cut("one")
            await asyncio.sleep(31)
            assert consumer.segments == []
            cluster.broker.heal("one")
            await until(lambda: consumer.segments)
            assert ["begins at None"] == events
            await until(lambda: len(events) == 3)
            assert ["ends", "begins at 7"] == events[1:]
            [held] = consumer._member._feed.holdings.values()
            assert held.delivered > held.acknowledged, "a revocation waits for the present call"
            await end_tasks(task)
