"""Backlog requests are answered in time: with Spark's count, or with the leader's own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from controller.backlog.merge import OUTDATED, leader_backlog
from controller.backlog.service import (
    MAX_PENDING_ANSWERS,
    MAX_RESPONSE_AGE_SECONDS,
    REFRESH_TIMEOUT_SECONDS,
    BacklogService,
)
from controller.leader.step_driver import StepDriver
from drain.protocol import BacklogResponse, BacklogRow, DrainCheckError, ExternalBacklogQuery, ExternalBacklogResponse
from drain.table_mapping import ExternalView
from headgate.model import entries as e
from headgate.protocol import messages as m
from headgate.views.backlogs import SegmentBacklogInfo
from metrics.events import BacklogUpdated
from shard.steps import complete
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.ledgers import WrittenLedger

pytestmark = pytest.mark.looptime


class FakeSpark:
    """Replies with configured values after a delay, or fails."""

    def __init__(self, subscription):
        self.subscription = subscription
        self.takes_seconds = 0.1
        self.fails = False
        self.failures: dict[int, str] = {}
        self.records = 7
        self.queries = 0
        self.external = None
        self.external_reply = None
        """Function of the query about an external topic."""

    async def __call__(self, shard, now_ms, external):
        self.queries += 1
        self.external = external
        records = self.records
        await asyncio.sleep(self.takes_seconds)
        if self.fails:
            raise DrainCheckError("away", "unreachable")
        if self.failures:
            return BacklogResponse(id=1, rows=[], failures=self.failures)
        row = BacklogRow(
            shard=shard,
            watermark=3,
            topic_id=1,
            subscription_id=self.subscription,
            segment=0,
            subscription_type="STREAM",
            seek_generation=0,
            position=0,
            end_offset=10,
            sealed=False,
            records=records,
            size_bytes=70,
            holes=0,
            oldest_ms=900,
            drained=False,
            stored_per_second=1.0,
            acknowledged_per_second=2.0,
        )
        replies = [] if self.external_reply is None else [self.external_reply(query) for query in external]
        return BacklogResponse(
            id=1, rows=[row], failures={}, watermarks={shard: 3}, as_of_ms={shard: now_ms}, external=replies
        )


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
        self.service = BacklogService(
            state=self.state,
            source=self.spark,
            take_steps=StepDriver().complete,
            observer=self.observer,
            now_ms=lambda: 1000,
            interval_seconds=15.0,
        )

    @asynccontextmanager
    async def open(self):
        task = asyncio.get_running_loop().create_task(self.service.run())
        await asyncio.sleep(0)
        yield self
        task.cancel()
        await asyncio.wait({task})

    async def describe(self, **fields):
        answer = asyncio.get_running_loop().create_future()
        request = m.DescribeBacklog(**fields)
        self.service.answer_later(request, answer.set_result)
        return (await answer).backlogs


@pytest.fixture
def harness(tmp_path):
    return ServiceFixture(tmp_path)


async def test_totals_and_outlook_follow_from_sparks_count(harness):
    async with harness.open():
        (found,) = await harness.describe()

    assert (found.counted_by, found.records, found.oldest_ms, found.as_of_ms) == ("spark", 7, 900, 1000)
    assert (found.outlook, found.drained_in_seconds) == ("shrinking", 7.0)


async def test_a_shard_that_cannot_be_counted_is_reported_ever_less_often(harness):
    """It was a warning every 15 s without end."""
    harness.spark.failures = {0: "a gap"}
    with capture_logs() as logs:
        async with harness.open():
            await asyncio.sleep(3600)
            harness.spark.failures = {0: "damaged"}
            await asyncio.sleep(15)
            harness.spark.failures = {}
            await asyncio.sleep(60)

    reasons = [each["reason"] for each in logs if each["event"] == "backlog.not_counted"]
    assert ["a gap"] * 6 + ["damaged"] == reasons


async def test_without_spark_the_leader_counts(harness):
    harness.spark.fails = True
    async with harness.open():
        (found,) = await harness.describe()

    assert (found.counted_by, found.records, found.outlook) == ("leader", 6, "unknown")
    assert (found.oldest_ms, found.stored_per_second, found.as_of_ms) == (None, None, 1000)


async def test_a_subscription_that_is_newer_than_sparks_count_has_the_leaders(harness):
    newer = harness.ledger.subscribe(harness.topic, "STREAM")
    async with harness.open():
        found = {each.subscription: each for each in await harness.describe()}

    assert found[f"s{harness.spark.subscription}"].counted_by == "spark"
    assert (found[f"s{newer}"].counted_by, found[f"s{newer}"].records) == ("leader", 10)


async def test_a_hung_spark_process_does_not_delay_a_reply_beyond_the_limit(harness):
    harness.spark.takes_seconds = 3600
    async with harness.open():
        began = asyncio.get_running_loop().time()
        (found,) = await harness.describe()

        assert found.counted_by == "leader"
        assert asyncio.get_running_loop().time() - began == pytest.approx(REFRESH_TIMEOUT_SECONDS)


async def test_sparks_last_count_is_used_until_it_is_too_old(harness):
    async with harness.open():
        await harness.describe()
        harness.spark.fails = True
        assert (await harness.describe())[0].counted_by == "spark"
        await asyncio.sleep(MAX_RESPONSE_AGE_SECONDS + 1)

        assert (await harness.describe())[0].counted_by == "leader"


async def test_concurrent_requests_share_one_query(harness):
    async with harness.open():
        answers = await asyncio.gather(*(harness.describe() for _ in range(50)))

    assert {each[0].records for each in answers} == {7}
    assert harness.spark.queries == 1


async def test_beyond_the_limit_requests_are_answered_at_once(harness):
    harness.spark.takes_seconds = 3600
    async with harness.open():
        waiting = [asyncio.ensure_future(harness.describe()) for _ in range(MAX_PENDING_ANSWERS)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await harness.describe()

        assert asyncio.get_running_loop().time() == began
        await asyncio.gather(*waiting)


async def test_a_reply_has_only_the_requested_backlogs(harness):
    async with harness.open():
        assert len(await harness.describe(topic="t1")) == 1
        assert await harness.describe(topic="other") == []
        assert await harness.describe(topic="t1", subscription="other") == []


async def test_metrics_are_updated_whether_spark_answers_or_not(harness):
    async with harness.open():
        await asyncio.sleep(1)
        harness.spark.takes_seconds = 3600
        await asyncio.sleep(100)

    counted = [[each.records for each in event.backlogs] for event in harness.observer.of(BacklogUpdated)]
    assert counted[0] == [7]
    assert len(counted) >= 4
    assert counted[-1] == [6]


async def test_a_bug_in_a_query_ends_the_term(harness):
    async def broken(shard, now_ms, external):
        raise ZeroDivisionError

    harness.service._source = broken
    with pytest.raises(ZeroDivisionError):
        await harness.service.run()


def test_the_leader_counts_gaps_and_does_not_track_checkpoints(tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic(2)
    queue, checkpoint = ledger.subscribe(topic, "QUEUE"), ledger.subscribe(topic, "CHECKPOINT")
    ledger.store(topic, 0, 10)
    ledger.acknowledge(topic, queue, (0, 2, 4), (0, 0, 1), (0, 9, 10))
    ledger.commit()
    known = ledger.state.topics_by_id[topic]
    by_name = {name: complete(leader_backlog(each, known, 5)) for name, each in known.subscriptions.items()}

    assert list(by_name[f"s{queue}"].segments) == [
        SegmentBacklogInfo(segment=0, sealed=False, records=6, size_bytes=66),
        SegmentBacklogInfo(segment=1, sealed=False, records=0, size_bytes=0),
    ]
    assert (by_name[f"s{checkpoint}"].records, by_name[f"s{checkpoint}"].outlook) == (None, "not_tracked")


def test_the_leader_counts_the_mean_over_the_key_buckets(tmp_path):
    """Buckets 0 to 7 are acknowledged to 8, the others to nothing: 8 of 16 buckets have 2 records left, 8 have 10."""
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    stream = ledger.subscribe(topic, "STREAM")
    ledger.store(topic, 0, 10)
    ledger.acknowledge(topic, stream, (0, 0, 8, 0, 8))
    ledger.commit()
    known = ledger.state.topics_by_id[topic]

    (segment,) = complete(leader_backlog(known.subscriptions[f"s{stream}"], known, 5)).segments
    assert (segment.records, segment.size_bytes, segment.estimated) == (6, 66, True)


# External topics


def imported(harness, positions="offsets"):
    """Import a topic of three segments, the first one sealed, with two subscriptions; return all ids."""
    opaque = positions == "opaque"
    topic_id = harness.ledger.state.next_id
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
    given = {"position": 0, "end_offset": 0, "holes": 0, "drained": False, "seek_generation": 0, "size_bytes": None}
    return BacklogRow(
        shard=0,
        watermark=3,
        topic_id=topic_id,
        subscription_id=subscription_id,
        segment=segment,
        subscription_type="STREAM",
        sealed=False,
        **given | {"records": None} | fields,
    )


def reply_with(harness, *rows, **fields):
    def external_reply(query):
        return ExternalBacklogResponse(shard=query.shard, topic_id=query.topic_id, **{"rows": list(rows)} | fields)

    harness.spark.external_reply = external_reply


async def test_the_query_has_the_names_and_all_checkpoints(harness):
    topic_id, stream, checkpoint = imported(harness, "opaque")
    harness.ledger.state.subscriptions[stream].checkpoints = {1: e.Checkpoint("4959", 1, 1)}
    async with harness.open():
        await harness.describe()

    names = ExternalView(
        topic="orders",
        subscriptions={stream: f"s{stream}", checkpoint: f"s{checkpoint}"},
        labels={0: "a", 1: "b", 2: "c"},
        opaque=True,
        checkpoints={stream: {1: "4959"}},
    )
    assert harness.spark.external == [ExternalBacklogQuery(0, topic_id, names)]


async def test_counted_tables_are_reported_with_labels_and_the_time_of_the_count(harness):
    topic_id, stream, _ = imported(harness)
    rates = {"stored_per_second": 1.0, "acknowledged_per_second": 3.0}
    rows = [row(topic_id, stream, at, records=at + 4, size_bytes=at, oldest_ms=at, **rates) for at in range(3)]
    reply_with(harness, *rows, as_of_ms=400)
    async with harness.open():
        found, untracked = await harness.describe(topic="orders")

    assert [(part.label, part.records, part.size_bytes) for part in found.segments] == [
        ("a", 4, 0),
        ("b", 5, 1),
        ("c", 6, 2),
    ]
    assert (found.records, found.size_bytes, found.oldest_ms, found.drained_in_seconds) == (15, 3, 0, 2.5)
    assert (found.external, found.counted_by, found.as_of_ms, found.unknown_reason) == (True, "spark", 400, "")
    assert (untracked.outlook, untracked.unknown_reason) == ("not_tracked", "")


async def test_a_drained_segment_of_an_external_topic_is_empty_even_if_its_table_was_counted_before(harness):
    topic_id, stream, _ = imported(harness)
    reply_with(harness, *(row(topic_id, stream, at, records=500) for at in range(3)), as_of_ms=400)
    harness.ledger.state.subscriptions[stream].drained.add(0)
    async with harness.open():
        found, _ = await harness.describe(topic="orders")

    assert [part.records for part in found.segments] == [0, 500, 500]


async def test_the_ledgers_rows_of_an_external_topic_are_ignored(harness):
    """There an active segment ends at 0, so it would seem empty."""
    _, stream, _ = imported(harness)
    harness.spark.subscription, harness.spark.external_reply = stream, None
    async with harness.open():
        found, _ = await harness.describe(topic="orders")

    assert (found.records, found.counted_by, found.outlook) == (None, "leader", "unknown")


@pytest.mark.parametrize("positions", ["offsets", "opaque"])
async def test_the_leader_knows_only_segments_that_were_read_to_their_end(harness, positions):
    topic_id, stream, _ = imported(harness, positions)
    harness.ledger.acknowledge(topic_id, stream, (0, 0, 1 if positions == "opaque" else 9), (1, 0, 0))
    harness.spark.fails = True
    async with harness.open():
        found, _ = await harness.describe(topic="orders")

    assert [part.records for part in found.segments] == [0, None, None]
    assert (found.records, found.unknown_reason) == (None, "")


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


async def test_a_count_from_before_a_seek_is_not_used(harness):
    topic_id, stream, _ = imported(harness)
    reply_with(harness, *(row(topic_id, stream, at, records=4) for at in range(3)), as_of_ms=400)
    async with harness.open():
        assert (await harness.describe(topic="orders"))[0].records == 12
        harness.ledger.seek(topic_id, stream, {0: 0})
        found = (await harness.describe(topic="orders"))[0]

    assert (found.records, found.unknown_reason) == (None, OUTDATED)


async def test_a_segment_that_is_newer_than_the_count_makes_the_total_unknown(harness):
    topic_id, stream, _ = imported(harness)
    reply_with(harness, row(topic_id, stream, 0, records=4), row(topic_id, stream, 77, records=1), as_of_ms=400)
    async with harness.open():
        found = (await harness.describe(topic="orders"))[0]

    assert [(part.segment, part.records) for part in found.segments] == [(0, 4), (1, None), (2, None)]
    assert (found.records, found.unknown_reason) == (None, OUTDATED)


async def test_a_failing_table_is_logged_once_when_it_fails_and_once_when_it_recovers(harness):
    imported(harness)
    with capture_logs() as logged:
        async with harness.open():
            reply_with(harness, reason="rubbish", failing=True)
            for _ in range(3):
                await harness.describe()
            reply_with(harness, as_of_ms=400)
            for _ in range(3):
                await harness.describe()

    events_of_tables = [
        (line["event"], line["topic"]) for line in logged if line["event"].startswith("external_tables")
    ]
    assert events_of_tables == [("external_tables.failing", "orders"), ("external_tables.recovered", "orders")]
