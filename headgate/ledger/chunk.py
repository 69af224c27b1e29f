"""The form of a chunk: one Parquet object, one commit.

A chunk is a table of rows. A row with a ``body`` is an entry (headgate.model.entries), for whoever folds the state; a
row with a ``fact`` is a plain statement in columns, for whoever counts (the Spark job) or reads (consumers). One entry
can state several facts. Readers of facts never need a body, readers of bodies never need a fact.

====================  ===========================================================================================
fact                  columns that are set beside ``fact``
====================  ===========================================================================================
``record``            topic_id, segment, offset, key, value, timestamp_ms, size_bytes (of key and value)
``acknowledged``      topic_id, subscription_id, segment, bucket (null: all), offset (first), end_offset,
                      seek_generation
``created``           topic_id, segment (a segment exists from here on)
``sealed``            topic_id, segment, end_offset
``pruned``            topic_id, segment
``topic_deleted``     topic_id
``subscribed``        topic_id, subscription_id, subscription_type (empty: unknown)
``position``          topic_id, subscription_id, segment, offset (everything below counts as acknowledged),
                      seek_generation
``unsubscribed``      topic_id, subscription_id
====================  ===========================================================================================

Of facts with an offset, a record alone has no subscription_id, and a position has no end_offset: they are counted by
these columns, so a further fact sets no offset.

A segment that has no ``position`` for a subscription begins at 0 there. The file's metadata under ``headgate`` is JSON:
format, shard, number, leader_epoch, at_ms (the leader's clock, milliseconds since 1970), entries, records.
Records come last.

This module does no I/O. Raises ChunkError for whatever is not a chunk.
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

from headgate.errors import ChunkError
from headgate.ledger.arrow_columns import PaddedColumns
from headgate.ledger.format_version import check_json_format
from headgate.ledger.record_columns import RecordColumns
from headgate.model import entries as e
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout

FORMAT: Final = 2
METADATA_KEY: Final = b"headgate"
PYARROW_THRESHOLD_BYTES: Final = 64 * 1024
"""From so many bytes of records on, a chunk is written by another library; what it writes reads the same."""
COMPRESSION: Final = "snappy"
DICTIONARY_COLUMNS: Final = ("fact", "subscription_type")
"""They pay on the few distinct facts; keys and values are mostly distinct."""
UNCOMPRESSED_MAX_ROWS: Final = 2
UNCOMPRESSED_MAX_BYTES: Final = 1024
"""Up to so many rows, and bytes of records and entries, dictionaries and compression gain nothing: a batch of a single
record, say. They take a sixth of the writer's time there, on a process that was idle a moment before."""

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
    """What the file's own metadata says of it."""

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
    """Gathers the entries and records of one commit until they are encoded.

    Facts that follow from a layout (which segments a topic has at creation, which children a split makes) are given by
    the caller as ``created`` and ``sealed``, because an entry alone does not know them.
    """

    def __init__(self) -> None:
        self.entries: list[e.AnyEntry] = []
        self.records = RecordColumns()
        self._facts: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: e.AnyEntry, layout: Layout | None = None) -> None:
        """Append ``entry``; ``layout`` is its topic's layout after it was applied, needed where segments come or go."""
        self.entries.append(entry)
        self._facts.extend(facts_of(entry, layout))

    def encode(self, *, shard: int, number: int, leader_epoch: int, at_ms: int) -> bytes:
        """Return the chunk as Parquet bytes."""
        header = ChunkHeader(
            format=FORMAT,
            shard=shard,
            number=number,
            leader_epoch=leader_epoch,
            at_ms=at_ms,
            entries=len(self.entries),
            records=len(self.records),
        )
        return _encode(header, self.entries, self._facts, self.records)


