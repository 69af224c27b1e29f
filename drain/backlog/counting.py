"""Aggregate chunks on a Spark session.

The rows are collected into this process: their number is bounded by segments, subscriptions and
ranges acknowledged out of order, which Spark joins. The previous result is added in drain.backlog.merge:
sending it to Spark and back took longer than counting a second's worth of chunks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from drain.backlog import plans as backlog
from drain.backlog.aggregates import merged_rows
from drain.backlog.merge import MergedRow
from drain.spark.engines import RunError, run_errors
from drain.spark.fact_source import FactSource


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """The new chunks of one shard, as their fact source names them."""

    shard: int
    paths: Sequence[str]
    rows: int | None = None
    """Number of rows according to the chunks' footers; None if it is not known before they are
    read."""


def aggregate_chunks(
    session: SparkSession, source: FactSource, batches: Sequence[ChunkBatch]
) -> Mapping[int, list[MergedRow]]:
    """Return the aggregates of new chunks by shard, from one Spark job. Blocks until it ends or is cancelled.

    Raises:
        RunError: the job failed or was cancelled; the text names the object if Spark does. Or not
            every row of the chunks was counted: the watermark would skip the missing rows
            permanently.
        JvmGoneError: the JVM is gone.
    """
    with run_errors():
        table = aggregation_plan(session, source, batches).toArrow()
    _check_all_counted(table, batches)
    return merged_rows(table)


def _check_all_counted(aggregates: pa.Table, batches: Sequence[ChunkBatch]) -> None:
    expected = [batch.rows for batch in batches if batch.rows is not None]
    if len(expected) < len(batches):
        return
    counted = pc.sum(aggregates.column("records")).as_py() or 0
    if counted != sum(expected):
        shards = ", ".join(str(batch.shard) for batch in batches)
        raise RunError(f"Spark counted {counted} of the {sum(expected)} rows of shard {shards}: the count is discarded")


def aggregation_plan(session: SparkSession, source: FactSource, batches: Sequence[ChunkBatch]) -> DataFrame:
    paths = [path for batch in batches for path in batch.paths]
    small = source.small_frame(session, paths)
    if small is not None:
        return backlog.aggregate_in_one_task(small)
    return backlog.aggregate_joined(backlog.contributions(source.frame(session, paths)))
