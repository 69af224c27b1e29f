"""Encode and decode a chunk: one Parquet object, one commit.

A row with a ``body`` is an entry (headgate.model.entries), which daemons fold into state. A row
with a ``fact`` states a fact in columns: Spark jobs count facts, consumers read records. One entry
can state several facts. Readers of facts never need a body, and readers of bodies never a fact.
docs/ledger.md lists the facts and their columns.

* Of the facts with an offset, only a record has no subscription_id, and only a position has one and
  no end_offset. Counting distinguishes them by these columns: a new fact must not set an offset.
* A segment without a ``position`` fact for a subscription begins at 0 there.
* Records are the last rows.
* ``at_ms`` in the header is the leader's clock, milliseconds since 1970.

No I/O. Raises LedgerError for an object that is damaged or not a chunk, LedgerFormatError for
another format.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from arro3.io import write_parquet

from headgate.errors import LedgerError
from headgate.ledger.arrow_columns import PaddedColumns, nullable
from headgate.ledger.checksum import seal_parquet
from headgate.ledger.paths import chunk_path
from headgate.ledger.record_columns import RecordColumns
from headgate.ledger.sealed_parquet import open_sealed
from headgate.model import entries as e
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout

FORMAT: Final = 3
METADATA_KEY: Final = b"headgate"
PYARROW_THRESHOLD_BYTES: Final = 64 * 1024
"""Chunks with at least this many bytes of records are written with pyarrow instead of arro3. Readers see no difference.
"""
LARGE_RECORDS: Final = 1000
LARGE_ENTRY_BYTES: Final = 8 * 1024
LARGE_VALUE_BYTES: Final = 256 * 1024
COMPRESSION: Final = "snappy"
DICTIONARY_COLUMNS: Final = ("fact", "subscription_type")
"""Columns with few distinct values. Keys and values are mostly distinct, so a dictionary would not pay."""
UNCOMPRESSED_MAX_ROWS: Final = 2
UNCOMPRESSED_MAX_BYTES: Final = 1024
"""At most this many rows, and bytes of records and entries, are written without dictionaries and
compression. They save nothing there, for example for a single record, and take a sixth of the
writer's time in a process that was idle."""

INTEGER: Final = pa.int64()
SCHEMA: Final = pa.schema(
    [
        pa.field("fact", pa.string()),
        pa.field("topic_id", INTEGER),
        pa.field("segment", INTEGER),
        pa.field("offset", INTEGER),
        pa.field("end_offset", INTEGER),
        pa.field("subscription_id", INTEGER),
        pa.field("subscription_type", pa.string()),
        pa.field("seek_generation", INTEGER),
        pa.field("bucket", INTEGER),
        pa.field("timestamp_ms", INTEGER),
        pa.field("size_bytes", INTEGER),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("body", pa.binary()),
    ],
)
COLUMNS: Final = tuple((field.name, INTEGER if field.type == INTEGER else field.type) for field in SCHEMA)
RECORD_COLUMNS: Final = ("fact", "topic_id", "segment", "offset", "timestamp_ms", "key", "value")


class ChunkHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a chunk."""

    format: int
    shard: int
    number: int
    leader_epoch: int
    at_ms: int
    entries: int
    records: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One commit: its header and its entries, in order."""

    header: ChunkHeader
    entries: tuple[e.AnyEntry, ...]


class ChunkBuilder:
    """Collects the entries and records of one commit until they are encoded."""

    def __init__(
        self,
        *,
        pyarrow_threshold_bytes: int = PYARROW_THRESHOLD_BYTES,
        uncompressed_max_rows: int = UNCOMPRESSED_MAX_ROWS,
    ) -> None:
        """Create an empty builder; see the constants for the two limits."""
        self.entries: list[e.AnyEntry] = []
        self.records = RecordColumns()
        self._bodies: list[bytes] = []
        self._layouts: list[Layout | None] = []
        self._pyarrow_threshold_bytes = pyarrow_threshold_bytes
        self._uncompressed_max_rows = uncompressed_max_rows

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
            len(self.records) >= LARGE_RECORDS
            or sum(map(len, self._bodies)) >= LARGE_ENTRY_BYTES
            or sum(map(len, self.records.value)) >= LARGE_VALUE_BYTES
        )

    def encode(self, *, shard: int, number: int, leader_epoch: int, at_ms: int) -> bytes:
        """Return the chunk as Parquet bytes with a checksum (headgate.ledger.checksum)."""
        header = ChunkHeader(
            format=FORMAT,
            shard=shard,
            number=number,
            leader_epoch=leader_epoch,
            at_ms=at_ms,
            entries=len(self.entries),
            records=len(self.records),
        )
        size_bytes = [len(key) + len(value) for key, value in zip(self.records.key, self.records.value, strict=True)]
        bodies = self._bodies
        facts = [
            fact for entry, layout in zip(self.entries, self._layouts, strict=True) for fact in facts_of(entry, layout)
        ]
        batch = _table(bodies, facts, self.records, size_bytes)
        metadata = {METADATA_KEY.decode(): msgspec.json.encode(header).decode()}
        if sum(size_bytes) >= self._pyarrow_threshold_bytes:
            return seal_parquet(_write_large(batch, metadata))
        plain = (
            batch.num_rows <= self._uncompressed_max_rows
            and sum(size_bytes) + sum(map(len, bodies)) <= UNCOMPRESSED_MAX_BYTES
        )
        return seal_parquet(_write_small(batch, metadata, plain=plain))


