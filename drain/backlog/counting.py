"""Count chunks on a Spark session: each task reads some objects and returns their aggregates.

Those are few (drain.backlog.aggregates), so this process adds them. The previous result is added in
drain.backlog.merge.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from drain.backlog import aggregates
from drain.backlog.aggregates import COUNTED, FACTS, SCHEMA, aggregate, contributions
from drain.backlog.merge import MergedRow, merged_rows
from drain.spark import object_reader
from drain.spark.engines import RunError, run_errors
from drain.spark.object_reader import read_objects
from headgate.ledger.paths import chunk_path


@dataclass(frozen=True, slots=True)
class Counted:
    """What the new chunks of one shard add to its result."""

    rows: Sequence[MergedRow]
    at_ms: int
    """Time of the last chunk."""


def count_chunks(session: SparkSession, ledger_url: str, chunks: Mapping[int, range]) -> dict[int, Counted]:
    """Count ``chunks`` (shard → numbers), in one Spark job. Blocks until it ends or is cancelled.

    Raises:
        RunError: the job failed or was cancelled; the text names the object if Spark does. Or not every chunk was
            counted: the watermark would skip the missing one permanently.
        JvmGoneError: the JVM is gone.
    """
    with run_errors():
        found = aggregate_chunks(session, ledger_url, chunks)
    read = {row["shard"]: row for row in found.filter(pc.equal(found["kind"], COUNTED)).to_pylist()}
    for shard, numbers in chunks.items():
        if (counted := read[shard]["records"] if shard in read else 0) != len(numbers):
            raise RunError(
                f"Spark counted {counted} of the {len(numbers)} chunks of shard {shard}: the count is discarded"
            )
    rows = merged_rows(found)
    return {shard: Counted(rows[shard], read[shard]["timestamp_ms"]) for shard in chunks}


def aggregate_chunks(session: SparkSession, ledger_url: str, chunks: Mapping[int, range]) -> pa.Table:
    """Return the aggregates (`SCHEMA`) of ``chunks``; raises an error of the engine."""
    return aggregate(aggregation_plan(session, ledger_url, chunks).toArrow())


def aggregation_plan(session: SparkSession, ledger_url: str, chunks: Mapping[int, range]) -> DataFrame:
    """Return the plan, whose rows are the aggregates of each task."""
    objects = dict.fromkeys(chunk_path(shard, number) for shard, numbers in chunks.items() for number in numbers)

    def count(task: Sequence[tuple[str, int | None]]) -> Iterator[pa.RecordBatch]:
        parts = [
            aggregate(contributions(pa.Table.from_batches([facts]))) for facts in read_objects(ledger_url, task, FACTS)
        ]
        yield from aggregate(pa.concat_tables(parts)).combine_chunks().to_batches()

    return object_reader.objects_in_tasks(session, objects, count, SCHEMA, aggregates.__name__)
