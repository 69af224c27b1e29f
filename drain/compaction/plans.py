"""Query plans that sort the records of many chunks into objects per segment. Pure ``DataFrame → DataFrame``.

They take one shuffle. Keys and values are copied as they are, without Python functions.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from drain.compaction.object_writer import KEYS, RECORD_COLUMNS


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
        .sortWithinPartitions(*KEYS, "offset")
        .select(*KEYS, *RECORD_COLUMNS)
    )
