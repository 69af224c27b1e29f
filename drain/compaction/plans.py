"""Roll-up itself: records of many chunks, laid out as one sorted stretch per segment. Functions DataFrame → DataFrame.

There is no session here, no path, no setting and nothing that runs. One shuffle brings a segment's records together;
keys and values pass through as they are, and no Python touches a row.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

PARTITION_COLUMNS: Final = ("topic_id", "segment", "part")
"""The folders that a rolled object stands in."""
RECORD_COLUMNS: Final = ("offset", "timestamp_ms", "stored_at_ms", "size_bytes", "key", "value")
"""What a rolled object holds; topic and segment are in its place."""


def stored_records(chunks: DataFrame, times: DataFrame) -> DataFrame:
    """Return the records of chunks with the time at which each was stored.

    ``chunks``: rows with fact, topic_id, segment, offset, timestamp_ms, size_bytes, key, value and chunk_name.
    ``times``: chunk_name and stored_at_ms, one row a chunk.
    """
    return (
        chunks.where(f.col("fact") == "record")
        .join(f.broadcast(times), "chunk_name")
        .select("topic_id", "segment", *RECORD_COLUMNS)
    )


def with_chunk_name(chunks: DataFrame) -> DataFrame:
    """Return rows that were read from chunks with ``chunk_name``, the name of the object that each stands in."""
    return chunks.select("*", f.col("_metadata.file_name").alias("chunk_name"))


def with_partition_columns(compacted: DataFrame) -> DataFrame:
    """Return rows that were read from rolled objects with their topic and segment, which the path of each says."""
    path = f.col("_metadata.file_path")
    partition_columns = {
        name: f.regexp_extract(path, f"/{name}=([0-9]+)/", 1).cast("long") for name in ("topic_id", "segment")
    }
    return compacted.drop(*partition_columns).select(
        "*", *(column.alias(name) for name, column in partition_columns.items())
    )


def only_segments(records: DataFrame, alive: DataFrame) -> DataFrame:
    """Return the records of the segments in ``alive`` (topic_id, segment): what was pruned or deleted stays out."""
    return records.join(f.broadcast(alive), ["topic_id", "segment"], "left_semi")


def sort_into_objects(records: DataFrame, *, tasks: int, object_bytes: int) -> DataFrame:
    """Return ``records`` with the column ``part``, sorted as they are to be written.

    A part is one object: it ends with the record whose bytes, added to those before it in its segment, pass the next
    multiple of ``object_bytes``. ``tasks`` work side by side, each on whole segments.
    """
    before = f.sum("size_bytes").over(
        Window.partitionBy("topic_id", "segment").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    part = f.floor(f.coalesce(before, f.lit(0)) / f.lit(object_bytes)).cast("long")
    return (
        records.repartition(tasks, "topic_id", "segment")
        .withColumn("part", part)
        .sortWithinPartitions(*PARTITION_COLUMNS, "offset")
        .select(*PARTITION_COLUMNS, *RECORD_COLUMNS)
    )


def describe_objects(written: DataFrame) -> DataFrame:
    """Return, for each part as it was written, its bounds, how many records it has, their bytes and their times."""
    return written.groupBy(*PARTITION_COLUMNS).agg(
        f.min("offset").alias("first_offset"),
        (f.max("offset") + 1).alias("end_offset"),
        f.count("*").alias("records"),
        f.sum("size_bytes").alias("size_bytes"),
        f.min("stored_at_ms").alias("first_at_ms"),
        f.max("stored_at_ms").alias("last_at_ms"),
    )
