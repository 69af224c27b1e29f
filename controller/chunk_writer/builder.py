"""Encode a chunk: one Parquet object, one commit.

A row with a ``body`` is an entry, a row with a ``fact`` states a fact (headgate.ledger.facts).
Entries come first, records last. headgate.ledger.chunk reads chunks and defines their format.

No I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from operator import add
from typing import Any, Final

import msgspec

from controller.chunk_writer import parquet_writer as parquet
from controller.chunk_writer.parquet_writer import Node, Page, ParquetWriter
from headgate.ledger.checksum import sealed
from headgate.ledger.chunk import COLUMNS, FORMAT, METADATA_KEY, ChunkHeader, RecordColumns, pack_records
from headgate.ledger.facts import facts_of
from headgate.model import entries as e
from headgate.model.headers import Headers, header_bytes
from headgate.model.layout import Layout

LARGE_RECORDS: Final = 1000
LARGE_ENTRY_BYTES: Final = 8 * 1024
LARGE_VALUE_BYTES: Final = 256 * 1024
PACKED_MAX_BYTES: Final = 4 * 1024
"""Chunks with at most this many bytes of records contain them in MessagePack, too."""

_KINDS: Final = {
    "int64": (parquet.INT64, None),
    "string": (parquet.BYTE_ARRAY, parquet.UTF8),
    "binary": (parquet.BYTE_ARRAY, None),
}
"""Arrow type → kind of values, and annotation."""
_HEADER: Final = Node("element", children=(Node("name", *_KINDS["string"]), Node("value", *_KINDS["binary"])))
HEADERS: Final = Node(
    "headers", annotation=parquet.LIST, children=(Node("list", repetition=parquet.REPEATED, children=(_HEADER,)),)
)
_NODES: Final = {name: HEADERS if name == "headers" else Node(name, *_KINDS[kind]) for name, kind in COLUMNS.items()}
WITHHEADERS: Final = ParquetWriter(list(_NODES.values()))
WITHOUTHEADERS: Final = ParquetWriter([node for node in _NODES.values() if node is not HEADERS])

_RECORD: Final = b"".join(parquet.blobs([b"record"]))


class ChunkBuilder:
    """Collects the entries and records of one commit until they are encoded."""

    def __init__(self, *, packed_max_bytes: int = PACKED_MAX_BYTES) -> None:
        """Create an empty builder; see the constant for the limit."""
        self.entries: list[e.AnyEntry] = []
        self.records = RecordColumns()
        self._bodies: list[bytes] = []
        self._layouts: list[Layout | None] = []
        self._packed_max_bytes = packed_max_bytes

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
            len(self.records) + sum(map(len, self.records.headers)) >= LARGE_RECORDS
            or sum(map(len, self._bodies)) >= LARGE_ENTRY_BYTES
            or sum(map(len, self.records.value)) + sum(map(header_bytes, filter(None, self.records.headers)))
            >= LARGE_VALUE_BYTES
        )

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
        size_bytes = list(map(add, map(len, self.records.key), map(len, self.records.value)))
        has_headers = any(self.records.headers)
        if has_headers:
            size_bytes = list(map(add, size_bytes, map(header_bytes, self.records.headers)))
        packed = pack_records(self.records) if 0 < sum(size_bytes) <= self._packed_max_bytes else b""
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
        )
        facts = [*chain.from_iterable(map(facts_of, self.entries, self._layouts))]
        rows = len(self._bodies) + len(facts) + len(self.records)
        pages, footer = (WITHHEADERS if has_headers else WITHOUTHEADERS).write(
            _pages(self._bodies, facts, self.records, size_bytes, with_headers=has_headers),
            rows,
            {METADATA_KEY.decode(): msgspec.json.encode(header).decode()},
        )
        return sealed([*pages, packed], footer)


def _pages(
    bodies: Sequence[bytes],
    facts: Sequence[Mapping[str, Any]],
    records: RecordColumns,
    size_bytes: Sequence[int],
    *,
    with_headers: bool,
) -> list[Page]:
    """Return the columns of all rows: entries, then facts, then records."""
    others, count = len(bodies) + len(facts), len(records)
    rows = others + count
    nulls = Page(rows, parquet.levels((0, rows)))
    of_records = parquet.levels((0, others), (1, count))
    columns = {
        "topic_id": records.topic_id,
        "segment": records.segment,
        "offset": records.offset,
        "timestamp_ms": records.timestamp_ms,
        "size_bytes": size_bytes,
        "key": records.key,
        "value": records.value,
    }
    for name, values in columns.items():
        assert len(values) == count, f"{name} has {len(values)} values for {count} records"

    def page(name: str, encode: Callable[[Any], Sequence[bytes]]) -> Page:
        stated = [fact.get(name) for fact in facts]
        given = [value for value in stated if value is not None]
        has_own = count > 0 and (name in columns or name == "fact")
        if not given and not has_own:
            return nulls
        own = [_RECORD * count] if name == "fact" else encode(columns.get(name, ()))
        if not given:
            return Page(rows, of_records, own)
        if isinstance(given[0], str):
            given = [value.encode() for value in given]
        runs = [(int(present), len(list(run))) for present, run in groupby(stated, lambda value: value is not None)]
        levels = parquet.levels((0, len(bodies)), *runs, (int(has_own), count))
        return Page(rows, levels, [*encode(given), *own])

    found = []
    for name, kind in COLUMNS.items():
        if name == "body":
            found.append(Page(rows, parquet.levels((1, len(bodies)), (0, rows - len(bodies))), parquet.blobs(bodies)))
        elif name == "headers":
            found += header_pages(others, records.headers) if with_headers else []
        else:
            found.append(page(name, parquet.integers if kind == "int64" else parquet.blobs))
    return found


def header_pages(others: int, headers: Sequence[Headers]) -> list[Page]:
    """Return names and values of the headers of records, which follow ``others`` rows. A row without any is null."""
    sizes = [len(each) for each in headers]
    begins = parquet.levels((0, others), *(run for size in sizes for run in ((0, 1), (1, size - 1)) if run[1] > 0))
    present = parquet.levels((0, others), *((4, size) if size else (0, 1) for size in sizes))
    pairs = [pair for each in headers for pair in each]
    columns = [name.encode() for name, _ in pairs], [value for _, value in pairs]
    count = others + sum(max(size, 1) for size in sizes)
    return [Page(count, begins + present, parquet.blobs(values)) for values in columns]
