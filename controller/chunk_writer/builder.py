"""Encode a chunk: one Parquet object, one commit.

A row with a ``body`` is an entry, a row with a ``fact`` states a fact (headgate.ledger.chunk).
Entries come first, records last. headgate.ledger.chunk reads chunks and defines their format.

No I/O.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from operator import add
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from headgate.ledger.checksum import sealed
from headgate.ledger.chunk import COLUMNS, FORMAT, METADATA_KEY, ChunkHeader, RecordColumns, facts_of, pack_records
from headgate.model import entries as e
from headgate.model.headers import Headers, header_bytes
from headgate.model.layout import Layout

MARK: Final = b"PAR1"
CREATED_BY: Final = b"headgate version 1 (build 1)"
"""In the form that readers parse."""
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
INT64, BYTE_ARRAY = 2, 6
UTF8, LIST = 0, 3
"""Repetitions, kinds of values and annotations, by Parquet's numbers."""
MIN_COMPRESSED_BYTES: Final = 128
"""Smaller pages, and those that would not become smaller, are not compressed."""
SAMPLED_PAGE_BYTES: Final = 128 * 1024
SAMPLED_PARTS: Final = 16
"""Of each part of a page at least as large, a sixteenth is compressed first, to see whether compression pays."""
_I32, _I64, _BYTES, _LIST, _STRUCT, _STOP = 5, 6, 8, 9, 12, b"\0"
"""Types of Thrift's compact protocol, and the end of a struct."""
_LENGTH: Final = Struct("<I").pack
_SNAPPY: Final = pa.Codec("snappy")
_PLAIN_RLE = b"\x15\x00\x15\x06\x15\x06"
"""Three fields: the encodings of values and of both levels."""


