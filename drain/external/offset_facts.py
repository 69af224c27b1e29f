"""Turn an external topic's tables into the facts that drain.backlog.plans counts: functions DataFrame → DataFrame.

The rules:

1. Every mapped column is there, and is of its type: whole numbers for offsets, sizes, times and versions. CSV has only
   text, so there each value has to be one. A column that is missing or of another type is told at once (TableError).
2. No mapped value is null, no offset negative, no range ends before it begins.
3. No offset of a segment stands there twice in the table of entries.
4. Where a version is mapped, offsets and ends do not go backward while it rises.
5. Nothing stands at or beyond the end of a sealed segment.
6. If no row at all names a segment of the topic, the mapping is wrong. Single rows of other segments are left out: a
   source may have split and not been imported again yet.

`entry_faults` and `acknowledgement_faults` find what breaks rules 2 to 5, as rows of (fault, count, example).
Expressions of Spark throughout, no Python functions: the tables may be larger than any one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from drain.external.table_mapping import AcknowledgementsTable, EntriesTable
from drain.spark.schemas import FACTS
from drain.spark.spark_schemas import spark_schema
from headgate.errors import HeadgateError

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)

SEGMENT_SCHEMA = t.StructType(
    [
        t.StructField("label", t.StringType()),
        t.StructField("segment", t.LongType()),
        t.StructField("sealed_end_offset", t.LongType()),
    ],
)
"""The topic's segments: name at the source, number here, and the end of a sealed one."""


class TableError(HeadgateError):
    """An external table cannot be counted; the text names the table and what is wrong with it."""


def entries(frame: DataFrame, table: EntriesTable) -> DataFrame:
    """Return the records of ``frame`` as label, offset, size_bytes, timestamp_ms, version; raises TableError."""
    numbers = {"offset": table.offset, "size_bytes": table.size_bytes, "timestamp_ms": table.timestamp_ms}
    return mapped(frame, {"label": table.segment}, {**numbers, "version": table.version}, text=table.format == "csv")


def acknowledgements(frame: DataFrame, table: AcknowledgementsTable) -> DataFrame:
    """Return the ranges of ``frame`` as subscription, label, first_offset, end_offset, version; raises TableError."""
    names = {"subscription": table.subscription, "label": table.segment}
    numbers = {"first_offset": table.first_offset, "end_offset": table.end_offset, "version": table.version}
    found = mapped(frame, names, numbers, text=table.format == "csv")
    return found if table.first_offset else found.withColumn("first_offset", f.lit(0).cast("long"))


def mapped(
    frame: DataFrame, names: Mapping[str, str | None], numbers: Mapping[str, str | None], *, text: bool
) -> DataFrame:
    """Return the columns under the names that they have here; ``bad`` names the first with a null, or no whole number.

    ``names``: columns of text. ``text``: numbers may be written as text too. Raises TableError (rule 1).
    """
    wanted = {column for column in (*names.values(), *numbers.values()) if column is not None}
    if missing := sorted(wanted - set(frame.columns)):
        raise TableError(f"has no column {', '.join(map(repr, missing))}; it has: {', '.join(frame.columns) or 'none'}")
    selected: list[Column] = [_value(column).cast("string").alias(name) for name, column in names.items()]
    bad: list[Column] = [f.when(_value(column).isNull(), f"{column} is null") for column in names.values() if column]
    for name, column in numbers.items():
        value = _value(column)
        if column is not None:
            kind = frame.schema[column].dataType
            if not is_whole(kind) and not (text and isinstance(kind, t.StringType)):
                raise TableError(f"column {column!r} is of type {kind.simpleString()}; {name} is a whole number")
            number = value.try_cast("long")
            bad.append(
                f.when(value.isNull(), f"{column} is null").when(number.isNull(), f"{column} is no whole number")
            )
            value = number
        selected.append(value.cast("long").alias(name))
    return frame.select(*selected, f.coalesce(*bad).alias("bad"))


def is_whole(kind: t.DataType) -> bool:
    """Tell whether a column of this type holds whole numbers."""
    return isinstance(kind, _WHOLE) or (isinstance(kind, t.DecimalType) and kind.scale == 0)


def _value(column: str | None) -> Column:
    return f.lit(None) if column is None else f.col(f"`{column.replace('`', '``')}`")


