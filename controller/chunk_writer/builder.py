"""Encode a chunk: one Parquet object, one commit.

A row with a ``body`` is an entry, a row with a ``fact`` states a fact (headgate.ledger.facts).
Entries come first, records last. headgate.ledger.chunk reads chunks and defines their format.

No I/O.
"""

import io
from collections.abc import Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from arro3.io import write_parquet

from controller.chunk_writer.arrow_columns import PaddedColumns, nullable
from headgate.ledger.checksum import seal_parquet
from headgate.ledger.chunk import COLUMNS, FORMAT, METADATA_KEY, ChunkHeader, RecordColumns, pack_records
from headgate.ledger.facts import facts_of
from headgate.model import entries as e
from headgate.model.headers import header_bytes
from headgate.model.layout import Layout

PYARROW_THRESHOLD_BYTES: Final = 64 * 1024
"""Chunks with at least this many bytes of records are written with pyarrow instead of arro3. Readers see no difference.
"""
LARGE_RECORDS: Final = 1000
LARGE_ENTRY_BYTES: Final = 8 * 1024
LARGE_VALUE_BYTES: Final = 256 * 1024
COMPRESSION: Final = "snappy"
DICTIONARY_COLUMNS: Final = ("fact", "subscription_type")
"""Columns with few distinct values. Keys and values are mostly distinct, so a dictionary would not pay."""
UNCOMPRESSED_MAX_ROWS: Final = 5
UNCOMPRESSED_MAX_BYTES: Final = 1024
"""At most this many rows, and bytes of records and entries, are written without dictionaries and
compression. They save nothing there, and take a third of the writer's time: up to 5 rows of small
records and acknowledgements are smaller without."""

HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [(name, HEADERS if name == "headers" else pa.type_for_alias(kind)) for name, kind in COLUMNS.items()]
)
SCHEMA_WITHOUT_HEADERS: Final = pa.schema([field for field in SCHEMA if field.name != "headers"])
FIELDS: Final = [(field.name, field.type) for field in SCHEMA]
INTEGER: Final = pa.int64()
FEW_ROWS: Final = 16
"""Empty columns of at most this many rows are kept for the next chunks."""

PACKED_MAX_BYTES: Final = 4 * 1024
"""Chunks with at most this many bytes of records contain them in MessagePack, too."""


class ChunkBuilder:
    """Collects the entries and records of one commit until they are encoded."""

    def __init__(
        self,
        *,
        pyarrow_threshold_bytes: int = PYARROW_THRESHOLD_BYTES,
        uncompressed_max_rows: int = UNCOMPRESSED_MAX_ROWS,
        packed_max_bytes: int = PACKED_MAX_BYTES,
    ) -> None:
        """Create an empty builder; see the constants for the limits."""
        self.entries: list[e.AnyEntry] = []
        self.records = RecordColumns()
        self._bodies: list[bytes] = []
        self._layouts: list[Layout | None] = []
        self._pyarrow_threshold_bytes = pyarrow_threshold_bytes
        self._uncompressed_max_rows = uncompressed_max_rows
        self._packed_max_bytes = packed_max_bytes

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: e.AnyEntry, layout: Layout | None = None) -> None:
        """Append ``entry``; ``layout``, its topic's layout after it, is required for splits and merges."""
        self.entries.append(entry)
        self._bodies.append(e.encode_entry(entry))
        self._layouts.append(layout)

    @property
    def is_large(self) -> bool:
        """Whether `encode` takes more than some milliseconds, so that an event loop should not wait for it."""
        return (
            len(self.records) + sum(map(len, self.records.headers)) >= LARGE_RECORDS
            or sum(map(len, self._bodies)) >= LARGE_ENTRY_BYTES
            or sum(map(len, self.records.value)) + sum(map(header_bytes, filter(None, self.records.headers)))
            >= LARGE_VALUE_BYTES
        )

    def encode(
        self,
        *,
        shard: int,
        number: int,
        leader_epoch: int,
        at_ms: int,
        term_id: int = 0,
        previous_term_id: int | None = None,
    ) -> bytes:
        """Return the chunk as Parquet bytes with a checksum (headgate.ledger.checksum).

        ``previous_term_id`` None: the term continues.
        """
        size_bytes = [len(key) + len(value) for key, value in zip(self.records.key, self.records.value, strict=True)]
        has_headers = any(self.records.headers)
        if has_headers:
            size_bytes = list(map(add, size_bytes, map(header_bytes, self.records.headers)))
        packed = pack_records(self.records) if 0 < sum(size_bytes) <= self._packed_max_bytes else b""
        header = ChunkHeader(
            format=FORMAT,
            shard=shard,
            number=number,
            leader_epoch=leader_epoch,
            at_ms=at_ms,
            entries=len(self.entries),
            records=len(self.records),
            term_id=term_id,
            previous_term_id=term_id if previous_term_id is None else previous_term_id,
            packed_bytes=len(packed),
        )
        bodies = self._bodies
        facts = [
            fact for entry, layout in zip(self.entries, self._layouts, strict=True) for fact in facts_of(entry, layout)
        ]
        batch = _table(bodies, facts, self.records, size_bytes, SCHEMA if has_headers else SCHEMA_WITHOUT_HEADERS)
        metadata = {METADATA_KEY.decode(): msgspec.json.encode(header).decode()}
        if sum(size_bytes) >= self._pyarrow_threshold_bytes:
            return seal_parquet(_write_large(batch, metadata), packed)
        plain = (
            batch.num_rows <= self._uncompressed_max_rows
            and sum(size_bytes) + sum(map(len, bodies)) <= UNCOMPRESSED_MAX_BYTES
        )
        return seal_parquet(_write_small(batch, metadata, plain=plain), packed)


