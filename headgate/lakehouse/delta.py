"""Delta tables, with delta-rs.

A position is a set of application transactions, because these survive checkpoints, OPTIMIZE and the cleanup of the
log. Delta compares no versions. A commit only fails if it is written through the handle whose transactions were read,
and another commit since has one of the same ids: each commit has the id of the chunk. Nor does it compare the ids of
tables: the commits of one that was created again at the same place are taken for those of other programs.

| id | version |
|---|---|
| headgate/LEDGER/TOPIC/ID/chunk, …/term, …/newest | `TopicPosition` |
| …/3 | next offset of segment 3 |
| …/3/complete | the final end of segment 3, which is read up to there |
"""

from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from msgspec.structs import replace

from headgate.errors import ConfigError, HeadgateError
from headgate.lakehouse.table_rows import DAY, TableRows
from headgate.lakehouse.tables import created_again, decoded, deleted, encoded, foreign_rows, table_errors
from headgate.model.text import listed
from headgate.reading.topic_position import TopicPosition

ORIGIN: Final = "headgate.origin"
"""The property of a table that names its topic, as the position before all records. It marks commits, too."""
RECENT_COMMITS: Final = 100
"""Those among which the last export is looked for first."""


class DeltaExport:
    def __init__(self, url: str, begin: TopicPosition, rows: TableRows) -> None:
        self.name = f"Delta table {url}"
        self._begin, self._rows = begin, rows
        self._app = f"headgate/{begin.ledger_id}/{begin.topic}/{begin.topic_id}"
        with table_errors(self.name, CommitFailedError):
            if not DeltaTable.is_deltatable(url):
                if others := _others(url):
                    raise ConfigError(f"{self.name} would share its folder with {listed(others)}: choose an empty one")
                DeltaTable.create(
                    url,
                    schema=rows.schema,
                    partition_by=[DAY] if rows.by_day else None,
                    configuration={ORIGIN: encoded(begin)},
                    raise_if_key_not_exists=False,
                )
            self._table = DeltaTable(url)
            self._evolves = rows.lacks_columns(pa.schema(self._table.schema().to_arrow()), self.name)
            self.position = self._position()
            self._require_its_rows()

    def append(self, rows: pa.Table, position: TopicPosition) -> None:
        numbers = {"chunk": position.chunk, "term": position.term_id, "newest": position.newest}
        numbers |= {str(segment): offset for segment, offset in position.offsets.items()}
        before = {} if self.position is None else self.position.offsets
        numbers |= {f"{segment}/complete": 1 for segment in before.keys() - position.offsets.keys()}
        marks = [Transaction(f"{self._app}/{name}", version) for name, version in numbers.items()]
        with table_errors(self.name, CommitFailedError, is_stored=lambda: self._is_stored(position)):
            if not DeltaTable.is_deltatable(self._table.table_uri):
                raise deleted(self.name)
            if DeltaTable(self._table.table_uri).metadata().id != self._table.metadata().id:
                raise created_again(self.name)
            write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge" if self._evolves else None,
                commit_properties=CommitProperties(custom_metadata={ORIGIN: ""}, app_transactions=marks),
            )
        self.position, self._evolves = position, False

    def _is_stored(self, position: TopicPosition) -> bool:
        """Return whether the table has it now. Raises HeadgateError: a change of the columns came first."""
        self._table.update_incremental()
        if self._position() == position:
            return True
        self._rows.lacks_columns(pa.schema(self._table.schema().to_arrow()), self.name)
        return False

    def _position(self) -> TopicPosition | None:
        begin = self._begin
        stored = self._table.metadata().configuration.get(ORIGIN)
        if stored is not None and (named := decoded(stored, self.name)) != begin:
            return named
        chunk, term_id, newest = (self._version(name) for name in ("chunk", "term", "newest"))
        if chunk is None or term_id is None or newest is None:
            if self._table.file_uris():
                raise foreign_rows(self.name)
            return None
        offsets = {
            segment: offset
            for segment in range(newest + 1)
            if (offset := self._version(str(segment))) is not None and self._version(f"{segment}/complete") is None
        }
        return replace(begin, chunk=chunk, term_id=term_id, newest=newest, offsets=offsets)

    def _require_its_rows(self) -> None:
        """Raise HeadgateError if the table was restored to a version before the last export: its transactions stay."""
        commits = self._table.history(RECENT_COMMITS)
        if not any(ORIGIN in each for each in commits):
            commits = self._table.history()
        ours = next((each["version"] for each in commits if ORIGIN in each), commits[-1]["version"])
        present = commits[0]["version"]
        for commit in commits:
            if commit.get("operation") == "RESTORE" and ours < commit["version"] <= present:
                present = int(commit["operationParameters"].get("version") or -1)
        if present < ours:
            raise HeadgateError(f"{self.name} was restored, and lacks rows of an export: export to another table")

    def _version(self, name: str) -> int | None:
        return self._table.transaction_version(f"{self._app}/{name}")


def _others(url: str) -> list[str]:
    """Return what a folder without a table has. VACUUM would delete it, except names that begin with _ or a dot."""
    try:
        found = pa_fs.PyFileSystem(DeltaStorageHandler(url)).get_file_info(pa_fs.FileSelector(""))
    except TableNotFoundError:  # A local folder that does not exist.
        return []
    return sorted(each.path for each in found if each.path[0] not in "_.")
