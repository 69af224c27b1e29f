"""Backlog requests are answered in time: with Spark's count, or with the leader's own."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from controller.backlog.merge import OUTDATED
from controller.backlog.service import MAX_RESPONSE_AGE_SECONDS, BacklogService
from controller.context.step_driver import StepDriver
from drain.protocol import Backlog, BacklogResponse, DrainCheckError, ExternalBacklogResponse
from headgate.model import entries as e
from headgate.protocol.requests import DescribeBacklog
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.ledgers import WrittenLedger


class FakeSpark:
    """Replies with configured values after a delay, or fails."""

    def __init__(self, subscription):
        self.subscription = subscription
        self.takes_seconds = 0.1
        self.fails = False
        self.failures: dict[int, str] = {}
        self.records = 7
        self.queries = 0
        self.request = None
        self.external_reply = None
        """Function of the query about an external topic."""

    async def __call__(self, request):
        self.queries += 1
        self.request = request
        records = self.records
        await asyncio.sleep(self.takes_seconds)
        if self.fails:
            raise DrainCheckError("away", "unreachable")
        if self.failures:
            raise DrainCheckError(self.failures[request.shard])
        row = Backlog(
            topic_id=1,
            subscription_id=self.subscription,
            segment=0,
            seek_generation=0,
            sealed=False,
            records=records,
            size_bytes=70,
            oldest_ms=900,
            stored_per_second=1.0,
            acknowledged_per_second=2.0,
        )
        replies = [] if self.external_reply is None else [self.external_reply(query) for query in request.external]
        return BacklogResponse(id=1, rows=[row], watermark=3, as_of_ms=request.now_ms, external=replies)


class ServiceFixture:
    def __init__(self, folder):
        ledger = self.ledger = WrittenLedger(folder)
        self.topic = ledger.topic()
        self.spark = FakeSpark(ledger.subscribe(self.topic, "STREAM"))
        ledger.store(self.topic, 0, 10)
        ledger.acknowledge(self.topic, self.spark.subscription, (0, 0, 4))
        ledger.commit()
        self.state = ledger.state
        self.observer = RecordingObserver()
        context = SimpleNamespace(
            backlog_source=self.spark, observer=self.observer, now_ms=lambda: 1000, backlog_interval_seconds=15.0
        )
        self.commit = SimpleNamespace(durable=self.state.chunk)
        self.said: dict[int, int | None] = {}
        """Segment → what its holder says of it."""
        self.service = BacklogService(context, self.state, StepDriver().complete, lambda _: self.said, self.commit)

    @asynccontextmanager
    async def open(self):
        task = asyncio.get_running_loop().create_task(self.service.run())
        await asyncio.sleep(0)
        yield self
        task.cancel()
        await asyncio.wait({task})

    async def describe(self, **fields):
        return (await self.service.answer(DescribeBacklog(**fields))).backlogs


@pytest.fixture
def harness(tmp_path):
    return ServiceFixture(tmp_path)


async def test_totals_and_outlook_follow_from_sparks_count(harness):
    async with harness.open():
        (found,) = await harness.describe()

    assert (found.counted_by, found.records, found.oldest_ms, found.as_of_ms) == ("spark", 7, 900, 1000)
    assert (found.outlook, found.drained_in_seconds) == ("shrinking", 3.5)
    (kept,) = harness.service.counted.values()
    assert (len(found.segments), replace(found, segments=())) == (1, kept), "a term keeps no segments"


async def test_spark_counts_to_the_last_durable_chunk_and_knows_whether_it_is_the_newest(harness):
    chunk, at_ms = harness.state.chunk, harness.state.at_ms
    await harness.describe()
    asked = [harness.spark.request]
    harness.state.begin_chunk(chunk + 1, at_ms + 5)
    await asyncio.sleep(MAX_RESPONSE_AGE_SECONDS + 1)
    await harness.describe()
    asked.append(harness.spark.request)

    assert [(chunk, at_ms), (chunk, 0)] == [(each.written_to, each.written_at_ms) for each in asked]


async def test_what_does_not_fit_into_a_page_is_not_counted(harness):
    harness.ledger.subscribe(harness.topic, "STREAM")
    harness.ledger.commit()
    both, first = await harness.service.latest(), await harness.service.latest(is_last=lambda _: True)

    assert (2, list(both)[:1]) == (len(both), list(first))


async def test_without_spark_the_leader_counts(harness):
    harness.spark.fails = True
    async with harness.open():
        (found,) = await harness.describe()

    assert (found.counted_by, found.records, found.outlook) == ("leader", 6, "unknown")
    assert (found.oldest_ms, found.stored_per_second, found.as_of_ms) == (None, None, 1000)


async def test_sparks_count_from_before_a_seek_is_not_used(harness):
    async with harness.open():
        await harness.describe()
        harness.spark.fails = True
        ids = {"topic_id": harness.topic, "subscription_id": harness.spark.subscription}
        harness.state.apply(e.SubscriptionSeek(**ids, seek_generation=1, positions={0: 0}, token="t"))
        (found,) = await harness.describe()

    assert ("leader", 10) == (found.counted_by, found.records)


async def test_sparks_last_count_is_used_until_it_is_too_old(harness):
    async with harness.open():
        await harness.describe()
        harness.spark.fails = True
        assert (await harness.describe())[0].counted_by == "spark"
        await asyncio.sleep(MAX_RESPONSE_AGE_SECONDS + 1)

        assert (await harness.describe())[0].counted_by == "leader"


# External topics


def imported(harness, positions="offsets"):
    """Import a topic of three segments, the first one sealed, with two subscriptions; return all ids."""
    opaque = positions == "opaque"
    topic_id = harness.ledger.state.ids.next_id
    segments = [
        e.ImportedSegment(segment=0, label="a", end_offset=1 if opaque else 9),
        e.ImportedSegment(segment=1, label="b", parents=[0]),
        e.ImportedSegment(segment=2, label="c", parents=[0]),
    ]
    harness.ledger.add(
        e.TopicImported(topic_id=topic_id, topic="orders", token="i", segments=segments, positions=positions)
    )
    one, other = (harness.ledger.subscribe(topic_id, kind) for kind in ("STREAM", "CHECKPOINT"))
    return topic_id, one, other


def row(topic_id, subscription_id, segment, **fields):
    given = {"seek_generation": 0, "size_bytes": None}
    return Backlog(
        topic_id=topic_id,
        subscription_id=subscription_id,
        segment=segment,
        sealed=False,
        **given | {"records": None} | fields,
    )


def reply_with(harness, *rows, **fields):
    def external_reply(query):
        return ExternalBacklogResponse(shard=query.shard, topic_id=query.topic_id, **{"rows": list(rows)} | fields)

    harness.spark.external_reply = external_reply


async def test_an_error_is_reported_for_its_topic_with_the_values_known_without_its_tables(harness):
    topic_id, stream, _ = imported(harness)
    harness.ledger.acknowledge(topic_id, stream, (0, 0, 9))
    reply_with(harness, reason="external.orders.entries (/t): rubbish", failing=True)
    async with harness.open():
        found, untracked = await harness.describe(topic="orders")
        (stored,) = await harness.describe(topic="t1")

    assert [part.records for part in found.segments] == [0, None, None]
    assert (found.unknown_reason, found.failing) == ("external.orders.entries (/t): rubbish", True)
    assert (stored.records, stored.failing, untracked.failing) == (7, False, False)


async def test_what_a_holder_says_is_used_where_nothing_was_counted(harness):
    topic_id, stream, _ = imported(harness, "opaque")
    harness.said = {0: None, 1: 300, 2: 200}
    reply_with(harness, row(topic_id, stream, 2, records=4, oldest_ms=100), as_of_ms=400)
    async with harness.open():
        found, untracked = await harness.describe(topic="orders")

    assert [(part.records, part.oldest_ms, part.estimated) for part in found.segments] == [
        (0, None, True),
        (None, 300, False),
        (4, 100, False),
    ]
    assert (found.records, found.oldest_ms, untracked.oldest_ms) == (None, 100, None)


async def test_a_count_from_before_a_seek_is_not_used(harness):
    topic_id, stream, _ = imported(harness)
    reply_with(harness, *(row(topic_id, stream, at, records=4) for at in range(3)), as_of_ms=400)
    async with harness.open():
        assert (await harness.describe(topic="orders"))[0].records == 12
        harness.ledger.seek(topic_id, stream, {0: 0})
        found = (await harness.describe(topic="orders"))[0]

    assert (found.records, found.unknown_reason) == (None, OUTDATED)
