"""The format of a chunk, and how to read it: one Parquet object, one commit.

A row with a ``body`` is an entry (headgate.model.entries), which daemons fold into state. A row
with a ``fact`` states a fact in columns (`facts_of`): Spark jobs count facts, consumers
read records. Readers of facts never need a body, and readers of bodies never a fact.

* Entries are the first rows, records the last.
* ``at_ms`` in the header is the leader's clock, milliseconds since 1970.
* A small chunk contains its entries and records twice: in columns, and packed in MessagePack, which is decoded in a
  tenth of the time that a Parquet reader needs for any object.

No I/O. Raises LedgerError for an object that is damaged or not a chunk, LedgerFormatError for
another format. Leaders write chunks with controller.chunk_writer.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Self

import msgspec

from headgate.errors import LedgerError
from headgate.ledger.checksum import SEAL_BYTES, parquet_footer_start
from headgate.ledger.objects import check_sealed, chunk_path
from headgate.ledger.parquet_columns import Columns, read_columns, read_first_rows
from headgate.model import entries as e
from headgate.model.headers import Headers
from headgate.model.layout import KEY_BUCKETS, Layout

FORMAT: Final = 5
METADATA_KEY: Final = b"headgate"
COLUMNS: Final = {
    "fact": "string",
    "topic_id": "int64",
    "segment": "int64",
    "offset": "int64",
    "end_offset": "int64",
    "subscription_id": "int64",
    "subscription_type": "string",
    "seek_generation": "int64",
    "bucket": "int64",
    "timestamp_ms": "int64",
    "size_bytes": "int64",
    "key": "binary",
    "value": "binary",
    "headers": "list<struct<name: string, value: binary>>",
    "body": "binary",
}
"""Column → Arrow type, in the order of a chunk. A chunk whose records have no headers does not have that column."""
_PACKER: Final = msgspec.msgpack.Encoder()
_PACKED: Final = msgspec.msgpack.Decoder(
    tuple[list[int], list[int], list[int], list[int], list[bytes], list[bytes], list[Headers]]
)
_PACKED_BODIES: Final = msgspec.msgpack.Decoder(list[bytes])
_COLUMNS: Final = attrgetter("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")
RECORD_COLUMNS: Final = ("fact", "topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")


@dataclass(slots=True)
class RecordColumns:
    """Records of one chunk, column by column, in the order in which the leader accepted them."""

    topic_id: list[int] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    timestamp_ms: list[int] = field(default_factory=list)
    key: list[bytes] = field(default_factory=list)
    value: list[bytes] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def extend(self, other: Self) -> None:
        for column, more in zip(_COLUMNS(self), _COLUMNS(other), strict=True):
            column.extend(more)

    def __len__(self) -> int:
        return len(self.offset)


class ChunkHeader(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    shard: int
    number: int
    leader_epoch: int
    at_ms: int
    entries: int
    records: int
    term_id: int = 0
    """Id of the term that wrote the chunk (`headgate.model.entries.TermStarted`)."""
    previous_term_id: int = 0
    """Id of the term that wrote the chunk before: another one if a term begins here, 0 if this is chunk 1."""
    packed_bytes: int = 0
    """Length of the packed records, which end where the checksum begins; 0: there are none."""
    packed_bodies_bytes: int = 0
    """Length of the packed entries, which end where the packed records begin; 0: there are none."""
    facts: int = -1
    """How many rows state a fact that is no record; -1: an older version, which does not say it, wrote the chunk."""

    def is_of(self, at_ms: int, term_id: int) -> bool:
        """Return whether it is of this time and term; 0: the term is not known. Times may be equal for hours."""
        return self.at_ms == at_ms and term_id in (0, self.term_id)


@dataclass(frozen=True, slots=True)
class Chunk:
    header: ChunkHeader
    entries: tuple[e.AnyEntry, ...]


def decode(data: bytes, *, shard: int, number: int) -> Chunk:
    """Return the chunk in ``data``, without its records.

    Raises LedgerFormatError or LedgerError (damaged, not written by headgate, or of another shard or number. The text
    begins with its path).
    """
    header = decode_header(data, shard=shard, number=number)
    path = chunk_path(shard, number)
    try:
        bodies = read_bodies(data, path, header)
        return Chunk(header, tuple(map(e.decode_entry, bodies)))
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an entry that this version cannot read: {error}") from error


def read_bodies(data: bytes, path: str, header: ChunkHeader) -> list[bytes]:
    """Return the encoded entries of a chunk; raises LedgerError unless there are as many as its header states.

    Raises msgspec.DecodeError for packed ones that cannot be read.
    """
    if header.packed_bodies_bytes:
        end = parquet_footer_start(data) - SEAL_BYTES - header.packed_bytes
        bodies = _PACKED_BODIES.decode(data[end - header.packed_bodies_bytes : end])
    else:
        # The row after the entries, if there is one, states a fact.
        rows = read_first_rows(data, path, header.entries + 1)
        bodies = rows.slice(0, rows.values("body")).blobs("body")
    if len(bodies) != header.entries:
        raise LedgerError(f"{path} has {len(bodies)} entries, its header states {header.entries}")
    return bodies


def stored_records(data: bytes, *, shard: int, number: int) -> tuple[ChunkHeader, RecordColumns | Columns]:
    """Return the header and the records of a chunk, values or columns. Raises LedgerError like `decode`."""
    header = decode_header(data, shard=shard, number=number)
    if not header.records:
        return header, RecordColumns()
    if header.packed_bytes:
        end = parquet_footer_start(data) - SEAL_BYTES
        with suppress(msgspec.DecodeError):
            records = RecordColumns(*_PACKED.decode(data[end - header.packed_bytes : end]))
            if {*map(len, _COLUMNS(records))} == {header.records}:
                return header, records
        raise LedgerError(f"{chunk_path(shard, number)} has unreadable packed records, or not {header.records}")
    return header, _record_rows(data, header)


def decode_records(data: bytes, *, shard: int, number: int) -> tuple[ChunkHeader, RecordColumns]:
    """Return the header and the records of a chunk; raises LedgerError like `decode`."""
    header, rows = stored_records(data, shard=shard, number=number)
    if isinstance(rows, RecordColumns):
        return header, rows
    names = "topic_id", "segment", "offset", "timestamp_ms"
    topic_ids, segments, offsets, timestamps_ms = (rows.integers(name).tolist() for name in names)
    keys, values = rows.blobs("key"), rows.blobs("value")
    return header, RecordColumns(topic_ids, segments, offsets, timestamps_ms, keys, values, rows.headers())


def pack_records(records: RecordColumns) -> bytes:
    """Return the packed form of the records of a chunk."""
    return _PACKER.encode(_COLUMNS(records))


def open_records(data: bytes, *, shard: int, number: int) -> tuple[ChunkHeader, Columns]:
    """Return the header and the rows of the records of a chunk; raises LedgerError like `decode`."""
    header = decode_header(data, shard=shard, number=number)
    return header, _record_rows(data, header)


def _record_rows(data: bytes, header: ChunkHeader) -> Columns:
    path = chunk_path(header.shard, header.number)
    rows = read_columns(data, path)
    if len(rows) < header.records:
        raise LedgerError(f"{path} has {len(rows)} rows, its header states {header.records} records")
    return rows.last(header.records)


def decode_header(data: bytes, *, shard: int, number: int) -> ChunkHeader:
    """Return only the header of the chunk in ``data``; raises LedgerError like `decode`."""
    path = chunk_path(shard, number)
    raw = check_sealed(data, path, METADATA_KEY, FORMAT)
    try:
        header = msgspec.json.decode(raw, type=ChunkHeader)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from error
    if (header.shard, header.number) != (shard, number):
        raise LedgerError(f"{path} states that it is chunk {header.number} of shard {header.shard}")
    return header


def facts_of(entry: e.AnyEntry, layout: Layout | None) -> list[dict[str, Any]]:
    """Return the facts that ``entry`` states, except records, as rows (column → value).

    So Spark and consumers never decode entries. One entry can state several facts. docs/ledger.md lists them and their
    columns.

    * Of the facts with an offset, only a record has no subscription_id, and only a position has one and
      no end_offset. Counting distinguishes them by these columns: a new fact must not set an offset.
    * A segment without a ``position`` fact for a subscription begins at 0 there.
    """
    match entry:
        case e.RecordsAcknowledged():
            return [
                _fact(
                    "acknowledged",
                    entry.topic_id,
                    segment=each.segment,
                    subscription_id=entry.subscription_id,
                    offset=each.first_offset,
                    end_offset=each.end_offset,
                    seek_generation=entry.seek_generation,
                    bucket=bucket,
                )
                for each in entry.ranges
                for bucket in (range(each.first_bucket, each.end_bucket) if each.end_bucket else (None,))
            ]
        case e.TopicCreated():
            assert entry.buckets == KEY_BUCKETS, (
                "no fact states the number of buckets of a topic: readers rely on the default"
            )
            return [_fact("created", entry.topic_id, segment=segment) for segment in range(entry.segments)]
        case e.TopicImported():
            return _import_facts(entry.topic_id, entry.segments, {})
        case e.LayoutExtended():
            return _import_facts(entry.topic_id, entry.created, entry.sealed)
        case e.SegmentSplit() | e.SegmentRolled():
            return _seal_facts(entry.topic_id, {entry.segment: entry.end_offset}, layout)
        case e.SegmentsMerged():
            return _seal_facts(entry.topic_id, dict(zip(entry.segments, entry.end_offsets, strict=True)), layout)
        case e.SegmentsPruned():
            return [_fact("pruned", entry.topic_id, segment=segment) for segment in entry.segments]
        case e.TopicDeleted():
            return [_fact("topic_deleted", entry.topic_id)]
        case e.SubscriptionCreated():
            return [_subscribed_fact(entry), *_position_facts(entry, 0)]
        case e.SubscriptionConfigured():
            return [_subscribed_fact(entry)]
        case e.SubscriptionSeek():
            return _position_facts(entry, entry.seek_generation)
        case e.SubscriptionDeleted():
            return [_fact("unsubscribed", entry.topic_id, subscription_id=entry.subscription_id)]
        case _:
            return []


def _fact(fact: str, topic_id: int, **columns: int | str | None) -> dict[str, Any]:
    return {"fact": fact, "topic_id": topic_id, **columns}


def _seal_facts(topic_id: int, ends: Mapping[int, int], layout: Layout | None) -> list[dict[str, Any]]:
    assert layout is not None, "a split or merge requires its topic's layout"
    rows = [_fact("sealed", topic_id, segment=segment, end_offset=end) for segment, end in ends.items()]
    return rows + [_fact("created", topic_id, segment=child) for child in layout.segments[next(iter(ends))].children]


def _import_facts(topic_id: int, created: Sequence[e.ImportedSegment], sealed: dict[int, int]) -> list[dict[str, Any]]:
    ends = sealed | {segment.segment: segment.end_offset for segment in created if segment.end_offset is not None}
    rows = [_fact("created", topic_id, segment=segment.segment) for segment in created]
    return rows + [_fact("sealed", topic_id, segment=segment, end_offset=end) for segment, end in sorted(ends.items())]


def _subscribed_fact(entry: e.SubscriptionCreated | e.SubscriptionConfigured) -> dict[str, Any]:
    kind = entry.subscription_type or ""
    return _fact("subscribed", entry.topic_id, subscription_id=entry.subscription_id, subscription_type=kind)


def _position_facts(entry: e.SubscriptionCreated | e.SubscriptionSeek, seek_generation: int) -> list[dict[str, Any]]:
    of_subscription = {"subscription_id": entry.subscription_id, "seek_generation": seek_generation}
    positions = sorted(entry.positions.items())
    return [
        _fact("position", entry.topic_id, segment=segment, offset=at, **of_subscription) for segment, at in positions
    ]
