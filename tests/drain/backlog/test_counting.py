"""One merge over real chunks, on real Spark: whichever way it goes, it sees every row, or it fails."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.counting import ChunkBatch, RunError, aggregate_chunks
from drain.spark.fact_source import SparkFiles
from drain.spark.small_chunk_reader import SMALL_READ_MAX_ROWS
from drain.spark.spark_schemas import spark_frame, spark_schema
from tests.support.ledgers import RandomLedger, WrittenLedger

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", range(2))
def test_a_few_facts_come_to_what_many_come_to(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    ledger.grow(30)

    def counted(small_read_max_rows):
        source = SparkFiles(ledger.url, small_read_max_rows=small_read_max_rows)
        return aggregate_chunks(
            spark, source, [ChunkBatch(0, [source.path(0, number) for number in range(1, ledger.state.chunk + 1)])]
        )

    few, many = counted(SMALL_READ_MAX_ROWS), counted(0)

    assert any(item.row.above for item in many[0])
    assert (few.keys(), set(few[0]), len(few[0])) == (many.keys(), set(many[0]), len(many[0]))


@pytest.mark.parametrize("reach", [0, 1, 3])
def test_a_chunk_with_nothing_in_it_takes_nothing_from_those_after_it(spark, tmp_path, reach):
    ledger = WrittenLedger(tmp_path)
    for _ in range(reach):
        ledger.prove()
    topic_id = ledger.topic()
    ledger.commit()
    ledger.prove()
    ledger.store(topic_id, 0, 5)
    ledger.commit()
    ledger.prove()
    source = SparkFiles(ledger.url)

    merged = aggregate_chunks(
        spark, source, [ChunkBatch(0, [source.path(0, number) for number in range(1, ledger.state.chunk + 1)])]
    )

    assert sum(item.row.records for item in merged[0]) == 5
    assert aggregate_chunks(spark, source, [ChunkBatch(0, [source.path(0, ledger.state.chunk)], 0)]) == {}


@pytest.mark.parametrize("pieces", [[0], [0, 2], [2, 0, 3], [1, 0, 0], [4]])
def test_a_table_put_together_from_pieces_goes_over_whole(spark, pieces):
    schema = pa.schema([("n", pa.int64())])
    table = pa.concat_tables(pa.table({"n": range(rows)}, schema=schema) for rows in pieces)

    assert [row["n"] for row in spark_frame(spark, table, spark_schema(schema)).collect()] == table["n"].to_pylist()


@pytest.mark.parametrize("small_read_max_rows", [0, SMALL_READ_MAX_ROWS])
def test_a_count_that_did_not_see_every_row_is_refused(spark, tmp_path, small_read_max_rows):
    ledger = RandomLedger(tmp_path, seed=1)
    ledger.grow(5)
    source = SparkFiles(ledger.url, small_read_max_rows=small_read_max_rows)
    paths = [source.path(0, number) for number in range(1, ledger.state.chunk + 1)]
    rows = sum(pq.read_metadata(ledger.path(number)).num_rows for number in range(1, ledger.state.chunk + 1))

    assert aggregate_chunks(spark, source, [ChunkBatch(0, paths, rows)]) == aggregate_chunks(
        spark, source, [ChunkBatch(0, paths)]
    )
    with pytest.raises(RunError, match=f"counted {rows} of the {rows + 1} rows of shard 0"):
        aggregate_chunks(spark, source, [ChunkBatch(0, paths, rows + 1)])
