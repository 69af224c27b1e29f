"""Read the columns of a Parquet object into lists and arrays, with arro3.

The caller verifies the object's checksum first. arro3 (seen with 0.9.1) reports damaged pages as a bare Exception or
ends the process. It cannot read a part of the columns, but decodes all of them in less time than others need for six.

Its own conversion takes 90 ns per value. This module takes the values out of the buffers, as the
Arrow C data interface describes them (https://arrow.apache.org/docs/format/CDataInterface.html).
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from typing import Final

from arro3.core import (
    Array,
    DataType,
    Field,
    RecordBatch,
    Schema,
    Table,
    list_array,
    list_flatten,
    struct_array,
    struct_field,
)
from arro3.io import read_parquet

from headgate.errors import LedgerError
from headgate.model.headers import Headers

BATCH_ROWS: Final = 1 << 20
"""Rows that arro3 puts into one buffer; the rows of more are concatenated."""
END_OF_TIME_MS: Final = 253_402_300_800_000
"""The year 10000. A producer may set any time up to 2^63 ms."""
_INTEGERS: Final = b"l"
_BLOBS: Final = b"z"
_TEXTS: Final = b"u"
_LISTS: Final = b"+l"
"""Types in the C data interface: 64-bit integers; binary, UTF-8 and lists with 32-bit offsets."""
_NO_HEADERS: Final = list_array(
    Array([0, 0], type=DataType.int32()),
    struct_array(
        [Array([], type=DataType.string()), Array([], type=DataType.binary())],
        fields=[Field("name", DataType.string()), Field("value", DataType.binary())],
    ),
)
"""One row. Arrays with nulls are made of it: arro3 (seen with 0.9.1) makes no list itself."""


class Columns:
    def __init__(self, batch: RecordBatch, path: str, first: int, count: int) -> None:
        """``count`` rows of ``batch`` from row ``first`` on; ``path`` names the object in errors."""
        self._batch, self._path, self._first, self._count = batch, path, first, count
        self._exports: dict[tuple[str, bytes], _ArrowArray] = {}
        """Whole columns, which all slices share: to export one takes as long as to copy some hundred values."""

    def __len__(self) -> int:
        return self._count

    def slice(self, first: int, count: int) -> Columns:
        """Return ``count`` rows from row ``first`` on, or those that there are. Copies nothing."""
        found = Columns(self._batch, self._path, self._first + first, min(count, self._count - first))
        found._exports = self._exports
        return found

    def last(self, count: int) -> Columns:
        """Return the last ``count`` rows, without what the others have: to look for nulls among those takes time."""
        return Columns(self._batch.slice(self._first + self._count - count, count), self._path, 0, count)

    @property
    def nbytes(self) -> int:
        """What the whole object takes in memory."""
        return self._batch.nbytes

    def integers(self, name: str) -> array[int]:
        """Return a column of 64-bit integers; raises LedgerError if it is missing, of another type, or has a null."""
        column, first = self._shared(name, _INTEGERS)
        if not self._count:
            return array("q")
        return array("q", ctypes.string_at(column.buffers[1] + 8 * (column.offset + first), 8 * self._count))

    def blobs(self, name: str) -> list[bytes]:
        return _blobs(*self._shared(name, _BLOBS), self._count)

    def headers(self) -> list[Headers]:
        """Return the headers of each row: none where they are null, or the object has no such column.

        Raises LedgerError: the column has another type.
        """
        name = "headers"
        if name not in self._batch.column_names or not self.values(name):
            return [()] * self._count
        lists = self._exported(self._column(name), name, _LISTS, has_nulls=True)
        flat = list_flatten(self._column(name))
        names = _blobs(self._exported(struct_field(flat, 0), name, _TEXTS), 0, len(flat))
        values = _blobs(self._exported(struct_field(flat, 1), name, _BLOBS), 0, len(flat))
        pairs, ends = list(zip(map(bytes.decode, names), values, strict=True)), _ends(lists, 0, self._count)
        return [tuple(pairs[first - ends[0] : end - ends[0]]) for first, end in pairwise(ends)]

    def instants(self, name: str, kind: DataType) -> Array:
        """Return milliseconds since 1970 as Arrow instants of the type ``kind``, null behind the year 9999.

        Most libraries convert them to microseconds or to a calendar, and refuse the whole column otherwise. Raises like
        `integers`.
        """
        values = self.integers(name)
        if not self._count or max(values) < END_OF_TIME_MS:
            return self.arrow(name, kind)
        known = [each if each < END_OF_TIME_MS else None for each in values]
        return Array(known, type=DataType.int64()).cast(kind)

    def arrow(self, name: str, kind: DataType) -> Array:
        """Return a column as Arrow values of the type ``kind``; if there are no ``headers``, nulls.

        Raises LedgerError: another column is missing.
        """
        if name == "headers" and name not in self._batch.column_names:
            return _NO_HEADERS.take(Array([None] * self._count, type=DataType.uint32())).cast(kind)
        return self._column(name).cast(kind)

    def values(self, name: str) -> int:
        """Return how many values of a column are not null; raises LedgerError if it is missing."""
        return self._count - self._column(name).null_count

    def _column(self, name: str, *, whole: bool = False) -> Array:
        try:
            column = self._batch.column(name)
        except KeyError:
            found = self._batch.column_names
            raise LedgerError(f"{self._path} has only the columns {found}, without {name}") from None
        # A slice of a column takes a tenth of the time of a slice of the batch.
        return column if whole else column.slice(self._first, self._count)

    def _shared(self, name: str, kind: bytes) -> tuple[_ArrowArray, int]:
        """Return a column, and the row of it that is the first of these rows, which have no null."""
        if (found := self._exports.get((name, kind))) is None:
            column = self._column(name, whole=True)
            if column.null_count:
                return self._exported(self._column(name), name, kind), 0
            found = self._exports[name, kind] = self._exported(column, name, kind)
        return found, self._first

    def _exported(self, column: Array, name: str, kind: bytes, *, has_nulls: bool = False) -> _ArrowArray:
        schema, capsule = column.__arrow_c_array__()
        # Buffers of other types have other lengths, and the place of a null has any value.
        is_expected = _ArrowSchema.from_address(_pointer(schema, b"arrow_schema")).format == kind
        if not is_expected or (column.null_count and not has_nulls):
            raise LedgerError(f"{self._path} has a column {name} with nulls, or of another type than expected")
        exported = _ArrowArray.from_address(_pointer(capsule, b"arrow_array"))
        exported.capsule = capsule
        return exported


def _blobs(column: _ArrowArray, first: int, count: int) -> list[bytes]:
    if not count:
        return []
    ends = _ends(column, first, count)
    content = BytesIO(ctypes.string_at(column.buffers[2] + ends[0], ends[-1] - ends[0]))
    after, before = (int.from_bytes(each.tobytes(), sys.byteorder) for each in (ends[1:], ends[:-1]))
    # A third faster than slices. One subtraction gives all lengths: none is negative, so they do not touch.
    return list(map(content.read, array("i", (after - before).to_bytes(4 * count, sys.byteorder))))


def _ends(column: _ArrowArray, first: int, count: int) -> array[int]:
    """Return where the content of each of ``count`` rows begins, and the end of the last one."""
    return array("i", ctypes.string_at(column.buffers[1] + 4 * (column.offset + first), 4 * (count + 1)))


def read_columns(data: bytes, path: str, *, batch_rows: int = BATCH_ROWS) -> Columns:
    """Return all rows of the Parquet object ``data``, which is intact."""
    reader = read_parquet(data, batch_size=batch_rows)
    return _columns(list(reader), reader.schema, path)


def read_columns_unlocked(data: bytes, path: str) -> Columns:
    """Like `read_columns`, but release Python's lock meanwhile. Takes 15 µs longer."""
    table = read_parquet(data, batch_size=BATCH_ROWS).read_all()
    return _columns(table.to_batches(), table.schema, path)


def read_first_rows(data: bytes, path: str, rows: int) -> Columns:
    """Return the first ``rows`` rows, or all if there are fewer. The pages of other rows are not decoded."""
    reader = read_parquet(data, batch_size=rows)
    batch = next(reader, None)
    return _columns([] if batch is None else [batch], reader.schema, path)


def _columns(batches: Sequence[RecordBatch], schema: Schema, path: str) -> Columns:
    if len(batches) != 1:
        batches = Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    (batch,) = batches
    return Columns(batch, path, 0, batch.num_rows)


class _ArrowSchema(ctypes.Structure):
    _fields_ = (("format", ctypes.c_char_p),)


class _ArrowArray(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )
    capsule: object
    """Owns the struct and its buffers."""


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
