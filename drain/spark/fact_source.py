"""The facts of chunks, as Spark and this process read them.

Spark's workers fetch objects through drain.spark.object_reader, without a jar. A few small chunks are read in this
process: a job for them costs more than counting their rows. Spark never infers a schema.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headgate.ledger.chunk import COLUMNS

FACT_COLUMNS: Final = (
    "fact",
    "topic_id",
    "segment",
    "offset",
    "end_offset",
    "subscription_id",
    "subscription_type",
    "seek_generation",
    "bucket",
    "timestamp_ms",
    "size_bytes",
)
"""The only columns that are read from chunks: keys, values and bodies are not among them."""

FACTS: Final = pa.schema([*((name, pa.type_for_alias(COLUMNS[name])) for name in FACT_COLUMNS), ("shard", pa.int64())])
"""The shard is not a column of a chunk: it is in the chunk's header."""


def spark_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return ``table`` as a DataFrame whose rows are sent with the plan.

    The table is combined into one Arrow batch. Of several batches Spark (seen with 4.3) takes the
    first empty one for the last and silently drops the rest.
    """
    return session.createDataFrame(table.combine_chunks())
