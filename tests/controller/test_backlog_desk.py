"""Whoever asks for backlogs is answered in time: by Spark if it answers, by the leader's own count if not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from controller.backlog_count import by_leader
from controller.backlog_desk import STALE_SECONDS, WAIT_SECONDS, WAITING_LIMIT, BacklogDesk
from drain.protocol import BacklogRow, BacklogTold, DrainCheckError
from headgate import messages as m
from headgate.backlog import SegmentBacklog
from tests.drain.ledgers import WrittenLedger

pytestmark = pytest.mark.looptime


class Spark:
    """Says what it is told to, after a while, or that it cannot."""

    def __init__(self, subscription):
        self.subscription = subscription
        self.takes_seconds = 0.1
        self.fails = False
        self.records = 7
        self.asked = 0

    async def __call__(self, shard, now_ms):
        self.asked += 1
        records = self.records
        await asyncio.sleep(self.takes_seconds)
        if self.fails:
            raise DrainCheckError("away", "unreachable")
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
        return BacklogTold(id=1, rows=[row], failures={}, watermarks={shard: 3}, as_of_ms={shard: now_ms})


class Gauges:
    def __init__(self):
        self.counted = []

    def backlog_counted(self, shard, backlogs, now_ms):
        self.counted.append([each.records for each in backlogs])


class Desk:
    def __init__(self, folder):
        ledger = WrittenLedger(folder)
        self.topic = ledger.topic()
        self.spark = Spark(ledger.subscribe(self.topic, "STREAM"))
        ledger.store(self.topic, 0, 10)
        ledger.acknowledge(self.topic, self.spark.subscription, (0, 0, 4))
        ledger.commit()
        self.state = ledger.state
        self.gauges = Gauges()
        self.desk = BacklogDesk(
            state=self.state, source=self.spark, observer=self.gauges, now_ms=lambda: 1000, every_seconds=15.0
        )

    @asynccontextmanager
    async def open(self):
        task = asyncio.get_running_loop().create_task(self.desk.run())
        await asyncio.sleep(0)
        yield self
        task.cancel()
        await asyncio.wait({task})

    async def ask(self, **fields):
        answer = asyncio.get_running_loop().create_future()
        request = m.DescribeBacklog(request_id=5, client_id="c", **fields)
        self.desk.answer_later(request, answer.set_result)
        return (await answer).backlogs


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


async def test_spark_counts_and_the_totals_and_the_outlook_follow(desk):
    async with desk.open():
        (found,) = await desk.ask()

    assert (found.counted_by, found.records, found.oldest_ms, found.as_of_ms) == ("spark", 7, 900, 1000)
    assert (found.outlook, found.drained_in_seconds) == ("shrinking", 7.0)


async def test_without_spark_the_leader_counts_and_says_so(desk):
    desk.spark.fails = True
    async with desk.open():
        (found,) = await desk.ask()

    assert (found.counted_by, found.records, found.outlook) == ("leader", 6, "unknown")
    assert (found.oldest_ms, found.stored_per_second) == (None, None)


async def test_a_spark_that_hangs_delays_no_answer_beyond_the_limit(desk):
    desk.spark.takes_seconds = 3600
    async with desk.open():
        began = asyncio.get_running_loop().time()
        (found,) = await desk.ask()

        assert found.counted_by == "leader"
        assert asyncio.get_running_loop().time() - began == pytest.approx(WAIT_SECONDS)


async def test_what_spark_said_last_is_told_until_it_is_stale(desk):
    async with desk.open():
        await desk.ask()
        desk.spark.fails = True
        assert (await desk.ask())[0].counted_by == "spark"
        await asyncio.sleep(STALE_SECONDS + 1)

        assert (await desk.ask())[0].counted_by == "leader"


async def test_however_many_ask_one_question_is_under_way(desk):
    async with desk.open():
        answers = await asyncio.gather(*(desk.ask() for _ in range(50)))

    assert {each[0].records for each in answers} == {7}
    assert desk.spark.asked == 1


async def test_beyond_the_limit_answers_are_given_at_once(desk):
    desk.spark.takes_seconds = 3600
    async with desk.open():
        waiting = [asyncio.ensure_future(desk.ask()) for _ in range(WAITING_LIMIT)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await desk.ask()

        assert asyncio.get_running_loop().time() == began
        await asyncio.gather(*waiting)


async def test_only_what_was_asked_for_is_told(desk):
    async with desk.open():
        assert len(await desk.ask(topic="t1")) == 1
        assert await desk.ask(topic="other") == []
        assert await desk.ask(topic="t1", subscription="other") == []


async def test_metrics_are_told_again_and_again_whether_spark_answers_or_not(desk):
    async with desk.open():
        await asyncio.sleep(1)
        desk.spark.takes_seconds = 3600
        await asyncio.sleep(100)

    assert desk.gauges.counted[0] == [7]
    assert len(desk.gauges.counted) >= 4
    assert desk.gauges.counted[-1] == [6]


async def test_a_bug_while_asking_ends_the_reign(desk):
    async def broken(shard, now_ms):
        raise ZeroDivisionError

    desk.desk._source = broken
    with pytest.raises(ZeroDivisionError):
        await desk.desk.run()


def test_the_leader_counts_holes_and_does_not_track_checkpoints(tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic(2)
    queue, checkpoint = ledger.subscribe(topic, "QUEUE"), ledger.subscribe(topic, "CHECKPOINT")
    ledger.store(topic, 0, 10)
    ledger.acknowledge(topic, queue, (0, 2, 4), (0, 0, 1), (0, 9, 10))
    ledger.commit()
    known = ledger.state.topics_by_id[topic]
    by_name = {name: by_leader(each, known, 5) for name, each in known.subscriptions.items()}

    assert by_name[f"s{queue}"].segments == [
        SegmentBacklog(segment=0, sealed=False, records=6, size_bytes=66),
        SegmentBacklog(segment=1, sealed=False, records=0, size_bytes=0),
    ]
    assert (by_name[f"s{checkpoint}"].records, by_name[f"s{checkpoint}"].outlook) == (None, "not_tracked")
