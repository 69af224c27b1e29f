"""Aggregating real chunks on real Spark: both readers count every row, or the run fails."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.counting import ChunkBatch, aggregate_chunks
from drain.backlog.merge import next_result
from drain.spark.engines import RunError
from drain.spark.fact_source import SMALL_READ_MAX_ROWS, SparkFiles, spark_frame
from tests.support.samples.ledgers import RandomLedger, WrittenLedger

pytestmark = pytest.mark.spark


def paths_of(ledger, source):
    return [source.path(0, number) for number in range(1, ledger.state.chunk + 1)]


@pytest.mark.parametrize("seed", range(2))
def test_both_readers_give_the_same_rows(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    ledger.grow(30)

    def counted(small_read_max_rows):
        source = SparkFiles(ledger.url, small_read_max_rows=small_read_max_rows)
        return aggregate_chunks(spark, source, [ChunkBatch(0, paths_of(ledger, source))])

    few, many = counted(SMALL_READ_MAX_ROWS), counted(0)

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
    source = SparkFiles(ledger.url)

    merged = aggregate_chunks(spark, source, [ChunkBatch(0, paths_of(ledger, source))])

    assert sum(item.row.records for item in merged[0]) == 5
    assert aggregate_chunks(spark, source, [ChunkBatch(0, [source.path(0, ledger.state.chunk)], 0)]) == {}


@pytest.mark.parametrize("pieces", [[0], [0, 2], [2, 0, 3], [1, 0, 0], [4]])
def test_a_concatenated_table_reaches_spark_completely(spark, pieces):
    schema = pa.schema([("n", pa.int64())])
    table = pa.concat_tables(pa.table({"n": range(rows)}, schema=schema) for rows in pieces)

    assert [row["n"] for row in spark_frame(spark, table).collect()] == table["n"].to_pylist()


@pytest.mark.parametrize("small_read_max_rows", [0, SMALL_READ_MAX_ROWS])
def test_a_count_without_every_row_is_rejected(spark, tmp_path, small_read_max_rows):
    ledger = RandomLedger(tmp_path, seed=1)
    ledger.grow(5)
    source = SparkFiles(ledger.url, small_read_max_rows=small_read_max_rows)
    paths = paths_of(ledger, source)
    rows = sum(pq.read_metadata(ledger.path(number)).num_rows for number in range(1, ledger.state.chunk + 1))

    assert aggregate_chunks(spark, source, [ChunkBatch(0, paths, rows)]) == aggregate_chunks(
        spark, source, [ChunkBatch(0, paths)]
    )
    with pytest.raises(RunError, match=f"counted {rows} of the {rows + 1} rows of shard 0"):
        aggregate_chunks(spark, source, [ChunkBatch(0, paths, rows + 1)])
