"""Columns of a table as Arrow arrays, column into their buffers from Python's lists.

Only the form. pyarrow's own conversion looks at every value for its type; on a chunk of two rows, which a client waits
for, that took half of the encoding. A `PaddedColumns` knows which rows of a column have values, so the bitmap of the
nulls is made once for all columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa


class PaddedColumns:
    """Columns of ``rows`` rows, of which ``count`` from row ``first`` on have values and all others are null."""

    def __init__(self, rows: int, first: int, count: int) -> None:
        self._rows, self._first, self._count = rows, first, count
        bits = ((1 << count) - 1) << first
        self._validity = pa.py_buffer(bits.to_bytes((rows + 7) // 8, "little"))

    def integers(self, values: Sequence[int]) -> pa.Array:
        """Return a column of 64-bit integers; raises OverflowError for what does not fit."""
        column = array("q", bytes(8 * self._first))
        column.extend(values)
        column.frombytes(bytes(8 * (self._rows - len(column))))
        return self._column(pa.int64(), len(values), pa.py_buffer(column))

    def blobs(self, values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
        """Return a column of ``kind``, binary or string; raises OverflowError beyond 2 GiB in all.

        Strings are given in UTF-8, which is not looked at again.
        """
        ends = array("i", bytes(4 * (self._first + 1)))
        ends.extend(accumulate(map(len, values)))
        ends.extend([ends[-1]] * (self._rows + 1 - len(ends)))
        return self._column(kind, len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))

    def _column(self, kind: pa.DataType, count: int, *buffers: pa.Buffer) -> pa.Array:
        # Nothing below looks at lengths again: a column that is too short would be read beyond its end.
        assert count == self._count, f"{count} values for {self._count} rows"
        return pa.Array.from_buffers(kind, self._rows, [self._validity, *buffers])
