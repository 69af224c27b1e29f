"""Run one merge on a Spark session: the adapter between values and drain.backlog's plans.

What comes back is one row per segment, subscription and pair of them, so it is collected into this process: it is
bounded by segments times subscriptions, not by the ledger, and one small object that is created with put-if-absent
cannot be written by many tasks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from drain import backlog
from drain.results import Result, state_row, state_table
from drain.schemas import FACTS, MERGED, STATE, spark_schema
from drain.settlement import MergedRow
from headgate.errors import HeadgateError

_FILE = re.compile(r"[a-z0-9]+:/\S+?\.parquet")


class RunError(HeadgateError):
    """Spark could not carry a run out; the previous result stays."""


class JvmGoneError(RunError):
    """The JVM does not answer. Nothing in this process can bring it back: the process has to end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One shard's part of a run: its previous result, and the new chunks as Spark is to read them."""

    previous: Result
    paths: Sequence[str]


def merge(session: SparkSession, base: str, steps: Sequence[Step]) -> Mapping[int, list[MergedRow]]:
    """Return the merged rows by shard, in one Spark job. It blocks until the job is done or cancelled.

    Raises:
        RunError: the job failed or was cancelled; the text names the object where Spark does.
        JvmGoneError: the JVM is gone.

    """
    try:
        table = merged_frame(session, base, steps).toArrow()
    except (Py4JNetworkError, ConnectionError, EOFError) as error:
        raise JvmGoneError(f"the JVM does not answer: {error or type(error).__name__}") from error
    except (PySparkException, Py4JJavaError) as error:
        raise RunError(_reason(error)) from error
    assert MERGED.names == table.schema.names, f"a merge has the columns {table.schema.names}"
    merged: dict[int, list[MergedRow]] = defaultdict(list)
    for row in table.to_pylist():
        merged[row["shard"]].append(_merged_row(row))
    return merged


def merged_frame(session: SparkSession, base: str, steps: Sequence[Step]) -> DataFrame:
    """Return the plan of `merge`."""
    paths = [path for step in steps for path in step.paths]
    facts = session.read.schema(spark_schema(FACTS)).option("basePath", base).parquet(*paths)
    parts = [backlog.contributions(facts)]
    states = [state_table(step.previous.shard, step.previous.rows) for step in steps if step.previous.rows]
    if states:
        parts.append(backlog.carried(session.createDataFrame(pa.concat_tables(states), spark_schema(STATE))))
    return backlog.merged(*parts)


def _merged_row(row: dict[str, Any]) -> MergedRow:
    return MergedRow(state_row(row), row["reset"], row["removed"], row["present"], row["carried"])


def _reason(error: Exception) -> str:
    """Return one line of what Spark says, with the object it was about: its own text is a page of stack traces."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    line = (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:500]
    file = _FILE.search(text)
    return f"Spark could not count: {line}" + (f" ({file.group(0)})" if file and file.group(0) not in line else "")
