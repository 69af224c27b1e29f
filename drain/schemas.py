"""The columns that the backlog job reads, carries along and publishes, as values.

Arrow schemas, because that is what the files hold; `spark_schema` gives the same to Spark, so that a read never has to
guess. Which columns of a chunk are read is said here and nowhere else: keys, values and bodies are not among them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as t

from headgate import chunk

FACT_COLUMNS: Final = (
    "fact",
    "topic_id",
    "segment",
    "offset",
    "end_offset",
    "subscription_id",
    "subscription_type",
    "seek_generation",
    "size_bytes",
)

SHARD: Final = pa.field("shard", pa.int64())
"""Not a column of a chunk: it comes from the folder that the chunk stands in."""

FACTS: Final = pa.schema([*(chunk.SCHEMA.field(name) for name in FACT_COLUMNS), SHARD])

RANGES: Final = pa.list_(pa.struct([pa.field("first_offset", pa.int64()), pa.field("end_offset", pa.int64())]))

STATE: Final = pa.schema(
    [
        SHARD,
        pa.field("topic_id", pa.int64()),
        pa.field("subscription_id", pa.int64()),
        pa.field("segment", pa.int64()),
        pa.field("seek_generation", pa.int64()),
        pa.field("subscription_type", pa.string()),
        pa.field("records", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("sealed_end_offset", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("above", RANGES),
    ],
)
"""What a result holds; drain.settlement says what each kind of row means."""

MERGED: Final = pa.schema(
    [
        *STATE,
        pa.field("reset", pa.bool_()),
        pa.field("removed", pa.bool_()),
        pa.field("present", pa.bool_()),
        pa.field("carried", pa.bool_()),
    ],
)
"""State rows with what the new facts did to them, as Spark hands them over to be settled."""

_SIMPLE: Final[dict[pa.DataType, t.DataType]] = {
    pa.int64(): t.LongType(),
    pa.string(): t.StringType(),
    pa.bool_(): t.BooleanType(),
}


def spark_schema(schema: pa.Schema) -> t.StructType:
    """Return ``schema`` in Spark's words; every column may be null, as it may in a Parquet file."""
    return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in schema])


def _spark_type(arrow: pa.DataType) -> t.DataType:
    if pa.types.is_list(arrow):
        return t.ArrayType(_spark_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in arrow])
    return _SIMPLE[arrow]
