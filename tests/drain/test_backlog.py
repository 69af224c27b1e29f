"""What new facts and a previous result come to, on real Spark; whole frames are compared."""

from __future__ import annotations

import asyncio
import re

import pyarrow as pa
import pytest
from pyspark.testing import assertDataFrameEqual

from drain.backlog import carried, contributions, merged
from drain.chunks import LedgerChunks
from drain.counting import Step, merge, merged_frame
from drain.job import BacklogJob
from drain.results import Result, state_table
from drain.schemas import FACTS, MERGED, STATE, spark_schema
from drain.settlement import StateRow, outstanding
from tests.drain.ledgers import RandomLedger, WrittenLedger, counted_by_hand

pytestmark = pytest.mark.spark

DEFAULTS = {
    "shard": 0,
    "topic_id": 1,
    "subscription_id": None,
    "segment": None,
    "seek_generation": 0,
    "subscription_type": None,
    "records": 0,
    "size_bytes": 0,
    "end_offset": 0,
    "sealed_end_offset": None,
    "position": 0,
    "above": [],
    "reset": False,
    "removed": False,
    "present": False,
    "carried": False,
}


def fact(kind, **columns):
    return {"shard": 0, "topic_id": 1} | columns | {"fact": kind}


def acknowledged(first, end, generation=0):
    return fact("acknowledged", subscription_id=2, segment=3, offset=first, end_offset=end, seek_generation=generation)


def facts(spark, *rows):
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=FACTS), spark_schema(FACTS))


def state(spark, *rows):
    return spark.createDataFrame(state_table(0, rows), spark_schema(STATE))


def expected(spark, *rows):
    table = pa.Table.from_pylist([DEFAULTS | row for row in rows], schema=MERGED)
    return spark.createDataFrame(table, spark_schema(MERGED))


def ranges(*parts):
    return [{"first_offset": first, "end_offset": end} for first, end in parts]


def test_records_are_counted_per_segment(spark):
    frame = facts(
        spark,
        fact("record", segment=0, offset=0, size_bytes=5),
        fact("record", segment=0, offset=1, size_bytes=7),
        fact("record", segment=1, offset=0, size_bytes=1),
    )

    wanted = expected(
        spark,
        {"segment": 0, "records": 2, "size_bytes": 12, "end_offset": 2},
        {"segment": 1, "records": 1, "size_bytes": 1, "end_offset": 1},
    )
    assertDataFrameEqual(merged(contributions(frame)), wanted)


def test_rows_without_a_fact_are_not_looked_at(spark):
    """They hold an entry's body."""
    frame = facts(spark, {"shard": 0, "topic_id": 1, "segment": 0, "size_bytes": 9, "fact": None})

    assertDataFrameEqual(merged(contributions(frame)), expected(spark))


def test_cumulative_acknowledgements_come_to_the_highest(spark):
    frame = facts(spark, acknowledged(0, 7), acknowledged(0, 9), acknowledged(0, 8))

    wanted = expected(spark, {"subscription_id": 2, "segment": 3, "position": 9})
    assertDataFrameEqual(merged(contributions(frame)), wanted)


@pytest.mark.parametrize(
    ("given", "position", "above"),
    [
        pytest.param([(5, 7)], 0, [(5, 7)], id="a hole at the start"),
        pytest.param([(5, 7), (0, 5)], 7, [], id="a hole that was filled"),
        pytest.param([(5, 7), (8, 9), (7, 8)], 0, [(5, 9)], id="ranges that touch"),
        pytest.param([(2, 9), (3, 4), (12, 13)], 0, [(2, 9), (12, 13)], id="a range within another"),
        pytest.param([(0, 2), (4, 6), (4, 6), (8, 9), (1, 3)], 3, [(4, 6), (8, 9)], id="the same one twice"),
        pytest.param([(4, 4)], 0, [], id="an empty range"),
    ],
)
def test_ranges_are_joined_and_move_the_position(spark, given, position, above):
    frame = facts(spark, *(acknowledged(first, end) for first, end in given))

    wanted = expected(spark, {"subscription_id": 2, "segment": 3, "position": position, "above": ranges(*above)})
    assertDataFrameEqual(merged(contributions(frame)), wanted)