class Page(NamedTuple):
    """All rows of a column."""

    rows: int
    """Or elements of lists, and rows without one."""
    levels: bytes
    values: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A column, or a group of columns."""

    name: str
    kind: int | None = None
    """None: a group."""
    annotation: int | None = None
    repetition: int = OPTIONAL
    children: tuple["Node", ...] = ()

    def leaves(self, above: tuple[str, ...] = ()) -> list[bytes]:
        """Return kind, encodings and path of each column."""
        path = (*above, self.name)
        if self.kind is None:
            return [leaf for child in self.children for leaf in child.leaves(path)]
        names = [_varint(len(name)) + name.encode() for name in path]
        return [_integer(1, _I32, self.kind) + _list(1, _I32, [b"\0", b"\6"]) + _list(1, _BYTES, names)]

    def elements(self) -> list[bytes]:
        """Return this node and all below it, as in a footer."""
        kind = b"" if self.kind is None else _integer(1, _I32, self.kind)
        repetition = _integer(2 if kind else 3, _I32, self.repetition)
        children = _integer(1, _I32, len(self.children)) if self.children else b""
        annotation = b"" if self.annotation is None else _integer(1 if children else 2, _I32, self.annotation)
        own = b"".join((kind, repetition, _blob(1, self.name.encode()), children, annotation, _STOP))
        return [own, *(element for child in self.children for element in child.elements())]


class ParquetWriter:
    """Write one row group as Parquet: one page of plain values for each column, then the footer.

    A leader writes an object for each commit, most of them with a few rows, and clients wait for it. Libraries take
    many times as long for those, because they first need a table. Levels are stored as runs, so a column of nulls
    takes some bytes. The format: https://parquet.apache.org/docs/file-format
    """

    def __init__(self, columns: Sequence[Node]) -> None:
        self._leaves = [leaf for column in columns for leaf in column.leaves()]
        root = Node("schema", repetition=REQUIRED, children=tuple(columns))
        self._schema = _integer(1, _I32, 1) + _list(1, _STRUCT, root.elements())

    def write(self, pages: Sequence[Page], rows: int, metadata: dict[str, str]) -> tuple[list[bytes], bytes]:
        """Return an object up to its footer in parts, and the footer."""
        pieces, columns, at = [MARK], [], len(MARK)
        for leaf, (values_count, levels, values) in zip(self._leaves, pages, strict=True):
            body = (levels, *values)
            stored = _compressed(body)
            stored_bytes = sum(map(len, stored))
            header, sizes = _sizes(values_count, sum(map(len, body)), stored_bytes, stored is not body)
            pieces += (header, *stored)
            # A column chunk: an offset that readers ignore, and its metadata.
            columns.append(b"\x26\x00\x1c" + leaf + sizes + _integer(2, _I64, at) + _STOP + _STOP)
            at += len(header) + stored_bytes
        count = _integer(1, _I64, rows)
        group = b"".join((_list(1, _STRUCT, columns), _integer(1, _I64, at), count, _STOP))
        pairs = [_blob(1, key.encode()) + _blob(1, value.encode()) + _STOP for key, value in metadata.items()]
        lists = _list(1, _STRUCT, [group]) + _list(1, _STRUCT, pairs)
        footer = b"".join((self._schema, count, lists, _blob(1, CREATED_BY), _STOP))
        return pieces, b"".join((footer, _LENGTH(len(footer)), MARK))


def _compressed(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return a page compressed, if that pays, else ``parts`` as they are: a copy of large ones takes 0.3 µs for a KB.

    Snappy takes 0.6 µs for a KB of random bytes, in vain.
    """
    size_bytes = sum(map(len, parts))
    if size_bytes < MIN_COMPRESSED_BYTES:
        return parts
    if size_bytes >= SAMPLED_PAGE_BYTES:
        sampled = [part[: len(part) // SAMPLED_PARTS] for part in parts]
        if sum(len(_SNAPPY.compress(each, asbytes=True)) for each in sampled) >= sum(map(len, sampled)):
            return parts
    compressed = bytes(_SNAPPY.compress(b"".join(parts), asbytes=True))
    return (compressed,) if len(compressed) < size_bytes else parts


def integers(values: Sequence[int]) -> bytes:
    """Return 64-bit integers as plain values; raises OverflowError for one that does not fit."""
    return array("q", values).tobytes()


def blobs(values: Sequence[bytes], lengths: Sequence[int] | None = None) -> bytes:
    """Return bytes, or strings in UTF-8, as plain values. ``lengths``: those of ``values``, if they are known."""
    lengths = list(map(len, values)) if lengths is None else lengths
    if len(equal := set(lengths)) == 1:
        return _LENGTH(*equal).join((b"", *values))
    found = [b""] * (2 * len(values))
    found[::2], found[1::2] = map(_LENGTH, lengths), values
    return b"".join(found)


def levels(*runs: tuple[int, int]) -> bytes:
    """Return definition or repetition levels from runs of (level, how many)."""
    found = b"".join([_varint(count << 1) + bytes((level,)) for level, count in runs if count])
    return _LENGTH(len(found)) + found


@lru_cache(maxsize=4096)
def _sizes(count: int, body_bytes: int, stored_bytes: int, compressed: bool) -> tuple[bytes, bytes]:
    """Return the header of a page, and the fields about sizes of a column with one page."""
    both = _integer(1, _I32, body_bytes) + _integer(1, _I32, stored_bytes)
    header = b"".join((_integer(1, _I32, 0), both, b"\x2c", _integer(1, _I32, count), _PLAIN_RLE, _STOP, _STOP))
    numbers = count, len(header) + body_bytes, len(header) + stored_bytes
    return header, _integer(1, _I32, int(compressed)) + b"".join([_integer(1, _I64, each) for each in numbers])


# Thrift's compact protocol. A field states how far its number is behind that of the field before.


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


@lru_cache(maxsize=4096)
def _integer(step: int, kind: int, number: int) -> bytes:
    return bytes((step << 4 | kind,)) + _varint(number << 1)


def _blob(step: int, content: bytes) -> bytes:
    return bytes((step << 4 | _BYTES,)) + _varint(len(content)) + content


def _list(step: int, kind: int, items: Sequence[bytes]) -> bytes:
    return bytes((step << 4 | _LIST, 0xF0 | kind)) + _varint(len(items)) + b"".join(items)


AHEAD_BYTES: Final = 256 * 1024
"""From so many bytes on, records are encoded while a chunk collects."""
PART_BYTES: Final = 256
"""What a record or a header counts besides its bytes."""
LARGE_ENTRY_BYTES: Final = 8 * 1024
PACKED_MAX_BYTES: Final = 4 * 1024
"""Up to so many bytes of records, a chunk contains them in MessagePack, too; and up to so many of entries, these."""

_KINDS: Final = {"int64": (INT64, None), "string": (BYTE_ARRAY, UTF8), "binary": (BYTE_ARRAY, None)}
"""Arrow type → kind of values, and annotation."""
_HEADER: Final = Node("element", children=(Node("name", *_KINDS["string"]), Node("value", *_KINDS["binary"])))
HEADERS: Final = Node("headers", annotation=LIST, children=(Node("list", repetition=REPEATED, children=(_HEADER,)),))
_NODES: Final = {name: HEADERS if name == "headers" else Node(name, *_KINDS[kind]) for name, kind in COLUMNS.items()}
WITHHEADERS: Final = ParquetWriter(list(_NODES.values()))
WITHOUTHEADERS: Final = ParquetWriter([node for node in _NODES.values() if node is not HEADERS])

_RECORD: Final = blobs([b"record"])
_COLUMNS: Final = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value")


class ChunkBuilder:
    """Collects the entries and records of one commit until they are encoded."""

    def __init__(self, *, packed_max_bytes: int = PACKED_MAX_BYTES) -> None:
        """Create an empty builder; see the constant for the limit."""
        self.entries: list[e.AnyEntry] = []
        self.records = RecordColumns()
        self._columns: defaultdict[str, list[bytes]] = defaultdict(list)
        """Of the first `_encoded` records, whose keys, values and headers have `_size_bytes`."""
        self._encoded = self._size_bytes = self._waiting_bytes = 0
        self._bodies: list[bytes] = []
        self._layouts: list[Layout | None] = []
        self._packed_max_bytes = packed_max_bytes

    def add(self, entry: e.AnyEntry, layout: Layout | None = None) -> None:
        """Append ``entry``; ``layout``, its topic's layout after it, is required for splits and merges."""
        self.entries.append(entry)
        self._bodies.append(e.encode_entry(entry))
        self._layouts.append(layout)

    def extend(self, records: RecordColumns, size_bytes: int) -> None:
        """Append ``records``."""
        self.records.extend(records)
        self._waiting_bytes += size_bytes + PART_BYTES * (len(records) + sum(map(len, records.headers)))

    @property
    def has_many_waiting(self) -> bool:
        """Whether so many records are not encoded that the chunk should not wait for them: see `encode_records`."""
        return self._waiting_bytes >= AHEAD_BYTES

    def encode_records(self) -> None:
        """Encode the records that were added since the last call, so that little is left to do in `encode`."""
        count = len(self.records) - self._encoded
        columns = {name: getattr(self.records, name)[self._encoded :] for name in _COLUMNS}
        lengths = {name: list(map(len, columns[name])) for name in ("key", "value")}
        size_bytes = list(map(add, lengths["key"], lengths["value"]))
        if any(headers := self.records.headers[self._encoded :]):
            size_bytes = list(map(add, size_bytes, map(header_bytes, headers)))
        columns["size_bytes"] = size_bytes
        self._columns["fact"].append(_RECORD * count)
        for name, values in columns.items():
            assert len(values) == count, f"{name} has {len(values)} values for {count} records"
            self._columns[name].append(blobs(values, lengths[name]) if name in lengths else integers(values))
        self._encoded += count
        self._size_bytes += sum(size_bytes)
        self._waiting_bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether `encode` takes more than some milliseconds, so that an event loop should not wait for it."""
        return self._encoded > 0 or self.has_many_waiting or sum(map(len, self._bodies)) >= LARGE_ENTRY_BYTES

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
        self.encode_records()
        packed = pack_records(self.records) if 0 < self._size_bytes <= self._packed_max_bytes else b""
        bodies = msgspec.msgpack.encode(self._bodies) if sum(map(len, self._bodies)) <= self._packed_max_bytes else b""
        facts = [*chain.from_iterable(map(facts_of, self.entries, self._layouts))]
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
            packed_bodies_bytes=len(bodies),
            facts=len(facts),
        )
        headers = self.records.headers if any(self.records.headers) else []
        metadata = {METADATA_KEY.decode(): msgspec.json.encode(header).decode()}
        pages = self._pages(facts, headers)
        pieces, footer = (WITHHEADERS if headers else WITHOUTHEADERS).write(pages, pages[0].rows, metadata)
        return sealed([*pieces, bodies, packed], footer, crc32)

    def _pages(self, facts: Sequence[Mapping[str, Any]], headers: Sequence[Headers]) -> list[Page]:
        """Return the columns of all rows: entries, then facts, then records."""
        bodies, count = self._bodies, len(self.records)
        others = len(bodies) + len(facts)
        rows = others + count
        nulls = Page(rows, levels((0, rows)))
        of_records = levels((0, others), (1, count))

        def page(name: str, encode: Callable[[Any], bytes]) -> Page:
            stated = [fact.get(name) for fact in facts]
            given = [value for value in stated if value is not None]
            own = self._columns.get(name, []) if count else []
            if not given:
                return Page(rows, of_records, own) if own else nulls
            if isinstance(given[0], str):
                given = [value.encode() for value in given]
            runs = [(int(present), len(list(run))) for present, run in groupby(stated, lambda value: value is not None)]
            stated_levels = levels((0, len(bodies)), *runs, (int(bool(own)), count))
            return Page(rows, stated_levels, [encode(given), *own])

        found = []
        for name, kind in COLUMNS.items():
            if name == "body":
                found.append(Page(rows, levels((1, len(bodies)), (0, rows - len(bodies))), [blobs(bodies)]))
            elif name == "headers":
                found += header_pages(others, headers) if headers else []
            else:
                found.append(page(name, integers if kind == "int64" else blobs))
        return found


def header_pages(others: int, headers: Sequence[Headers]) -> list[Page]:
    """Return names and values of the headers of records, which follow ``others`` rows. A row without any is null."""
    sizes = [len(each) for each in headers]
    begins = levels((0, others), *(run for size in sizes for run in ((0, 1), (1, size - 1)) if run[1] > 0))
    present = levels((0, others), *((4, size) if size else (0, 1) for size in sizes))
    pairs = [pair for each in headers for pair in each]
    columns = [name.encode() for name, _ in pairs], [value for _, value in pairs]
    count = others + sum(max(size, 1) for size in sizes)
    return [Page(count, begins + present, [blobs(values)]) for values in columns]