def facts_of(entry: e.AnyEntry, layout: Layout | None) -> list[dict[str, Any]]:
    """Return the facts that ``entry`` states, except records, as rows (column → value)."""
    match entry:
        case e.RecordsAcknowledged():
            return [
                {
                    "fact": "acknowledged",
                    "topic_id": entry.topic_id,
                    "subscription_id": entry.subscription_id,
                    "segment": acknowledged.segment,
                    "offset": acknowledged.first_offset,
                    "end_offset": acknowledged.end_offset,
                    "seek_generation": entry.seek_generation,
                    "bucket": bucket,
                }
                for acknowledged in entry.ranges
                for bucket in (
                    range(acknowledged.first_bucket, acknowledged.end_bucket) if acknowledged.end_bucket else (None,)
                )
            ]
        case e.TopicCreated():
            assert entry.buckets == KEY_BUCKETS, (
                "no fact states the number of buckets of a topic: readers rely on the default"
            )
            return [{"fact": "created", "topic_id": entry.topic_id, "segment": n} for n in range(entry.segments)]
        case e.TopicImported():
            return _import_facts(entry.topic_id, entry.segments, {})
        case e.LayoutExtended():
            return _import_facts(entry.topic_id, entry.created, entry.sealed)
        case e.SegmentSplit():
            return _seal_facts(entry.topic_id, (entry.segment,), (entry.end_offset,), layout)
        case e.SegmentsMerged():
            return _seal_facts(entry.topic_id, entry.segments, entry.end_offsets, layout)
        case e.SegmentsPruned():
            return [{"fact": "pruned", "topic_id": entry.topic_id, "segment": n} for n in entry.segments]
        case e.TopicDeleted():
            return [{"fact": "topic_deleted", "topic_id": entry.topic_id}]
        case e.SubscriptionCreated():
            subscribed = _subscribed_fact(entry.topic_id, entry.subscription_id, entry.subscription_type)
            return [subscribed, *_position_facts(entry.topic_id, entry.subscription_id, entry.positions, 0)]
        case e.SubscriptionConfigured():
            return [_subscribed_fact(entry.topic_id, entry.subscription_id, entry.subscription_type)]
        case e.SubscriptionSeek():
            return _position_facts(entry.topic_id, entry.subscription_id, entry.positions, entry.seek_generation)
        case e.SubscriptionDeleted():
            return [{"fact": "unsubscribed", "topic_id": entry.topic_id, "subscription_id": entry.subscription_id}]
        case _:
            return []


def decode(data: bytes, *, shard: int, number: int) -> Chunk:
    """Return the chunk in ``data``, without its records.

    Raises:
        LedgerFormatError: the chunk has another format.
        LedgerError: damaged, not written by headgate, or of another shard or number. The text begins with its path.

    """
    header, table = _read(data, shard=shard, number=number, columns=["body"])
    bodies = table.column("body").drop_null().to_pylist()
    if len(bodies) != header.entries:
        raise LedgerError(f"{chunk_path(shard, number)} has {len(bodies)} entries, its header states {header.entries}")
    try:
        return Chunk(header, tuple(e.decode_entry(body) for body in bodies))
    except msgspec.DecodeError as error:
        raise LedgerError(f"{chunk_path(shard, number)} has an entry that this version cannot read: {error}") from error


def decode_records(data: bytes, *, shard: int, number: int) -> pa.Table:
    """Return the record rows of a chunk as a table of RECORD_COLUMNS; raises LedgerError like `decode`."""
    header, table = _read(data, shard=shard, number=number, columns=list(RECORD_COLUMNS))
    if len(table) < header.records:
        raise LedgerError(
            f"{chunk_path(shard, number)} has {len(table)} rows, its header states {header.records} records",
        )
    # Records are the last rows. A slice costs nothing; a filter would cost more than reading the table.
    return table.slice(len(table) - header.records)


