"""The schemas of facts, as Arrow schemas. Imports no Spark.

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
