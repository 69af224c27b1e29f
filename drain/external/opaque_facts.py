"""Turn the entries of an external topic whose positions are opaque into what lies behind a mark: DataFrame → DataFrame.

The rules are those of drain.external.offset_facts for entries, with these in place of 3 to 5:

3. No mark, and no version, of a segment stands there twice.
4. A version is a whole number of any length; where it is mapped, it tells the order. The mark may be its own version.

TimestampIndex and versions are text, or whole numbers: a number with a fraction may have lost digits before it came
here.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from drain.external.offset_facts import TableError, counted, example, is_whole, mapped
from drain.external.table_mapping import EntriesTable

CHECKPOINT_SCHEMA = t.StructType(
    [
        t.StructField("segment", t.LongType()),
        t.StructField("label", t.StringType()),
        t.StructField("checkpoint", t.StringType()),
        t.StructField("after", t.StringType()),
    ],
)
"""What is counted behind: a segment by number and label, the mark in it (null: its beginning), the version there."""


def entries(frame: DataFrame, table: EntriesTable) -> DataFrame:
    """Return the entries as label, offset and version (text), size_bytes and timestamp_ms; raises TableError."""
    for column in (table.offset, *([table.version] if table.version else [])):
        kind = frame.schema[column].dataType if column in frame.columns else t.StringType()
        if not isinstance(kind, t.StringType) and not is_whole(kind):
            raise TableError(f"column {column!r} is of type {kind.simpleString()}; a mark is text, or a whole number")
    texts = {"label": table.segment, "offset": table.offset, "version": table.version}
    numbers = {"size_bytes": table.size_bytes, "timestamp_ms": table.timestamp_ms}
    return mapped(frame, texts, numbers, text=table.format == "csv")


def faults(found: DataFrame) -> DataFrame:
    """Return what is wrong with `entries`, as (fault, count, example)."""
    version = f.col("version")
    fault = (
        f.when(f.col("bad").isNotNull(), f.col("bad"))
        .when(f.col("size_bytes") < 0, "a size is negative")
        .when(~version.rlike("^[0-9]+$"), "a version is no whole number")
    )
    row = found.select(fault.alias("fault"), example("label", "offset", "version"))
    return counted(
        [
            row,
            _duplicates(found, f.col("offset"), "a mark"),
            _duplicates(found, _strip_leading_zeros(version), "a version"),
        ]
    )


def _duplicates(found: DataFrame, what: Column, name: str) -> DataFrame:
    return (
        found.where("bad IS NULL")
        .where(what.isNotNull())
        .groupBy("label", what.alias("value"))
        .agg(f.count("*").alias("times"))
        .where("times > 1")
        .select(f.lit(f"{name} stands there twice").alias("fault"), example("label", "value", "times"))
    )


def checkpoint_versions(found: DataFrame, checkpoints: DataFrame) -> DataFrame:
    """Return segment, mark and version of those ``checkpoints`` (CHECKPOINT_SCHEMA) that are an entry's."""
    return (
        found.withColumnRenamed("offset", "checkpoint")
        .join(f.broadcast(checkpoints), ["label", "checkpoint"])
        .select("segment", "checkpoint", "version")
    )


def remaining_entries(found: DataFrame, checkpoints: DataFrame) -> DataFrame:
    """Count the entries behind each of ``checkpoints`` (CHECKPOINT_SCHEMA).

    Columns: segment, mark, records, size_bytes and oldest_ms.

    A mark without a version at it counts from the beginning, so only beginnings may have none.
    """
    version, after = _strip_leading_zeros(f.col("version")), _strip_leading_zeros(f.col("after"))
    longer = f.length(version) > f.length(after)
    later = longer | ((f.length(version) == f.length(after)) & (version > after))
    placed = f.broadcast(checkpoints).withColumnRenamed("label", "of")
    return (
        found.join(placed, (f.col("label") == f.col("of")) & (f.col("after").isNull() | later))
        .groupBy("segment", "checkpoint")
        .agg(
            f.count("*").alias("records"),
            f.sum("size_bytes").alias("size_bytes"),
            f.min("timestamp_ms").alias("oldest_ms"),
        )
    )


def _strip_leading_zeros(version: Column) -> Column:
    """Return a whole number without zeros before it: the longer one of two such texts is the greater number."""
    return f.regexp_replace(version, "^0+(?=.)", "")
