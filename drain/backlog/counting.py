"""Count chunks on a Spark session, and keep the counts of compacted ranges.

Each task reads some objects and returns their aggregates. Those are few (drain.backlog.aggregates), so this process
adds them. The previous result is added in drain.backlog.merge. Aggregates are sums and maxima, so aggregating them
again equals doing that with the facts: with those of a compacted range, a full count needs none of the deleted chunks.
Its manifest states the range, the format and a checksum of their object, which states none of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from drain.backlog.aggregates import COUNTED, FACTS, SCHEMA, aggregate, contributions
from drain.backlog.merge import MergedRow, merged_rows
from drain.spark.engines import RunError, run_errors
from drain.spark.object_reader import DEFAULT_LIMITS, read_in_tasks, read_objects
from headgate.errors import LedgerError, ObjectMissingError
from headgate.ledger.checksum import verify_parquet
from headgate.ledger.compacted import Manifest, check_object, manifest_ranges, read_manifest
from headgate.ledger.objects import chunk_path, ranges_to_read
from headgate.storage.object_store import Store


def encode_range_facts(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.select(SCHEMA.names).cast(SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue())


async def read_range_facts(store: Store, manifest: Manifest) -> pa.Table:
    """Return the facts of one range; raises LedgerError, ObjectMissingError or StoreUnavailableError."""
    data = await store.read(manifest.facts)
    check_object(data, manifest.facts, manifest.facts_checksum)
    return pq.read_table(pa.BufferReader(data), partitioning=None, use_threads=False).replace_schema_metadata()


async def read_compacted_facts(store: Store, shard: int) -> tuple[Manifest, pa.Table] | None:
    """Return the last compacted range, and the aggregates of all; a kind of a key may have a row for each range.

    None if there are none. Raises LedgerError or StoreUnavailableError.

    If a range is replaced meanwhile, the ranges are listed once more.
    """
    for attempt in (0, 1):
        covering = ranges_to_read(await manifest_ranges(store, shard))
        if not covering:
            return None
        try:
            manifests = [await read_manifest(store, shard, each) for each in covering]
            tables = [await read_range_facts(store, manifest) for manifest in manifests]
        except ObjectMissingError as error:
            if attempt:
                raise LedgerError(f"a compacted range of shard {shard} is listed but missing: {error}") from error
            continue
        return manifests[-1], pa.concat_tables(tables)
    raise AssertionError("the second attempt returns or raises")


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
    objects = dict.fromkeys(chunk_path(shard, number) for shard, numbers in chunks.items() for number in numbers)

    def count(task: Sequence[tuple[str, int | None]]) -> Iterator[pa.RecordBatch]:
        read = read_objects(ledger_url, task, FACTS)
        parts = [aggregate(contributions(pa.Table.from_batches([each])), in_order=True) for each in read]
        yield from aggregate(pa.concat_tables(parts)).combine_chunks().to_batches()

    context = getattr(session, "sparkContext", None)  # A Connect server has none, and does not tell its cores.
    tasks = DEFAULT_LIMITS.tasks(len(objects), context.defaultParallelism if context else len(objects))
    sent = (each.__module__ for each in (read_objects, aggregate, verify_parquet))
    return aggregate(read_in_tasks(session, [*objects.items()], tasks, count, SCHEMA, sent).toArrow())
