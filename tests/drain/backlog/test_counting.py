"""Aggregating real chunks on real Spark: both readers count every row, or the run fails."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from drain.backlog import counting
from drain.backlog.counting import aggregate_chunks
from drain.backlog.merge import next_result
from drain.spark.chunks import LedgerChunks, SmallReads
from drain.spark.engines import RunError
from drain.spark.fact_source import spark_frame
from tests.support.samples.ledgers import RandomLedger, WrittenLedger

pytestmark = pytest.mark.spark


def batch(ledger, first=1, **limits):
    chunks = LedgerChunks(ledger.url, SmallReads(**limits))
    return asyncio.run(chunks.read(0, range(first, ledger.state.chunk + 1)))


@pytest.mark.parametrize("seed", range(2))
def test_both_readers_give_the_same_rows(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    ledger.grow(30)

    few, many = (aggregate_chunks(spark, ledger.url, [batch(ledger, **limit)]) for limit in ({}, {"max_rows": 0}))

    assert any(item.row.above for item in many[0])
    assert [(0, next_result([], few[0]))] == [(shard, next_result([], rows)) for shard, rows in many.items()]


@pytest.mark.parametrize("empty_chunks", [0, 1, 3])
def test_an_empty_chunk_does_not_hide_later_ones(spark, tmp_path, empty_chunks):
    ledger = WrittenLedger(tmp_path)
    for _ in range(empty_chunks):
        ledger.barrier()
    topic_id = ledger.topic()
    ledger.commit()
    ledger.barrier()
    ledger.store(topic_id, 0, 5)
    ledger.commit()
    ledger.barrier()

    merged = aggregate_chunks(spark, ledger.url, [batch(ledger)])

    assert sum(item.row.records for item in merged[0]) == 5
    assert aggregate_chunks(spark, ledger.url, [batch(ledger, ledger.state.chunk)]) == {}


@pytest.mark.parametrize("pieces", [[0], [0, 2], [2, 0, 3], [1, 0, 0], [4]])
def test_a_concatenated_table_reaches_spark_completely(spark, pieces):
    schema = pa.schema([("n", pa.int64())])
    table = pa.concat_tables(pa.table({"n": range(rows)}, schema=schema) for rows in pieces)

    assert [row["n"] for row in spark_frame(spark, table).collect()] == table["n"].to_pylist()


def test_a_count_without_every_row_is_rejected(spark, tmp_path, monkeypatch):
    """The watermark would skip the missing rows permanently."""
    ledger = RandomLedger(tmp_path, seed=1)
    ledger.grow(5)
    found = batch(ledger)
    monkeypatch.setattr(counting, "spark_frame", lambda session, table: spark_frame(session, table).limit(2))

    with pytest.raises(RunError, match=f"counted 2 of the {len(found.facts)} rows of shard 0: the count is discarded"):
        aggregate_chunks(spark, ledger.url, [found])