def entry_faults(found: DataFrame, segments: DataFrame) -> DataFrame:
    """Return what is wrong with `entries`, as (fault, count, example)."""
    row = found.join(f.broadcast(segments), "label", "left")
    fault = (
        f.when(f.col("bad").isNotNull(), f.col("bad"))
        .when(f.col("offset") < 0, "an offset is negative")
        .when(f.col("size_bytes") < 0, "a size is negative")
        .when(f.col("offset") >= f.col("sealed_end_offset"), "an offset is beyond the end of a sealed segment")
    )
    twice = (
        found.where("bad IS NULL")
        .groupBy("label", "offset")
        .agg(f.count("*").alias("times"))
        .where("times > 1")
        .select(f.lit("an offset stands there twice").alias("fault"), example("label", "offset", "times"))
    )
    back = _backward(found, ("label",), "offset", "offsets go backward")
    return counted([row.select(fault.alias("fault"), example("label", "offset")), twice, back])


def acknowledgement_faults(found: DataFrame, segments: DataFrame) -> DataFrame:
    """Return what is wrong with `acknowledgements`, as (fault, count, example)."""
    row = found.join(f.broadcast(segments), "label", "left")
    fault = (
        f.when(f.col("bad").isNotNull(), f.col("bad"))
        .when(f.col("first_offset") < 0, "an offset is negative")
        .when(f.col("end_offset") < f.col("first_offset"), "a range ends before it begins")
        .when(f.col("end_offset") > f.col("sealed_end_offset"), "a range ends beyond the end of a sealed segment")
    )
    back = _backward(found, ("subscription", "label"), "end_offset", "acknowledged offsets go backward")
    shown = example("subscription", "label", "first_offset", "end_offset")
    return counted([row.select(fault.alias("fault"), shown), back])


def _backward(found: DataFrame, key_columns: Sequence[str], offset: str, fault: str) -> DataFrame:
    """Rule 4; nothing where no version is mapped, for then all of them are null."""
    before = f.lag(offset).over(Window.partitionBy(*key_columns).orderBy("version"))
    return (
        found.where("bad IS NULL AND version IS NOT NULL")
        .withColumn("before", before)
        .where(f.col("before") > f.col(offset))
        .select(f.lit(fault).alias("fault"), example(*key_columns, "version", "before", offset))
    )


def example(*columns: str) -> Column:
    """Return the column that shows people one row of many."""
    return f.to_json(f.struct(*columns)).alias("example")


def counted(parts: Sequence[DataFrame]) -> DataFrame:
    """Return (fault, count, example) of all rows of (fault, example) whose fault is not null."""
    return (
        reduce(DataFrame.unionByName, parts)
        .where("fault IS NOT NULL")
        .groupBy("fault")
        .agg(f.count("*").alias("count"), f.min("example").alias("example"))
    )


def entry_facts(found: DataFrame, segments: DataFrame, *, shard: int, topic_id: int) -> DataFrame:
    """Return `entries` as rows of schemas.FACTS; those of other segments are left out."""
    placed = found.join(f.broadcast(segments), "label")
    fixed = {"fact": f.lit("record"), "shard": f.lit(shard), "topic_id": f.lit(topic_id)}
    return _as_facts(placed, {**fixed, **_same("segment", "offset", "size_bytes", "timestamp_ms")})


def acknowledgement_facts(
    found: DataFrame, segments: DataFrame, subscriptions: DataFrame, *, shard: int, topic_id: int
) -> DataFrame:
    """Return `acknowledgements` as rows of schemas.FACTS; ``subscriptions``: subscription, its id and generation."""
    placed = found.join(f.broadcast(segments), "label").join(f.broadcast(subscriptions), "subscription")
    fixed = {"fact": f.lit("acknowledged"), "shard": f.lit(shard), "topic_id": f.lit(topic_id)}
    same = _same("segment", "subscription_id", "seek_generation", "end_offset")
    return _as_facts(placed, {**fixed, **same, "offset": f.col("first_offset")})


def _same(*columns: str) -> dict[str, Column]:
    return {name: f.col(name) for name in columns}


def _as_facts(frame: DataFrame, given: Mapping[str, Column]) -> DataFrame:
    return frame.select(
        *(given.get(field.name, f.lit(None)).cast(field.dataType).alias(field.name) for field in spark_schema(FACTS)),
    )
