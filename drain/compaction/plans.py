"""Query plans that sort the records of many chunks into objects per segment. Pure ``DataFrame → DataFrame``.

They take one shuffle. Keys and values are copied as they are, without Python functions.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

PARTITION_COLUMNS: Final = ("topic_id", "segment", "part")
"""The folders of a compacted object."""
RECORD_COLUMNS: Final = ("offset", "timestamp_ms", "stored_at_ms", "size_bytes", "key", "value", "headers")
"""The columns of a compacted object. Topic and segment are in its path."""


def stored_records(chunks: DataFrame, times: DataFrame) -> DataFrame:
    """Return the records of chunks with the time at which each was stored.

    ``chunks``: rows with fact, topic_id, segment, offset, timestamp_ms, size_bytes, key, value,
    headers and chunk_name. ``times``: chunk_name and stored_at_ms, one row per chunk.
    """
    return (
        chunks.where(f.col("fact") == "record")
        .join(f.broadcast(times), "chunk_name")
        .select("topic_id", "segment", *RECORD_COLUMNS)
    )


def with_chunk_name(chunks: DataFrame) -> DataFrame:
    """Return rows read from chunks with ``chunk_name``, the name of their object."""
    return chunks.select("*", f.col("_metadata.file_name").alias("chunk_name"))


def with_partition_columns(compacted: DataFrame) -> DataFrame:
    """Return rows read from compacted objects with topic and segment, taken from the path."""
    path = f.col("_metadata.file_path")
    partition_columns = {
        name: f.regexp_extract(path, f"/{name}=([0-9]+)/", 1).cast("long") for name in ("topic_id", "segment")
    }
    return compacted.drop(*partition_columns).select(
        "*", *(column.alias(name) for name, column in partition_columns.items())
    )


def only_segments(records: DataFrame, alive: DataFrame) -> DataFrame:
    """Return the records of the segments in ``alive`` (topic_id, segment), without pruned and deleted ones."""
    return records.join(f.broadcast(alive), ["topic_id", "segment"], "left_semi")


def sort_into_objects(records: DataFrame, *, tasks: int, object_bytes: int) -> DataFrame:
    """Return ``records`` with the column ``part``, sorted for writing.

    A part is one object. It ends with the record at which the running size of the segment passes
    the next multiple of ``object_bytes``. ``tasks`` run concurrently, each on whole segments.
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


def object_checksums(files: DataFrame) -> DataFrame:
    """Return path and checksum (headgate.ledger.checksum) of whole objects, read with Spark's format ``binaryFile``."""
    return files.select("path", f.crc32("content").alias("checksum"))


def describe_objects(written: DataFrame) -> DataFrame:
    """Return for each written part its bounds, number of records, bytes and times."""
    return written.groupBy(*PARTITION_COLUMNS).agg(
        f.min("offset").alias("first_offset"),
        (f.max("offset") + 1).alias("end_offset"),
        f.count("*").alias("records"),
        f.sum("size_bytes").alias("size_bytes"),
        f.min("stored_at_ms").alias("first_at_ms"),
        f.max("stored_at_ms").alias("last_at_ms"),
    )
