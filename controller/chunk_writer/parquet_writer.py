"""Write one row group as Parquet: one page of plain values for each column, then the footer.

A leader writes an object for each commit, most of them with a few rows, and clients wait for it. Libraries take many
times as long for those, because they first need a table. Levels are stored as runs, so a column of nulls takes some
bytes. The format: https://parquet.apache.org/docs/file-format

No I/O.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa

MARK: Final = b"PAR1"
CREATED_BY: Final = b"headgate version 1 (build 1)"
"""In the form that readers parse."""
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
INT64, BYTE_ARRAY = 2, 6
UTF8, LIST = 0, 3
"""Repetitions, kinds of values and annotations, by Parquet's numbers."""
MIN_COMPRESSED_BYTES: Final = 128
"""Smaller pages, and those that would not become smaller, are not compressed."""
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
    values: Iterable[bytes] = ()


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
    """Writes objects with the same columns."""

    def __init__(self, columns: Sequence[Node]) -> None:
        self._leaves = [leaf for column in columns for leaf in column.leaves()]
        root = Node("schema", repetition=REQUIRED, children=tuple(columns))
        self._schema = _integer(1, _I32, 1) + _list(1, _STRUCT, root.elements())

    def write(self, pages: Sequence[Page], rows: int, metadata: dict[str, str]) -> tuple[list[bytes], bytes]:
        """Return an object up to its footer in parts, and the footer."""
        pieces, columns, at = [MARK], [], len(MARK)
        for leaf, (count, levels, values) in zip(self._leaves, pages, strict=True):
            stored = body = b"".join((levels, *values))
            if len(body) >= MIN_COMPRESSED_BYTES:
                stored = min(body, _SNAPPY.compress(body, asbytes=True), key=len)
            header, sizes = _sizes(count, len(body), len(stored), stored is not body)
            pieces += (header, stored)
            # A column chunk: an offset that readers ignore, and its metadata.
            columns.append(b"\x26\x00\x1c" + leaf + sizes + _integer(2, _I64, at) + _STOP + _STOP)
            at += len(header) + len(stored)
        group = b"".join((_list(1, _STRUCT, columns), _integer(1, _I64, at), _integer(1, _I64, rows), _STOP))
        pairs = [_blob(1, key.encode()) + _blob(1, value.encode()) + _STOP for key, value in metadata.items()]
        footer = b"".join(
            (
                self._schema,
                _integer(1, _I64, rows),
                _list(1, _STRUCT, [group]),
                _list(1, _STRUCT, pairs),
                _blob(1, CREATED_BY),
                _STOP,
            )
        )
        return pieces, b"".join((footer, _LENGTH(len(footer)), MARK))


def integers(values: Sequence[int]) -> Sequence[bytes]:
    """Return 64-bit integers as plain values; raises OverflowError for one that does not fit."""
    return (array("q", values).tobytes(),)


def blobs(values: Sequence[bytes]) -> Sequence[bytes]:
    """Return bytes, or strings in UTF-8, as plain values."""
    found = [b""] * (2 * len(values))
    found[::2], found[1::2] = map(_LENGTH, map(len, values)), values
    return found


def levels(*runs: tuple[int, int]) -> bytes:
    """Return definition or repetition levels from runs of (level, how many)."""
    found = b"".join([_varint(count << 1) + bytes((level,)) for level, count in runs if count])
    return _LENGTH(len(found)) + found


@lru_cache(maxsize=4096)
def _sizes(count: int, body_bytes: int, stored_bytes: int, compressed: bool) -> tuple[bytes, bytes]:
    """Return the header of a page, and the fields about sizes of a column with one page."""
    both = _integer(1, _I32, body_bytes) + _integer(1, _I32, stored_bytes)
    header = b"".join((_integer(1, _I32, 0), both, b"\x2c", _integer(1, _I32, count), _PLAIN_RLE, _STOP, _STOP))
    return header, b"".join(
        (
            _integer(1, _I32, int(compressed)),
            _integer(1, _I64, count),
            _integer(1, _I64, len(header) + body_bytes),
            _integer(1, _I64, len(header) + stored_bytes),
        )
    )


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
