"""Delta tables, with delta-rs.

A position is a set of application transactions, because these survive checkpoints, OPTIMIZE and the cleanup of the
log. Delta compares no versions. A commit only fails if it is written through the handle whose transactions were read,
and another commit since has one of the same ids: each commit has the id of the chunk.

| id | version |
|---|---|
| headgate/LEDGER/SHARD/TOPIC/chunk, …/term, …/newest | `TablePosition` |
| …/3 | next offset of segment 3 |
| …/3/complete | the final end of segment 3, which is read up to there |
"""

from typing import Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from headgate.lakehouse.position import Origin, TablePosition
from headgate.lakehouse.table_rows import DAY, TableRows
from headgate.lakehouse.tables import foreign_rows, table_errors

ORIGIN: Final = "headgate.origin"
"""The property of a table that names its topic."""


class DeltaExport:
    def __init__(self, url: str, origin: Origin, rows: TableRows) -> None:
        self.name = f"Delta table {url}"
        self._app = f"headgate/{origin.ledger_id}/{origin.shard}/{origin.topic_id}"
        with table_errors(self.name, CommitFailedError):
            if not DeltaTable.is_deltatable(url):
                DeltaTable.create(
                    url,
                    schema=rows.schema,
                    partition_by=[DAY] if rows.by_day else None,
                    configuration={ORIGIN: msgspec.json.encode(origin).decode()},
                    raise_if_key_not_exists=False,
                )
            self._table = DeltaTable(url)
            self._evolves = rows.lacks_columns(pa.schema(self._table.schema().to_arrow()), self.name)
            self.position = self._position(origin)

    def append(self, rows: pa.Table, position: TablePosition) -> None:
        numbers = {"chunk": position.chunk, "term": position.term_id, "newest": position.newest}
        numbers |= {str(segment): offset for segment, offset in position.offsets.items()}
        before = {} if self.position is None else self.position.offsets
        numbers |= {f"{segment}/complete": 1 for segment in before.keys() - position.offsets.keys()}
        marks = [Transaction(f"{self._app}/{name}", version) for name, version in numbers.items()]
        with table_errors(self.name, CommitFailedError):
            write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge" if self._evolves else None,
                commit_properties=CommitProperties(app_transactions=marks),
            )
        self.position, self._evolves = position, False

    def _position(self, origin: Origin) -> TablePosition | None:
        stored = self._table.metadata().configuration.get(ORIGIN)
        named = origin if stored is None else msgspec.json.decode(stored, type=Origin)
        chunk, term_id, newest = (self._version(name) for name in ("chunk", "term", "newest"))
        if named != origin:
            return TablePosition(origin=named, chunk=0, term_id=0, newest=-1, offsets={})
        if chunk is None or term_id is None or newest is None:
            if self._table.file_uris():
                raise foreign_rows(self.name)
            return None
        offsets = {
            segment: offset
            for segment in range(newest + 1)
            if (offset := self._version(str(segment))) is not None and self._version(f"{segment}/complete") is None
        }
        return TablePosition(origin=origin, chunk=chunk, term_id=term_id, newest=newest, offsets=offsets)

    def _version(self, name: str) -> int | None:
        return self._table.transaction_version(f"{self._app}/{name}")
