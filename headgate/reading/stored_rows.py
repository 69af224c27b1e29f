"""Which records of a topic a reader wants, and those of one object: as values, or as Arrow columns. Pure."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from functools import reduce
from itertools import chain, groupby, repeat
from operator import iconcat
from typing import Final, NamedTuple, Self

from arro3.core import Array, DataType, Field, RecordBatch, Schema

from headgate.errors import PositionOutOfRangeError
from headgate.ledger.parquet_columns import Columns
from headgate.model.headers import Headers
from headgate.model.text import listed
from headgate.views.topics import TopicInfo

OffsetBounds = tuple[int, int]
"""The first offset, and the one before which to stop."""
SLICE_MAX_RECORDS: Final = 1000
"""Records of an object that become Python values together: they are used while the processor's caches have them."""
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


def select_offsets(
    topic: TopicInfo, offsets: Mapping[int, tuple[int, int | None]] | None = None
) -> dict[int, OffsetBounds]:
    """Return segment → wanted offsets, in the order of the segments.

    A segment loses its records as a whole, when it is pruned. So the offsets of an existing one begin at 0.

    Args:
        topic: a current description from the leader.
        offsets: segment → the first offset, and the one before which to stop, or None for the present end. None: all.

    Raises PositionOutOfRangeError: a segment or an offset does not exist. The text names what does.
    """
    ends = {each.segment: each.next_offset for each in topic.segments}
    selected: dict[int, OffsetBounds] = {}
    for segment, (first, stop) in sorted((dict.fromkeys(ends, (0, None)) if offsets is None else offsets).items()):
        if segment not in ends:
            known = listed([f"{each} (0 to {end})" for each, end in sorted(ends.items())]) or "none"
            raise _out_of_range(f"{_absence(topic, segment)}; its segments, and their offsets, are {known}")
        end = ends[segment] if stop is None else stop
        if not 0 <= first <= end <= ends[segment]:
            found = f"segment {segment} of topic {topic.topic!r} ends at offset {ends[segment]}"
            raise _out_of_range(f"{found}: choose 0 to {ends[segment]}")
        selected[segment] = first, end
    return selected


def _absence(topic: TopicInfo, segment: int) -> str:
    newest = max((each.segment for each in topic.segments), default=-1)
    if segment < newest:
        return f"segment {segment} of topic {topic.topic!r} was pruned, and its records were deleted"
    return f"topic {topic.topic!r} has no segment {segment}"


def _out_of_range(text: str) -> PositionOutOfRangeError:
    return PositionOutOfRangeError("out_of_range", text)


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

    offsets: MutableSequence[int]
    timestamps_ms: MutableSequence[int]
    keys: list[bytes]
    values: list[bytes]
    headers: list[Headers]

    @classmethod
    def of(cls, rows: Columns) -> Self:
        """Return the values of ``rows``. Raises LedgerError: a column is missing, or of another type."""
        offsets, timestamps_ms = rows.integers("offset"), rows.integers("timestamp_ms")
        return cls(offsets, timestamps_ms, rows.blobs("key"), rows.blobs("value"), rows.headers())

    def parts(self) -> Iterator[Self]:
        yield self

    def part(self, first: int, end: int) -> Self:
        """Return the rows from ``first`` up to, not including, ``end``, or those that there are."""
        if not first and end >= len(self.offsets):
            return self
        return type(self)._make([column[first:end] for column in self])

    def picked(self, rows: Sequence[int]) -> Self:
        """Return the ``rows`` with these numbers, in that order."""
        if isinstance(rows, range):
            return self.part(rows.start, rows.stop)
        return type(self)._make([list(map(column.__getitem__, rows)) for column in self])


class RowRuns(NamedTuple):
    """The rows of one segment in an object that has others too. They become values part by part, as they are read."""

    columns: Columns
    runs: Sequence[range]
    """Its rows, rising."""

    def parts(self) -> Iterator[Rows]:
        """Yield their values, at most `SLICE_MAX_RECORDS` at a time. Raises like `Rows.of`."""
        pieces, left = list[Rows](), SLICE_MAX_RECORDS
        for run in self.runs:
            at = run.start
            while at < run.stop:
                count = min(left, run.stop - at)
                pieces.append(Rows.of(self.columns.slice(at, count)))
                at, left = at + count, left - count
                if not left:
                    yield _chained(pieces)
                    pieces, left = [], SLICE_MAX_RECORDS
        if pieces:
            yield _chained(pieces)


def _chained(pieces: Sequence[Rows]) -> Rows:
    return Rows._make([reduce(iconcat, columns) for columns in zip(*pieces, strict=True)])


def runs_of_topic(topic_ids: Sequence[int], segments: Sequence[int], topic_id: int) -> dict[int, list[range]]:
    """Return segment → its rows among those of a chunk. A leader writes the records of a batch segment by segment."""
    runs: defaultdict[int, list[range]] = defaultdict(list)
    own: Sequence[int | None] = segments
    if topic_ids.count(topic_id) < len(topic_ids):
        own = [segment if each == topic_id else None for each, segment in zip(topic_ids, segments, strict=True)]
    end = 0
    for segment, run in groupby(own):
        first, end = end, end + len(list(run))
        if segment is not None:
            runs[segment].append(range(first, end))
    return runs


def rows_of_topic(columns: Columns, topic_id: int) -> Iterator[tuple[int, list[range], OffsetBounds]]:
    """Yield each segment of a topic in a chunk, its rows, and their offsets. Raises LedgerError like `Rows.of`."""
    topic_ids, segments, offsets = map(columns.integers, ("topic_id", "segment", "offset"))
    for segment, runs in runs_of_topic(topic_ids, segments, topic_id).items():
        yield segment, runs, (offsets[runs[0].start], offsets[runs[-1].stop - 1] + 1)


def rows_of(runs: Sequence[range]) -> Sequence[int]:
    """Return the rows of ``runs``, rising; a range if they follow each other."""
    first, end = min((run.start for run in runs), default=0), max((run.stop for run in runs), default=0)
    return range(first, end) if sum(map(len, runs)) == end - first else sorted(chain.from_iterable(runs))


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
