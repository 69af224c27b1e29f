"""Aggregate chunks on a Spark session.

The rows are collected into this process: their number is bounded by segments, subscriptions and
ranges acknowledged out of order, which Spark joins. The previous result is added in drain.backlog.merge:
sending it to Spark and back took longer than counting a second's worth of chunks.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from drain.backlog import plans as backlog
from drain.backlog.aggregates import merged_rows
from drain.backlog.merge import MergedRow
from drain.spark.chunks import ChunkBatch
from drain.spark.engines import RunError, run_errors
from drain.spark.fact_source import FACTS, spark_frame
from drain.spark.object_reader import object_frame


def aggregate_chunks(
    session: SparkSession, ledger_url: str, batches: Sequence[ChunkBatch]
) -> Mapping[int, list[MergedRow]]:
    """Return the aggregates of new chunks by shard, from one Spark job. Blocks until it ends or is cancelled.

    Raises:
        RunError: the job failed or was cancelled; the text names the object if Spark does. Or not
            every row that was sent was counted: the watermark would skip the missing rows
            permanently.
        JvmGoneError: the JVM is gone.
    """
    with run_errors():
        table = aggregation_plan(session, ledger_url, batches).toArrow()
    sent = [batch.facts for batch in batches if batch.facts is not None]
    counted, expected = pc.sum(table.column("records")).as_py() or 0, sum(map(len, sent))
    if len(sent) == len(batches) and counted != expected:
        shards = ", ".join(str(batch.shard) for batch in batches)
        raise RunError(f"Spark counted {counted} of the {expected} rows of shard {shards}: the count is discarded")
    return merged_rows(table)


def aggregation_plan(session: SparkSession, ledger_url: str, batches: Sequence[ChunkBatch]) -> DataFrame:
    """Return the plan: one task for the rows that were read here, or tasks that read all objects."""
    sent = [batch.facts for batch in batches if batch.facts is not None]
    if len(sent) == len(batches):
        return backlog.aggregate_in_one_task(spark_frame(session, pa.concat_tables(sent)))
    paths = [path for batch in batches for path in batch.paths]
    return backlog.aggregate_joined(
        backlog.contributions(object_frame(session, ledger_url, dict.fromkeys(paths), FACTS))
    )
