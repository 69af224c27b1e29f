"""Turn the tables of an external topic with offsets into facts. Pure ``DataFrame → DataFrame``.

1. Every mapped column exists and has its type: whole numbers for offsets, sizes, times and
   versions. CSV has only text, so its values are checked one by one. TableError otherwise.
2. No mapped value is null, no offset is negative, and no range ends before it begins.
3. No offset of a segment occurs twice in the table of entries.
4. If a version is mapped, offsets and ends do not decrease while it rises.
5. No offset is at or beyond the end of a sealed segment.
6. If no row at all names a segment of the topic, the mapping is wrong. Rows of other segments are
   ignored: the source may have split since the last import.

No Python functions are used: the tables may be larger than one machine.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from drain.spark.fact_source import FACTS
from drain.table_mapping import AcknowledgementsTable, EntriesTable
from headgate.errors import HeadgateError

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)

SEGMENT_SCHEMA: Final = "label string, segment long, sealed_end_offset long"
"""The topic's segments: name at the source, segment number, and the end if it is sealed."""


class TableError(HeadgateError):
    """An external table cannot be counted; the text names the table and the error."""


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
    """Return the mapped columns under headgate's names; ``bad`` describes the first null or invalid number of a row.

    ``names``: text columns. ``numbers``: number columns; with ``text`` they may be texts. Raises
    TableError (rule 1).
    """
    columns = {column for column in (*names.values(), *numbers.values()) if column is not None}
    if missing := sorted(columns - set(frame.columns)):
        raise TableError(f"has no column {', '.join(map(repr, missing))}; it has: {', '.join(frame.columns) or 'none'}")
    selected: list[Column] = [_value(column).cast("string").alias(name) for name, column in names.items()]
    bad: list[Column] = [f.when(_value(column).isNull(), f"{column} is null") for column in names.values() if column]
    for name, column in numbers.items():
        value = _value(column)
        if column is not None:
            kind = frame.schema[column].dataType
            if not is_whole(kind) and not (text and isinstance(kind, t.StringType)):
                raise TableError(f"column {column!r} is of type {kind.simpleString()}; {name} must be a whole number")
            number = value.try_cast("long")
            bad.append(
                f.when(value.isNull(), f"{column} is null").when(number.isNull(), f"{column} is not a whole number")
            )
            value = number
        selected.append(value.cast("long").alias(name))
    return frame.select(*selected, f.coalesce(*bad).alias("bad"))


def is_whole(kind: t.DataType) -> bool:
    return isinstance(kind, _WHOLE) or (isinstance(kind, t.DecimalType) and kind.scale == 0)


def _value(column: str | None) -> Column:
    return f.lit(None) if column is None else f.col(f"`{column.replace('`', '``')}`")


def entry_faults(found: DataFrame, segments: DataFrame) -> DataFrame:
    """Return the faults of `entries`, as (fault, count, example)."""
    row = found.join(f.broadcast(segments), "label", "left")
    fault = (
        f.when(f.col("bad").isNotNull(), f.col("bad"))
        .when(f.col("offset") < 0, "an offset is negative")
        .when(f.col("size_bytes") < 0, "a size is negative")
        .when(f.col("offset") >= f.col("sealed_end_offset"), "an offset is beyond the end of a sealed segment")
    )
    twice = duplicates(found, "offset", "an offset")
    back = _backward(found, ("label",), "offset", "offsets go backward")
    return counted([row.select(fault.alias("fault"), example("label", "offset")), twice, back])


def acknowledgement_faults(found: DataFrame, segments: DataFrame) -> DataFrame:
    """Return the faults of `acknowledgements`, as (fault, count, example)."""
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
    """Return the violations of rule 4; without a mapped version there are none, since all versions are null."""
    before = f.lag(offset).over(Window.partitionBy(*key_columns).orderBy("version"))
    return (
        found.where("bad IS NULL AND version IS NOT NULL")
        .withColumn("before", before)
        .where(f.col("before") > f.col(offset))
        .select(f.lit(fault).alias("fault"), example(*key_columns, "version", "before", offset))
    )


def duplicates(found: DataFrame, column: str, name: str) -> DataFrame:
    """Return the values of ``column`` that occur more than once in a segment."""
    return (
        found.where("bad IS NULL")
        .where(f.col(column).isNotNull())
        .groupBy("label", column)
        .agg(f.count("*").alias("times"))
        .where("times > 1")
        .select(f.lit(f"{name} occurs twice").alias("fault"), example("label", column, "times"))
    )


def example(*columns: str) -> Column:
    return f.to_json(f.struct(*columns)).alias("example")


def counted(frames: Sequence[DataFrame]) -> DataFrame:
    """Return (fault, count, example) of the rows (fault, example) whose fault is not null."""
    return (
        reduce(DataFrame.unionByName, frames)
        .where("fault IS NOT NULL")
        .groupBy("fault")
        .agg(f.count("*").alias("count"), f.min("example").alias("example"))
    )


def entry_facts(found: DataFrame, segments: DataFrame, *, shard: int, topic_id: int) -> DataFrame:
    """Return `entries` as rows of FACTS; those of other segments are left out."""
    of_topic = found.join(f.broadcast(segments), "label")
    fixed = {"fact": f.lit("record"), "shard": f.lit(shard), "topic_id": f.lit(topic_id)}
    return _as_facts(of_topic, {**fixed, **_same("segment", "offset", "size_bytes", "timestamp_ms")})


def acknowledgement_facts(
    found: DataFrame, segments: DataFrame, subscriptions: DataFrame, *, shard: int, topic_id: int
) -> DataFrame:
    """Return `acknowledgements` as rows of FACTS; ``subscriptions``: subscription, its id and generation."""
    of_topic = found.join(f.broadcast(segments), "label").join(f.broadcast(subscriptions), "subscription")
    fixed = {"fact": f.lit("acknowledged"), "shard": f.lit(shard), "topic_id": f.lit(topic_id)}
    same = _same("segment", "subscription_id", "seek_generation", "end_offset")
    return _as_facts(of_topic, {**fixed, **same, "offset": f.col("first_offset")})


def _same(*columns: str) -> dict[str, Column]:
    return {name: f.col(name) for name in columns}


def _as_facts(frame: DataFrame, given: Mapping[str, Column]) -> DataFrame:
    return frame.select(
        *(
            given.get(field.name, f.lit(None)).cast(field.dataType).alias(field.name)
            for field in from_arrow_schema(FACTS)
        ),
    )
