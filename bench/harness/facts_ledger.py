"""Writes long ledgers quickly: whole columns at a time, the same on every machine.

Chunk 1 creates one topic, its segments and its subscriptions. In each later chunk, one row in
`RECORD_EVERY` is a record and the others are cumulative acknowledgements by the subscriptions in
turn. A leader writes fewer rows per chunk; columns and encoding are those of headgate.ledger.chunk.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.checksum import seal_parquet
from headgate.ledger.chunk import COLUMNS, FORMAT, METADATA_KEY
from headgate.ledger.objects import chunk_folder, chunk_name
from headgate.model import entries as e

SEGMENTS, SUBSCRIPTIONS, RECORD_EVERY, RECORD_BYTES = 16, 4, 8, 100
_SCHEMA = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items() if name != "headers"])


class FactsLedger:
    """One shard's ledger below ``root``."""

    def __init__(self, root: Path) -> None:
        self.url = root.as_uri()
        self.folder = root / chunk_folder(0)
        self.folder.mkdir(parents=True)
        self.chunks = 1
        self.rows = 0
        builder = ChunkBuilder()
        builder.add(e.TopicCreated(topic_id=1, topic="bench", segments=SEGMENTS, token="t"))  # noqa: S106 - a command's
        for number in range(SUBSCRIPTIONS):
            builder.add(
                e.SubscriptionCreated(
                    topic_id=1,
                    subscription_id=2 + number,
                    subscription=f"s{number}",
                    subscription_type=e.SubscriptionType.STREAM,
                    order="strict",
                    positions={},
                )
            )
        self.path(1).write_bytes(builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1))

    def path(self, number: int) -> Path:
        """Return the path of chunk ``number``."""
        return self.folder / chunk_name(number)

    def paths(self) -> list[str]:
        return [str(self.path(number)) for number in range(1, self.chunks + 1)]

    def grow(self, rows: int) -> None:
        """Add one chunk of ``rows`` rows, a multiple of all the constants above."""
        self.chunks += 1
        header = (
            f'{{"format":{FORMAT},"shard":0,"number":{self.chunks},"leader_epoch":1,'
            f'"at_ms":{self.chunks},"entries":0,"records":{rows // RECORD_EVERY}}}'
        )
        table = _table(self.rows, rows).replace_schema_metadata({METADATA_KEY: header})
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="snappy",
            use_dictionary=["fact", "subscription_type"],
            write_statistics=["topic_id", "segment", "offset"],
        )
        self.path(self.chunks).write_bytes(seal_parquet(sink.getvalue().to_pybytes()))
        self.rows += rows

    def copy_chunks(self, other: FactsLedger, chunks: int, rows: int) -> None:
        """Start with the first chunks of ``other``, as hard links, which use no disk space."""
        for number in range(2, chunks + 1):
            os.link(other.path(number), self.path(number))
        self.chunks, self.rows = chunks, rows


def _table(first: int, rows: int) -> pa.Table:
    assert rows % (RECORD_EVERY * SEGMENTS * SUBSCRIPTIONS) == 0, f"{rows} rows cannot be divided evenly"
    at = np.arange(first, first + rows)
    # Records come last in a chunk (headgate.ledger.chunk).
    at = np.concatenate([at[at % RECORD_EVERY != RECORD_EVERY - 1], at[at % RECORD_EVERY == RECORD_EVERY - 1]])
    per_segment = RECORD_EVERY * SEGMENTS
    is_record = at % RECORD_EVERY == RECORD_EVERY - 1
    segment = (at // RECORD_EVERY) % SEGMENTS
    offset = at // per_segment
    subscription = 2 + (at // per_segment) % SUBSCRIPTIONS
    columns = {
        "fact": pa.array(np.where(is_record, "record", "acknowledged")),
        "topic_id": pa.array(np.ones(rows, dtype=np.int64)),
        "segment": pa.array(segment),
        "offset": pa.array(np.where(is_record, offset, 0)),
        "end_offset": pa.array(offset, mask=is_record),
        "subscription_id": pa.array(subscription, mask=is_record),
        "seek_generation": pa.array(np.zeros(rows, dtype=np.int64), mask=is_record),
        "timestamp_ms": pa.array(at, mask=~is_record),
        "size_bytes": pa.array(np.full(rows, RECORD_BYTES), mask=~is_record),
    }
    empty = {field.name: pa.nulls(rows, field.type) for field in _SCHEMA if field.name not in columns}
    return pa.table({**columns, **empty}).select(_SCHEMA.names).cast(_SCHEMA)