_few_nulls = lru_cache(maxsize=64)(pa.nulls)
"""Half of the columns of a small chunk are empty. An array never changes."""


def _table(
    bodies: Sequence[bytes],
    facts: Sequence[dict[str, Any]],
    records: RecordColumns,
    size_bytes: Sequence[int],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Return all rows: entries, then facts, then records."""
    rows = len(bodies) + len(facts) + len(records)
    entry_columns = PaddedColumns(rows, 0, len(bodies))
    record_columns = PaddedColumns(rows, rows - len(records), len(records))
    recorded: dict[str, Sequence[Any]] = {
        "fact": [b"record"] * len(records),
        "topic_id": records.topic_id,
        "segment": records.segment,
        "offset": records.offset,
        "timestamp_ms": records.timestamp_ms,
        "size_bytes": size_bytes,
        "key": records.key,
        "value": records.value,
    }

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name == "body":
            return entry_columns.blobs(bodies, kind)
        if name == "headers":
            return record_columns.headers(records.headers, kind)
        values = recorded.get(name)
        stated = [fact.get(name) for fact in facts]
        if any(value is not None for value in stated):
            return nullable([None] * len(bodies) + stated + list(values or [None] * len(records)), kind)
        if not values:
            return _few_nulls(rows, kind) if rows <= FEW_ROWS else pa.nulls(rows, kind)
        return record_columns.integers(values) if kind == INTEGER else record_columns.blobs(values, kind)

    columns = [column(*field) for field in FIELDS if field[0] != "headers" or schema is SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _write_small(batch: pa.RecordBatch, metadata: dict[str, str], *, plain: bool) -> bytes:
    """Write with arro3: pyarrow takes three times as long for a chunk of a few rows, which a client waits for."""
    sink = io.BytesIO()
    write_parquet(
        batch,
        sink,
        key_value_metadata=metadata,
        compression="uncompressed" if plain else COMPRESSION,
        dictionary_enabled=False,
        column_dictionary_enabled=None if plain else dict.fromkeys(DICTIONARY_COLUMNS, True),
        # No reader reads a part of a chunk, so pages within it have no use.
        data_page_row_count_limit=2**31,
        skip_arrow_metadata=True,
    )
    return sink.getvalue()


def _write_large(batch: pa.RecordBatch, metadata: dict[str, str]) -> memoryview:
    """Write with pyarrow: it takes a third of arro3's time for a megabyte and releases the GIL meanwhile."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, batch.schema, compression=COMPRESSION, use_dictionary=list(DICTIONARY_COLUMNS), store_schema=False
    ) as writer:
        writer.write_batch(batch)
        writer.add_key_value_metadata(metadata)
    return memoryview(sink.getvalue())
