"""Run one merge on a Spark session: the adapter between values and drain.backlog.plans's plans.

What comes back is some rows per segment, subscription and pair of them, and one for each stretch acknowledged out of
order. So it is collected into this process: it is bounded by segments, subscriptions and holes, not by the ledger, and
one small object that is created with put-if-absent cannot be written by many tasks. Up to MAX_ROWS_PER_TASK, ranges
come back as they were acknowledged, and are joined where they are settled: Spark takes a second shuffle to join them.
The previous result is added here as well (drain.backlog.merge): to hand it to Spark and take it back took longer than
to count a second's worth of chunks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from drain.backlog import plans as backlog
from drain.backlog.merge import MergedRow
from drain.backlog.sums import merged_rows
from drain.spark.engines import ENGINE_ERRORS, is_gone
from drain.spark.fact_source import FactSource
from headgate.errors import HeadgateError

MAX_ROWS_PER_TASK: Final = 50_000
"""Rows that each of the two tasks behind the shuffle may hand over before ranges are joined there. To make so many
values takes half a second in all."""

_FILE = re.compile(r"[a-z0-9]+:/\S+?\.parquet")
_OBJECT_ERROR = re.compile(r"ObjectError: (.+)")
"""What drain.spark.object_data_source said, in the middle of two stack traces."""


class RunError(HeadgateError):
    """Spark could not carry a run out; the previous result stays."""


class JvmGoneError(RunError):
    """The JVM, ours or a Connect server's, does not answer. Nothing in this process brings a session back: it ends."""


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """One shard's part of a run: the new chunks as their source names them."""

    shard: int
    paths: Sequence[str]
    rows: int | None = None
    """How many rows the chunks say that they have; None where that is not known before they are read."""


def aggregate_chunks(
    session: SparkSession, source: FactSource, batches: Sequence[ChunkBatch]
) -> Mapping[int, list[MergedRow]]:
    """Return what the new chunks come to, by shard, in one Spark job. It blocks until that is done or cancelled.

    Raises:
        RunError: the job failed or was cancelled; the text names the object where Spark does. Or not every row of
            the chunks was counted: fewer look like a smaller ledger, and nobody would count them again.
        JvmGoneError: the JVM is gone.

    """
    try:
        table = _collect(*_plan(session, source, batches), MAX_ROWS_PER_TASK)
    except ENGINE_ERRORS as error:
        if is_gone(error):
            raise JvmGoneError(f"Spark does not answer: {str(error) or type(error).__name__}") from error
        raise RunError(error_summary(error)) from error
    _check_all_counted(table, batches)
    return merged_rows(table)


def _check_all_counted(aggregates: pa.Table, batches: Sequence[ChunkBatch]) -> None:
    wanted = [batch.rows for batch in batches if batch.rows is not None]
    if len(wanted) < len(batches):
        return
    counted = pc.sum(aggregates.column("records")).as_py() or 0
    if counted != sum(wanted):
        shards = ", ".join(str(batch.shard) for batch in batches)
        raise RunError(f"Spark counted {counted} of the {sum(wanted)} rows of shard {shards}: that is no count")


def aggregation_plan(session: SparkSession, source: FactSource, batches: Sequence[ChunkBatch]) -> DataFrame:
    """Return the plan with which `aggregate_chunks` begins."""
    return _plan(session, source, batches)[0]


def aggregate_contributions(contributions: DataFrame, limit: int = MAX_ROWS_PER_TASK) -> pa.Table:
    """Return the sums of contributions; ranges are joined only if there are more than ``limit`` a task."""
    return _collect(backlog.aggregate_limited(limit, contributions), contributions, limit)


def _plan(
    session: SparkSession, source: FactSource, batches: Sequence[ChunkBatch]
) -> tuple[DataFrame, DataFrame | None]:
    """Return the plan of the sums, and the contributions if they may turn out to be too many to hand over."""
    paths = [path for batch in batches for path in batch.paths]
    small = source.small_frame(session, paths)
    if small is not None:
        return backlog.aggregate_in_one_task(small), None
    contributions = backlog.contributions(source.frame(session, paths))
    return backlog.aggregate_limited(MAX_ROWS_PER_TASK, contributions), contributions


def _collect(aggregates: DataFrame, contributions: DataFrame | None, limit: int) -> pa.Table:
    table = aggregates.toArrow()
    if contributions is None or (pc.max(table.column(backlog.ROW_NUMBER)).as_py() or 0) < limit:
        return table
    return backlog.aggregate_joined(contributions).toArrow()


def error_summary(error: Exception) -> str:
    """Return one line of what Spark says, with the object it was about: its own text is a page of stack traces."""
    text = str(error)
    if found := _OBJECT_ERROR.search(text):
        return f"Spark could not count: {found.group(1)[:500]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    line = (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:500]
    file = _FILE.search(text)
    return f"Spark could not count: {line}" + (f" ({file.group(0)})" if file and file.group(0) not in line else "")