def facts_of(entry: e.AnyEntry, layout: Layout | None) -> list[dict[str, Any]]:
    """Return the facts that ``entry`` states, apart from records, as rows (column → value)."""
    match entry:
        case e.RecordsAcknowledged():
            return [
                {
                    "fact": "acknowledged",
                    "topic_id": entry.topic_id,
                    "subscription_id": entry.subscription_id,
                    "segment": part.segment,
                    "offset": part.first_offset,
                    "end_offset": part.end_offset,
                    "seek_generation": entry.seek_generation,
                    "bucket": bucket,
                }
                for part in entry.ranges
                for bucket in (range(part.first_bucket, part.end_bucket) if part.end_bucket else (None,))
            ]
        case e.TopicCreated():
            assert entry.buckets == KEY_BUCKETS, (
                "no fact says how many buckets a topic has: readers rely on the default"
            )
            return [{"fact": "created", "topic_id": entry.topic_id, "segment": n} for n in range(entry.segments)]
        case e.TopicImported():
            return _imported(entry.topic_id, entry.segments, {})
        case e.LayoutExtended():
            return _imported(entry.topic_id, entry.created, entry.sealed)
        case e.SegmentSplit():
            return _resealed(entry.topic_id, (entry.segment,), (entry.end_offset,), layout)
        case e.SegmentsMerged():
            return _resealed(entry.topic_id, entry.segments, entry.end_offsets, layout)
        case e.SegmentsPruned():
            return [{"fact": "pruned", "topic_id": entry.topic_id, "segment": n} for n in entry.segments]
        case e.TopicDeleted():
            return [{"fact": "topic_deleted", "topic_id": entry.topic_id}]
        case e.SubscriptionCreated():
            subscribed = _subscribed(entry.topic_id, entry.subscription_id, entry.subscription_type)
            return [subscribed, *_positions(entry.topic_id, entry.subscription_id, entry.positions, 0)]
        case e.SubscriptionConfigured():
            return [_subscribed(entry.topic_id, entry.subscription_id, entry.subscription_type)]
        case e.SubscriptionSeek():
            return _positions(entry.topic_id, entry.subscription_id, entry.positions, entry.seek_generation)
        case e.SubscriptionDeleted():
            return [{"fact": "unsubscribed", "topic_id": entry.topic_id, "subscription_id": entry.subscription_id}]
        case _:
            return []


def decode(data: bytes, *, shard: int, number: int) -> Chunk:
    """Return the chunk in ``data``, without its records.

    Raises:
        ChunkError: not Parquet, not ours, another format, or it stands under the wrong shard or number.

    """
    header, table = _open(data, shard=shard, number=number, columns=["body"])
    bodies = table.column("body").drop_null().to_pylist()
    if len(bodies) != header.entries:
        raise ChunkError(
            f"chunk {number} of shard {shard} holds {len(bodies)} entries, its header says {header.entries}"
        )
    try:
        return Chunk(header, tuple(e.decode_entry(body) for body in bodies))
    except msgspec.DecodeError as error:
        raise ChunkError(
            f"chunk {number} of shard {shard} holds an entry that this version cannot read: {error}"
        ) from error


def decode_records(data: bytes, *, shard: int, number: int) -> pa.Table:
    """Return the record rows of a chunk as a table of RECORD_COLUMNS; raises ChunkError like `decode`."""
    header, table = _open(data, shard=shard, number=number, columns=list(RECORD_COLUMNS))
    if len(table) < header.records:
        raise ChunkError(
            f"chunk {number} of shard {shard} holds {len(table)} rows, its header says {header.records} records",
        )
    # Records come last. Taking them by position costs nothing; a filter would cost more than the reading.
    return table.slice(len(table) - header.records)


def decode_header(data: bytes, *, shard: int, number: int) -> ChunkHeader:
    """Return the header of the chunk in ``data`` alone; raises ChunkError like `decode`."""
    return _open(data, shard=shard, number=number, columns=[])[0]


def checked_header(raw: bytes | None, *, shard: int, number: int) -> ChunkHeader:
    """Return the header in ``raw``, the METADATA_KEY of a file's own metadata, if it is that of this chunk.

    Raises:
        LedgerFormatError: the chunk has another format.
        ChunkError: there is none, it cannot be read, or is of another shard or number.

    """
    where = f"chunk {number} of shard {shard}"
    if raw is None:
        raise ChunkError(f"{where} is a Parquet object, but not one of headgate's")
    try:
        check_json_format(where, raw, FORMAT)
        header = msgspec.json.decode(raw, type=ChunkHeader)
    except msgspec.DecodeError as error:
        raise ChunkError(f"{where} has an unreadable header: {error}") from error
    if (header.shard, header.number) != (shard, number):
        raise ChunkError(f"{where} says that it is chunk {header.number} of shard {header.shard}")
    return header


