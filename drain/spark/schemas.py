"""The schemas of facts and results, as Arrow schemas. Imports no Spark.

Spark never infers a schema. FACT_COLUMNS lists the only columns that are read from chunks: keys,
values and bodies are not among them.
"""

from typing import Final

import pyarrow as pa

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

SHARD: Final = pa.field("shard", pa.int64())
"""Not a column of a chunk: it is taken from the chunk's folder."""

CHUNK_FACTS: Final = pa.schema([(name, pa.type_for_alias(COLUMNS[name])) for name in FACT_COLUMNS])
FACTS: Final = pa.schema([*CHUNK_FACTS, SHARD])

PAIRS: Final = pa.list_(pa.list_(pa.int64()))
"""Ranges of offsets (first, end), or a timestamp index (offset, timestamp_ms)."""

STATE: Final = pa.schema(
    [
        SHARD,
        pa.field("topic_id", pa.int64()),
        pa.field("subscription_id", pa.int64()),
        pa.field("segment", pa.int64()),
        pa.field("bucket", pa.int64()),
        pa.field("seek_generation", pa.int64()),
        pa.field("subscription_type", pa.string()),
        pa.field("records", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("sealed_end_offset", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("above", PAIRS),
        pa.field("timestamp_index", PAIRS),
    ],
)
"""The columns of a result; drain.backlog.merge explains the kinds of rows."""


def with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``table`` with the columns of ``schema``; a missing column is null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