def decode_header(data: bytes, *, shard: int, number: int) -> ChunkHeader:
    """Return only the header of the chunk in ``data``; raises LedgerError like `decode`."""
    return decode_header_and_rows(data, shard=shard, number=number)[0]


def decode_header_and_rows(data: bytes, *, shard: int, number: int) -> tuple[ChunkHeader, int]:
    """Return the header and the number of rows of the chunk in ``data``; raises LedgerError like `decode`."""
    header, file = _open(data, shard=shard, number=number)
    return header, file.metadata.num_rows


def _read(data: bytes, *, shard: int, number: int, columns: list[str]) -> tuple[ChunkHeader, pa.Table]:
    header, file = _open(data, shard=shard, number=number)
    try:
        table = file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{chunk_path(shard, number)} cannot be read: {error}") from error
    if table.column_names != columns:
        raise LedgerError(f"{chunk_path(shard, number)} has only the columns {table.column_names} of {columns}")
    return header, table


def _open(data: bytes, *, shard: int, number: int) -> tuple[ChunkHeader, pq.ParquetFile]:
    path = chunk_path(shard, number)
    raw, file = open_sealed(data, path, METADATA_KEY, FORMAT)
    try:
        header = msgspec.json.decode(raw, type=ChunkHeader)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from error
    if (header.shard, header.number) != (shard, number):
        raise LedgerError(f"{path} states that it is chunk {header.number} of shard {header.shard}")
    return header, file


def _table(
    bodies: Sequence[bytes], facts: Sequence[dict[str, Any]], records: RecordColumns, size_bytes: Sequence[int]
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
        values = recorded.get(name)
        stated = [fact.get(name) for fact in facts]
        if any(value is not None for value in stated):
            return nullable([None] * len(bodies) + stated + list(values or [None] * len(records)), kind)
        if not values:
            return pa.nulls(rows, kind)
        return record_columns.integers(values) if kind is INTEGER else record_columns.blobs(values, kind)

    return pa.RecordBatch.from_arrays([column(name, kind) for name, kind in COLUMNS], schema=SCHEMA)


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
        sink, SCHEMA, compression=COMPRESSION, use_dictionary=list(DICTIONARY_COLUMNS), store_schema=False
    ) as writer:
        writer.write_batch(batch)
        writer.add_key_value_metadata(metadata)
    return memoryview(sink.getvalue())


def _seal_facts(
    topic_id: int,
    sealed: Iterable[int],
    end_offsets: Iterable[int],
    layout: Layout | None,
) -> list[dict[str, Any]]:
    assert layout is not None, "a split or merge requires its topic's layout"
    sealed = tuple(sealed)
    rows: list[dict[str, Any]] = [
        {"fact": "sealed", "topic_id": topic_id, "segment": segment, "end_offset": end}
        for segment, end in zip(sealed, end_offsets, strict=True)
    ]
    children = layout.segments[sealed[0]].children
    rows += [{"fact": "created", "topic_id": topic_id, "segment": child} for child in children]
    return rows


def _import_facts(topic_id: int, created: Iterable[e.ImportedSegment], sealed: dict[int, int]) -> list[dict[str, Any]]:
    created = tuple(created)
    ends = sealed | {segment.segment: segment.end_offset for segment in created if segment.end_offset is not None}
    rows: list[dict[str, Any]] = [
        {"fact": "created", "topic_id": topic_id, "segment": segment.segment} for segment in created
    ]
    rows += [
        {"fact": "sealed", "topic_id": topic_id, "segment": segment, "end_offset": end}
        for segment, end in sorted(ends.items())
    ]
    return rows


def _subscribed_fact(topic_id: int, subscription_id: int, kind: str | None) -> dict[str, Any]:
    return {
        "fact": "subscribed",
        "topic_id": topic_id,
        "subscription_id": subscription_id,
        "subscription_type": kind or "",
    }


def _position_facts(
    topic_id: int,
    subscription_id: int,
    positions: dict[int, int],
    seek_generation: int,
) -> list[dict[str, Any]]:
    return [
        {
            "fact": "position",
            "topic_id": topic_id,
            "subscription_id": subscription_id,
            "segment": segment,
            "offset": offset,
            "seek_generation": seek_generation,
        }
        for segment, offset in sorted(positions.items())
    ]