def _open(data: bytes, *, shard: int, number: int, columns: list[str]) -> tuple[ChunkHeader, pa.Table]:
    where = f"chunk {number} of shard {shard}"
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        header = checked_header((file.metadata.metadata or {}).get(METADATA_KEY), shard=shard, number=number)
        return header, file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ChunkError(f"{where} is not a readable Parquet object ({len(data)} bytes): {error}") from error


def _encode(
    header: ChunkHeader,
    entries: Sequence[e.AnyEntry],
    facts: Sequence[dict[str, Any]],
    records: RecordColumns,
) -> bytes:
    rows = len(entries) + len(facts) + len(records)
    entry_columns, record_columns = (
        PaddedColumns(rows, 0, len(entries)),
        PaddedColumns(rows, rows - len(records), len(records)),
    )
    size_bytes = [len(key) + len(value) for key, value in zip(records.key, records.value, strict=True)]
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

    bodies = [e.encode_entry(entry) for entry in entries]

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name == "body":
            return entry_columns.blobs(bodies, kind)
        values = recorded.get(name)
        stated = [fact.get(name) for fact in facts]
        if any(value is not None for value in stated):
            return pa.array([None] * len(entries) + stated + list(values or [None] * len(records)), kind)
        if not values:
            return pa.nulls(rows, kind)
        return record_columns.integers(values) if kind is INTEGER else record_columns.blobs(values, kind)

    batch = pa.RecordBatch.from_arrays([column(name, kind) for name, kind in COLUMNS], schema=SCHEMA)
    metadata = {METADATA_KEY.decode(): msgspec.json.encode(header).decode()}
    recorded_bytes = sum(size_bytes)
    if recorded_bytes >= PYARROW_THRESHOLD_BYTES:
        return _write_large(batch, metadata)
    plain = rows <= UNCOMPRESSED_MAX_ROWS and recorded_bytes + sum(map(len, bodies)) <= UNCOMPRESSED_MAX_BYTES
    return _write_small(batch, metadata, plain=plain)


def _write_small(batch: pa.RecordBatch, metadata: dict[str, str], *, plain: bool) -> bytes:
    """Write with arro3: on a chunk of a few rows, which a client waits for, pyarrow takes three times as long."""
    sink = io.BytesIO()
    write_parquet(
        batch,
        sink,
        key_value_metadata=metadata,
        compression="uncompressed" if plain else COMPRESSION,
        dictionary_enabled=False,
        column_dictionary_enabled=None if plain else dict.fromkeys(DICTIONARY_COLUMNS, True),
        # Pages are for readers who take part of a chunk; nobody does.
        data_page_row_count_limit=2**31,
        skip_arrow_metadata=True,
    )
    return sink.getvalue()


def _write_large(batch: pa.RecordBatch, metadata: dict[str, str]) -> bytes:
    """Write with pyarrow: on a megabyte it takes a third of arro3's time, and lets other threads run meanwhile."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, SCHEMA, compression=COMPRESSION, use_dictionary=list(DICTIONARY_COLUMNS), store_schema=False
    ) as writer:
        writer.write_batch(batch)
        writer.add_key_value_metadata(metadata)
    return bytes(sink.getvalue())


def _resealed(
    topic_id: int,
    sealed: Iterable[int],
    end_offsets: Iterable[int],
    layout: Layout | None,
) -> list[dict[str, Any]]:
    assert layout is not None, "a split or merge needs its topic's layout"
    sealed = tuple(sealed)
    rows: list[dict[str, Any]] = [
        {"fact": "sealed", "topic_id": topic_id, "segment": segment, "end_offset": end}
        for segment, end in zip(sealed, end_offsets, strict=True)
    ]
    children = layout.segments[sealed[0]].children
    rows += [{"fact": "created", "topic_id": topic_id, "segment": child} for child in children]
    return rows


def _imported(topic_id: int, created: Iterable[e.ImportedSegment], sealed: dict[int, int]) -> list[dict[str, Any]]:
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


def _subscribed(topic_id: int, subscription_id: int, kind: str | None) -> dict[str, Any]:
    return {
        "fact": "subscribed",
        "topic_id": topic_id,
        "subscription_id": subscription_id,
        "subscription_type": kind or "",
    }


def _positions(
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
