"""The plans on real Spark. Whole results are compared."""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from operator import attrgetter

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from drain.backlog.aggregates import AGGREGATES, NO_FACT, SCHEMA, merged_rows
from drain.backlog.counting import aggregate_chunks, aggregation_plan
from drain.backlog.job import BacklogJob, count_on
from drain.backlog.merge import MergedRow, StateRow, merge_rows, outstanding
from drain.backlog.plans import (
    aggregate_in_one_task,
    aggregate_joined,
    contributions,
    contributions_again,
)
from drain.backlog.timestamp_index import index_slot
from drain.spark.chunks import ChunkBatch, LedgerChunks, SmallReads
from drain.spark.engines import RunError
from drain.spark.fact_source import FACTS
from drain.spark.object_reader import ReadLimits
from headgate.errors import HeadgateError
from tests.support.fakes.fact_counter import FactCounter
from tests.support.samples.ledgers import RandomLedger, WrittenLedger, counted_by_hand

pytestmark = pytest.mark.spark


def fact(kind, **columns):
    return {"shard": 0, "topic_id": 1} | columns | {"fact": kind}


def acknowledged(first, end, generation=0):
    return fact("acknowledged", subscription_id=2, segment=3, offset=first, end_offset=end, seek_generation=generation)


def facts(spark, *rows):
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=FACTS), from_arrow_schema(FACTS))


def merged(aggregates):
    """Return the rows of shard 0 in the frame ``aggregates``, sorted."""
    by_shard = merged_rows(aggregates.toArrow())
    assert by_shard.keys() <= {0}
    return in_order(by_shard.get(0, []))


def in_order(rows):
    return sorted(rows, key=repr)


def of_segment(segment, **columns):
    return StateRow(1, None, segment, **columns)


def of_subscription(**columns):
    return StateRow(1, 2, 3, **columns)


def counted(*rows):
    """Return ``rows`` as input of a merge, without flags."""
    return in_order([MergedRow(row) for row in rows])


@pytest.mark.parametrize(
    "plan", [aggregate_in_one_task, lambda frame: aggregate_joined(contributions(frame))], ids=["summed", "joined"]
)
def test_records_are_counted_per_segment_and_index_slot_with_the_last_timestamp(spark, plan):
    """Offsets 1, 5 and 9 share a slot. Their timestamps need not rise with them."""
    frame = facts(
        spark,
        *(
            fact("record", segment=0, offset=offset, size_bytes=size, timestamp_ms=ms)
            for offset, size, ms in ((0, 5, 100), (1, 7, 101), (9, 1, 150), (5, 2, 160))
        ),
        fact("record", segment=1, offset=0, size_bytes=1, timestamp_ms=7),
    )

    assert merged(plan(frame)) == counted(
        of_segment(0, records=1, size_bytes=5, end_offset=1, timestamp_index=((0, 100),)),
        of_segment(0, records=3, size_bytes=10, end_offset=10, timestamp_index=((9, 150),)),
        of_segment(1, records=1, size_bytes=1, end_offset=1, timestamp_index=((0, 7),)),
    )


def test_spark_and_python_compute_the_same_index_slot(spark):
    offsets = [0, 1, 2, 3, 4, 6, 12, 1023, 1024, 3 * 2**40, 2**62, 2**62 + 2**61, 2**63 - 2]
    frame = facts(spark, *(fact("record", segment=at, offset=offset) for at, offset in enumerate(offsets)))

    found = {row["segment"]: row["kind"] for row in contributions(frame).collect()}

    assert dict(enumerate(map(index_slot, offsets))) == found


def test_rows_without_a_fact_are_ignored(spark):
    """They hold an entry's body.

    An unknown fact without an offset, of a later version, is ignored as well.
    """
    frame = facts(
        spark,
        {"shard": 0, "fact": None},
        {"shard": 0, "topic_id": 1, "segment": 0, "size_bytes": 9, "fact": None},
        fact("renamed", segment=0),
    )

    assert merged(aggregate_in_one_task(frame)) == merged(aggregate_joined(contributions(frame))) == []
    assert {row["kind"] for row in aggregate_in_one_task(frame).collect()} == {NO_FACT}


def covered(rows):
    """Return {bucket: offsets} for rows of one generation."""
    found = defaultdict(set)
    for row in rows:
        found[row.bucket].update(*(range(first, end) for first, end in ((0, row.position), *row.above)))
    return found


