"""Records of a topic as one object of the ledger holds them: as values, or as Arrow columns without a copy. Pure."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple, Self

from arro3.core import Array, DataType, Field, RecordBatch, Schema

from headgate.ledger.parquet_columns import Columns, occurrences
from headgate.model.headers import Headers
from headgate.reading.selected_offsets import OffsetBounds

SLICE_MAX_RECORDS: Final = 1000
"""Records of a compacted object that are Python values at the same time."""
SHORT_RUN: Final = 8
"""Records of a run from which on copying it as a whole is faster."""
HEADERS: Final = DataType.list(
    Field("element", DataType.struct([Field("name", DataType.string()), Field("value", DataType.binary())]))
)
COLUMNS: Final = {
    "key": ("key", DataType.binary()),
    "value": ("value", DataType.binary()),
    "headers": ("headers", HEADERS),
    "timestamp": ("timestamp_ms", DataType.timestamp("ms", tz="UTC")),
    "segment": ("segment", DataType.int64()),
    "offset": ("offset", DataType.int64()),
}
"""Column of `SCHEMA` → the column of an object, and its type."""
SCHEMA: Final = Schema([Field(name, kind) for name, (_, kind) in COLUMNS.items()])
"""What `StoredRows.arrow` returns. ``headers`` is null without any, and ``timestamp`` behind the year 9999."""


class LedgerRecord(NamedTuple):
    segment: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970, as the producer set it."""
    key: bytes
    value: bytes
    headers: Headers = ()


class Rows(NamedTuple):
    """Values of consecutive records of one segment, column by column."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes]
    values: list[bytes]
    headers: list[Headers]

    @classmethod
    def of(cls, rows: Columns) -> Self:
        """Return the values of ``rows``. Raises LedgerError: a column is missing, or of another type."""
        return cls(
            rows.integers("offset"),
            rows.integers("timestamp_ms"),
            rows.blobs("key"),
            rows.blobs("value"),
            rows.headers(),
        )

    def part(self, first: int, end: int) -> Self:
        """Return the rows from ``first`` up to, not including, ``end``, or those that there are."""
        if not first and end >= len(self.offsets):
            return self
        return type(self)._make([column[first:end] for column in self])

    def joined(self, runs: Sequence[range]) -> Self:
        """Return the rows of ``runs``, one run after the other. Long runs are copied as a whole."""
        if len(runs) == 1:
            return self.part(runs[0].start, runs[0].stop)
        rows = list(chain.from_iterable(runs))
        if len(rows) < len(runs) * SHORT_RUN:
            return self.picked(rows)
        return type(self)._make(
            [[*chain.from_iterable([column[run.start : run.stop] for run in runs])] for column in self]
        )

    def picked(self, rows: Sequence[int]) -> Self:
        """Return the ``rows`` with these numbers, in that order."""
        return type(self)._make([list(map(column.__getitem__, rows)) for column in self])


def rows_of_topic(columns: Columns, topic_id: int) -> tuple[Sequence[int], dict[int, OffsetBounds]]:
    """Return the rows of a topic in a chunk, and segment → its offsets there. Raises LedgerError like `Rows.of`.

    The first offset follows from the last one and the number of rows: an unexpected one tells of a gap.
    """
    rows: Sequence[int] = range(len(columns))
    if columns.are_all("topic_id", topic_id):
        found = columns.occurrences("segment")
    else:
        topic_ids, segments = map(columns.integers, ("topic_id", "segment"))
        rows = [row for row in rows if topic_ids[row] == topic_id]
        found = occurrences([segments[row] for row in rows], rows)
    offsets = columns.integers("offset")
    return rows, {each: (offsets[row] + 1 - count, offsets[row] + 1) for each, (count, row) in found.items()}


class StoredRows(NamedTuple):
    """Records of one object, in the order in which they were stored."""

    columns: Columns
    picked: Sequence[int]
    """The rows of ``columns`` that count, rising; a range if they follow each other."""
    segment: int | None = None
    """The segment of all rows; None: the object has a column for it."""

    def records(self) -> Iterator[LedgerRecord]:
        """Yield them as values. Raises LedgerError: a column is missing, or of another type."""
        if not isinstance(self.picked, range):
            values = list(_values(self.columns, self.segment))
            yield from (LedgerRecord(*values[row]) for row in self.picked)
            return
        for at in self.picked[::SLICE_MAX_RECORDS]:
            rows = self.columns.slice(at, min(SLICE_MAX_RECORDS, self.picked.stop - at))
            yield from (LedgerRecord(*values) for values in _values(rows, self.segment))

    def arrow(self) -> RecordBatch:
        """Return them as one batch of `SCHEMA`. Raises like `records`."""
        is_run = isinstance(self.picked, range)
        columns = self.columns.slice(self.picked[0], len(self.picked)) if is_run and self.picked else self.columns
        found = {name: self._column(columns, *source) for name, source in COLUMNS.items()}
        if not is_run:
            rows = Array.from_buffer(array("I", self.picked))
            found = {name: column.take(rows) for name, column in found.items()}
        return RecordBatch.from_arrays(list(found.values()), schema=SCHEMA)

    def _column(self, columns: Columns, name: str, kind: DataType) -> Array:
        if name == "segment" and self.segment is not None:
            return Array.from_buffer(array("q", [self.segment]) * len(columns))
        return columns.instants(name, kind) if name == "timestamp_ms" else columns.arrow(name, kind)


def _values(rows: Columns, segment: int | None) -> Iterator[tuple[int, int, int, bytes, bytes, Headers]]:
    segments = rows.integers("segment") if segment is None else repeat(segment)
    return zip(segments, *Rows.of(rows), strict=False)  # a repeated segment has no end
