"""Count the entries of an external topic with opaque positions after checkpoints. Pure ``DataFrame → DataFrame``.

The rules are those of drain.external.offset_facts for entries, with these instead of 3 to 5:

3. No position and no version of a segment occurs twice.
4. A mapped version, a whole number of any length, defines the order.

Numbers with a fraction are rejected: they may have lost digits.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from drain.external.offset_facts import TableError, counted, duplicates, example, is_whole, mapped
from drain.table_mapping import EntriesTable

CHECKPOINT_SCHEMA: Final = "segment long, label string, checkpoint string, after string"
"""A checkpoint: segment number and label, its text (null: the beginning), and the version of its
entry."""


def entries(frame: DataFrame, table: EntriesTable) -> DataFrame:
    """Return the entries as label, offset and version (text), size_bytes and timestamp_ms; raises TableError."""
    for column in (table.offset, *([table.version] if table.version else [])):
        kind = frame.schema[column].dataType if column in frame.columns else t.StringType()
        if not isinstance(kind, t.StringType) and not is_whole(kind):
            raise TableError(
                f"column {column!r} is of type {kind.simpleString()}; a position is a text or a whole number"
            )
    texts = {"label": table.segment, "offset": table.offset, "version": table.version}
    numbers = {"size_bytes": table.size_bytes, "timestamp_ms": table.timestamp_ms}
    return mapped(frame, texts, numbers, text=table.format == "csv")


def faults(found: DataFrame) -> DataFrame:
    """Return the faults of `entries`, as (fault, count, example)."""
    version = f.col("version")
    fault = (
        f.when(f.col("bad").isNotNull(), f.col("bad"))
        .when(f.col("size_bytes") < 0, "a size is negative")
        .when(~version.rlike("^[0-9]+$"), "a version is not a whole number")
    )
    row = found.select(fault.alias("fault"), example("label", "offset", "version"))
    return counted(
        [
            row,
            duplicates(found.withColumn("value", f.col("offset")), "value", "a position"),
            duplicates(found.withColumn("value", _strip_leading_zeros(version)), "value", "a version"),
        ]
    )


def checkpoint_versions(found: DataFrame, checkpoints: DataFrame) -> DataFrame:
    """Return segment, checkpoint and version of those ``checkpoints`` (CHECKPOINT_SCHEMA) that are in the table."""
    return (
        found.withColumnRenamed("offset", "checkpoint")
        .join(f.broadcast(checkpoints), ["label", "checkpoint"])
        .select("segment", "checkpoint", "version")
    )


def remaining_entries(found: DataFrame, checkpoints: DataFrame) -> DataFrame:
    """Return segment, checkpoint, records, size_bytes and oldest_ms of the entries after each of ``checkpoints``.

    A checkpoint (CHECKPOINT_SCHEMA) without a version counts from the beginning, so only beginnings
    may have none.
    """
    version, after = _strip_leading_zeros(f.col("version")), _strip_leading_zeros(f.col("after"))
    longer = f.length(version) > f.length(after)
    later = longer | ((f.length(version) == f.length(after)) & (version > after))
    of_segment = f.broadcast(checkpoints).withColumnRenamed("label", "of")
    return (
        found.join(of_segment, (f.col("label") == f.col("of")) & (f.col("after").isNull() | later))
        .groupBy("segment", "checkpoint")
        .agg(
            f.count("*").alias("records"),
            f.sum("size_bytes").alias("size_bytes"),
            f.min("timestamp_ms").alias("oldest_ms"),
        )
    )


def _strip_leading_zeros(version: Column) -> Column:
    """Return a number without leading zeros: of two such texts, the longer one is the greater number."""
    return f.regexp_replace(version, "^0+(?=.)", "")