def without_empty(items):
    """Return ``items`` without empty ranges and positions of 0, which consist of a key alone."""
    return [item for item in items if item != MergedRow(key_of(item.row))]


def key_of(row):
    return StateRow(row.topic_id, row.subscription_id, row.segment, row.seek_generation, row.bucket)


def random_facts(seed):
    """Return facts of two subscriptions in two segments, with many equal or adjacent ranges."""
    rng = random.Random(seed)

    def random_key():
        return {
            "subscription_id": rng.choice((2, 3)),
            "segment": rng.choice((0, 1)),
            "seek_generation": rng.choice((0, 0, 1)),
        }

    rows = [
        fact(
            "acknowledged", **random_key(), bucket=rng.choice((None, None, 5)), offset=first, end_offset=first + length
        )
        for first, length in ((rng.choice((0, rng.randrange(60))), rng.randrange(5)) for _ in range(150))
    ]
    rows += [fact("position", **random_key(), offset=rng.randrange(20)) for _ in range(3)]
    rows += [fact("record", segment=rng.choice((0, 1)), offset=n, size_bytes=n, timestamp_ms=n) for n in range(70)]
    rows += [fact("created", segment=0), fact("created", segment=1), fact("sealed", segment=1, end_offset=70)]
    rows += [fact("subscribed", subscription_id=n, subscription_type="QUEUE") for n in (2, 3)]
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_every_plan_equals_counting_offset_by_offset(spark, seed):
    rows = random_facts(seed)
    frame = facts(spark, *rows).repartition(3)
    again = spark.createDataFrame(aggregate_joined(contributions(frame)).toArrow(), from_arrow_schema(SCHEMA))

    plans = [
        aggregate_in_one_task(frame),
        aggregate_joined(contributions(frame)),
        aggregate_joined(contributions_again(again)),
    ]
    found = [merged(plan) for plan in plans]

    expected = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row["fact"] in {"acknowledged", "position"}:
            first, end = (0, row["offset"]) if row["fact"] == "position" else (row["offset"], row["end_offset"])
            key = (row["subscription_id"], row["segment"], row["seek_generation"])
            expected[key][row.get("bucket")].update(range(first, end))
    for items in found:
        assert merge_rows(items) == merge_rows(found[0])
        by_key = defaultdict(list)
        for item in items:
            if item.row.subscription_id is not None and item.row.segment is not None:
                by_key[item.row.subscription_id, item.row.segment, item.row.seek_generation].append(item.row)
        assert {key: covered(rows) for key, rows in by_key.items()} == expected
    assert without_empty(found[1]) == without_empty(found[2])
    assert len(found[1]) < len(found[0])


@pytest.mark.parametrize("seed", range(6))
def test_the_counter_of_the_simulator_agrees_with_the_plan(spark, seed):
    """The simulator has no Spark: it counts facts one after the other (tests.support.fakes.fact_counter)."""
    rows = [
        *random_facts(seed),
        fact("pruned", segment=1),
        fact("unsubscribed", subscription_id=3),
        fact("subscribed", subscription_id=4, subscription_type=""),
        fact("topic_deleted", topic_id=9),
        fact("renamed", segment=0),
        {"shard": 0, "fact": None},
        {"shard": 5, "fact": "record", "topic_id": 1, "segment": 0, "offset": 3, "size_bytes": 9, "timestamp_ms": 8},
    ]
    random.Random(seed).shuffle(rows)
    counter = FactCounter()
    counter.add(rows)

    planned = aggregate_in_one_task(facts(spark, *rows)).toArrow().select(list(AGGREGATES))
    assert in_order(counter.take().to_pylist()) == in_order(planned.to_pylist())
    assert counter.take().num_rows == 0


def test_creations_and_removals_are_flagged(spark):
    frame = facts(
        spark,
        fact("created", segment=0),
        fact("sealed", segment=0, end_offset=6),
        fact("pruned", segment=1),
        fact("subscribed", subscription_id=2, subscription_type="QUEUE"),
        fact("subscribed", subscription_id=3, subscription_type=""),
        fact("unsubscribed", subscription_id=4),
        fact("topic_deleted", topic_id=9),
    )

    expected = in_order(
        [
            MergedRow(of_segment(0), present=True),
            MergedRow(of_segment(0, sealed_end_offset=6)),
            MergedRow(of_segment(1), removed=True),
            MergedRow(StateRow(1, 2, None, subscription_type="QUEUE"), present=True),
            MergedRow(StateRow(1, 3, None, subscription_type=""), present=True),
            MergedRow(StateRow(1, 4, None), removed=True),
            MergedRow(StateRow(9, None, None), removed=True),
        ]
    )
    assert merged(aggregate_in_one_task(frame)) == merged(aggregate_joined(contributions(frame))) == expected


