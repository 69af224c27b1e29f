"""Build Arrow arrays directly in their buffers from Python lists.

pyarrow's conversion inspects the type of every value, which took half of the encoding time of a
chunk of two rows. One null bitmap serves all columns.
"""

from array import array
from collections.abc import Sequence, Sized
from itertools import accumulate
from typing import Any

import pyarrow as pa

from headgate.model.headers import Headers


def nullable(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of 64-bit integers, or of binary or strings, in which None is null.

    A string may be given as UTF-8. `pyarrow.array` would import pandas on its first call, which
    stops the event loop for half a second.
    """
    bits = int("0" + "".join("0" if value is None else "1" for value in reversed(values)), 2)
    validity = pa.py_buffer(bits.to_bytes((len(values) + 7) // 8, "little"))
    if kind == pa.int64():
        column = array("q", [0 if value is None else value for value in values])
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(column)])
    blobs = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    return pa.Array.from_buffers(kind, len(values), [validity, _ends_of(blobs), pa.py_buffer(b"".join(blobs))])


def _ends_of(blobs: Sequence[bytes]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, blobs), initial=0)))


class PaddedColumns:
    """Columns of ``rows`` rows: ``count`` rows from row ``first`` on have values, all others are null."""

    def __init__(self, rows: int, first: int, count: int) -> None:
        self._rows, self._first, self._count = rows, first, count
        bits = ((1 << count) - 1) << first
        self._validity = pa.py_buffer(bits.to_bytes((rows + 7) // 8, "little"))

    def integers(self, values: Sequence[int]) -> pa.Array:
        """Return a column of 64-bit integers; raises OverflowError for a value that does not fit."""
        column = array("q", bytes(8 * self._first))
        column.extend(values)
        column.frombytes(bytes(8 * (self._rows - len(column))))
        return self._column(pa.int64(), len(values), pa.py_buffer(column))

    def blobs(self, values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
        """Return a column of ``kind``, binary or string; raises OverflowError beyond 2 GiB in total.

        Strings are passed as UTF-8, which is not validated.
        """
        return self._column(kind, len(values), self._ends(values), pa.py_buffer(b"".join(values)))

    def headers(self, values: Sequence[Headers], kind: pa.ListType) -> pa.Array:
        """Return a column of lists of name and value; null for a record without headers."""
        pairs = [pair for each in values for pair in each]
        names, contents = [name.encode() for name, _ in pairs], [value for _, value in pairs]
        children = [
            pa.Array.from_buffers(field.type, len(pairs), [None, _ends_of(blobs), pa.py_buffer(b"".join(blobs))])
            for field, blobs in zip(kind.value_type, (names, contents), strict=True)
        ]
        structs = pa.StructArray.from_buffers(kind.value_type, len(pairs), [None], children=children)
        bits = int("0" + "".join("1" if each else "0" for each in reversed(values)), 2) << self._first
        validity = pa.py_buffer(bits.to_bytes((self._rows + 7) // 8, "little"))
        return pa.ListArray.from_buffers(kind, self._rows, [validity, self._ends(values)], children=[structs])

    def _ends(self, values: Sequence[Sized]) -> pa.Buffer:
        """Return where the content of each row begins, and the end of the last one."""
        ends = array("i", bytes(4 * (self._first + 1)))
        ends.extend(accumulate(map(len, values)))
        ends.extend([ends[-1]] * (self._rows + 1 - len(ends)))
        return pa.py_buffer(ends)

    def _column(self, kind: pa.DataType, count: int, *buffers: pa.Buffer) -> pa.Array:
        # Arrow does not check lengths: it would read beyond the end of a column that is too short.
        assert count == self._count, f"{count} values for {self._count} rows"
        return pa.Array.from_buffers(kind, self._rows, [self._validity, *buffers])