def test_generations_are_kept_apart_until_they_are_settled(spark):
    frame = facts(
        spark,
        acknowledged(0, 9),
        fact("position", subscription_id=2, segment=3, offset=4, seek_generation=1),
        acknowledged(0, 5, generation=1),
    )

    wanted = expected(
        spark,
        {"subscription_id": 2, "segment": 3, "position": 9},
        {"subscription_id": 2, "segment": 3, "position": 5, "seek_generation": 1, "reset": True},
    )
    assertDataFrameEqual(merged(contributions(frame)), wanted)


def test_what_comes_and_goes_is_told(spark):
    frame = facts(
        spark,
        fact("created", segment=0),
        fact("sealed", segment=0, end_offset=6),
        fact("pruned", segment=1),
        fact("subscribed", subscription_id=2, subscription_type="QUEUE"),
        fact("unsubscribed", subscription_id=4),
        fact("topic_deleted", topic_id=9),
    )

    wanted = expected(
        spark,
        {"segment": 0, "present": True, "sealed_end_offset": 6},
        {"segment": 1, "removed": True},
        {"subscription_id": 2, "subscription_type": "QUEUE", "present": True},
        {"subscription_id": 4, "removed": True},
        {"topic_id": 9, "removed": True},
    )
    assertDataFrameEqual(merged(contributions(frame)), wanted)


def test_the_previous_result_is_added_to(spark):
    previous = state(
        spark,
        StateRow(1, None, 3, records=4, size_bytes=40, end_offset=4),
        StateRow(1, 2, None, subscription_type="QUEUE"),
        StateRow(1, 2, 3, position=1, above=((2, 3),)),
    )
    new = facts(
        spark,
        fact("record", segment=3, offset=4, size_bytes=10),
        fact("subscribed", subscription_id=2, subscription_type=""),
        acknowledged(1, 2),
        acknowledged(4, 5),
    )

    known = {"present": True, "carried": True}
    wanted = expected(
        spark,
        known | {"segment": 3, "records": 5, "size_bytes": 50, "end_offset": 5},
        known | {"subscription_id": 2, "subscription_type": "QUEUE"},
        known | {"subscription_id": 2, "segment": 3, "position": 3, "above": ranges((4, 5))},
    )
    assertDataFrameEqual(merged(contributions(new), carried(previous)), wanted)


def test_the_merge_has_the_columns_that_are_settled(spark):
    frame = merged(contributions(facts(spark)))

    wanted = [(field.name, field.dataType.simpleString()) for field in spark_schema(MERGED)]
    assert wanted == [(field.name, field.dataType.simpleString()) for field in frame.schema]


def test_a_run_has_one_shuffle_and_reads_no_payload(spark, tmp_path):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    ledger.store(topic, 0, 3)
    ledger.commit()
    chunks = LedgerChunks(ledger.url)
    step = Step(Result(0, 0, (StateRow(1, None, 0),)), [chunks.spark_path(0, 1)])

    plan = merged_frame(spark, chunks.spark_base, [step])._jdf.queryExecution().executedPlan().toString()

    assert len(re.findall(r"\bExchange\b", plan)) == 1
    read = re.search(r"ReadSchema: struct<([^>]*)", plan)
    assert read is not None
    columns = {part.split(":")[0] for part in read.group(1).split(",")}
    assert {"fact", "topic_id", "segment", "offset"} <= columns
    assert not columns & {"key", "value", "body", "timestamp_ms"}


async def count_with(spark, chunks, steps):
    return await asyncio.to_thread(merge, spark, chunks.spark_base, steps)


@pytest.mark.parametrize("seed", range(3))
async def test_increments_a_full_count_and_counting_by_hand_agree(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    chunks = LedgerChunks(ledger.url)
    job = BacklogJob(chunks, lambda steps: count_with(spark, chunks, steps))
    for size in (1, 9, 25):
        ledger.grow(size)
        outcome = await job.run([0])

        assert outcome.failures == {}
        rows = outstanding(outcome.results[0].rows)
        counted = {
            (row.topic_id, row.subscription_id, row.segment, row.seek_generation, row.records, row.sealed)
            for row in rows
        }
        assert counted_by_hand(ledger.state) == counted
    full = await BacklogJob(chunks, lambda steps: count_with(spark, chunks, steps), step_chunks=16).run([0], full=True)

    assert outcome.results == full.results