def test_an_unsupported_subscription_type_fails_the_run_with_its_name(spark):
    frame = facts(spark, fact("subscribed", subscription_id=2, subscription_type="SHARED"))
    with pytest.raises(RunError, match="does not know the subscription type SHARED"):
        aggregate_chunks(spark, "", [ChunkBatch(0, [], 0, frame.toArrow())])
    assert issubclass(RunError, HeadgateError)


@pytest.fixture
def tasks_of_one_object(monkeypatch):
    monkeypatch.setattr("drain.spark.object_reader.DEFAULT_LIMITS", ReadLimits(objects_per_task=1))


def execution_over_two_chunks(spark, tmp_path, **limits):
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic()
    for _ in range(2):
        ledger.store(topic, 0, 3)
        ledger.commit()
    batch = asyncio.run(LedgerChunks(ledger.url, SmallReads(**limits)).read(0, range(1, 3)))
    return aggregation_plan(spark, ledger.url, [batch])._jdf.queryExecution()


def test_facts_are_aggregated_in_one_loop_with_a_hash_table(spark, tmp_path, tasks_of_one_object):
    """A null in the key or an aggregate of another type makes Spark fall back to a slower loop with the same result."""
    execution = execution_over_two_chunks(spark, tmp_path, max_rows=0)

    stages = execution.debug().codegenToSeq()
    codes = [re.sub(r"/\*.*?\*/", "", stages.apply(index)._2()) for index in range(stages.size())]
    scanning = next(code for code in codes if "FastHashMap" in code)

    assert not re.findall(r"\b(ObjectHashAggregate|SortAggregate)\b", execution.executedPlan().toString())
    # Of the seven columns of the key, only the shard's is checked for null.
    found = re.search(r"if \(([^;{]*)\) \{\s*\w+ = \w+FastHashMap\w*\.findOrInsert", scanning, re.IGNORECASE)
    assert found is not None
    assert found.group(1).count("&&") == 6
    assert found.group(1).count("!hashAgg_exprIsNull") <= 2


def test_a_run_shuffles_the_facts_and_the_aggregates(spark, tmp_path, tasks_of_one_object):
    plan = execution_over_two_chunks(spark, tmp_path, max_rows=0).executedPlan().toString()

    assert len(re.findall(r"\bExchange\b", plan)) == 2


def test_a_run_over_small_chunks_has_no_worker_and_no_shuffle(spark, tmp_path):
    plan = execution_over_two_chunks(spark, tmp_path).executedPlan().toString()

    assert "LocalTableScan" in plan
    assert not re.findall(r"\b(Exchange|MapInArrow)\b", plan)


def test_without_a_shuffle_ranges_are_not_joined(spark):
    frame = facts(spark, acknowledged(3, 5), acknowledged(0, 3), acknowledged(4, 9), acknowledged(6, 6))

    assert merged(aggregate_in_one_task(frame)) == counted(
        of_subscription(position=3),
        of_subscription(above=((3, 5),)),
        of_subscription(above=((4, 9),)),
        of_subscription(),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_incremental_counts_a_full_count_and_the_state_agree(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    chunks = LedgerChunks(ledger.url)
    job = BacklogJob(chunks, count_on(spark, chunks))
    for size in (1, 9, 25):
        ledger.grow(size)
        outcome = await job.run([0])

        assert outcome.failures == {}
        fields = attrgetter(
            "topic_id", "subscription_id", "segment", "seek_generation", "records", "sealed", "oldest_ms"
        )
        assert counted_by_hand(ledger.state) == set(map(fields, outstanding(outcome.results[0].rows)))
    scanned = LedgerChunks(ledger.url, SmallReads(max_rows=0))
    full = await BacklogJob(scanned, count_on(spark, scanned), max_chunks_per_job=16).run([0], full=True)

    assert outcome.results == full.results
    assert outcome.results[0].at_ms == ledger.state.chunk * 1000
