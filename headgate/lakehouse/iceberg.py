"""Iceberg tables, with pyiceberg and the catalogs that it is configured for.

A position is a property of the snapshot that added the rows. So a table that is rolled back has the position of its
rows. It is a property of the table as well, because old snapshots expire. That one counts only if the last row of the
last export is in the table: once another program has committed, no number tells that a table was rolled back. pyiceberg
repeats a commit that came too late on the new state of the table, where it would add the rows of another export again:
a property forbids that. It compares no columns, so what is in one that was dropped meanwhile would be lost: a
requirement forbids that.
"""

from typing import Any, Final, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, AssertCurrentSchemaId, TableRequirement, TableUpdate
from pyiceberg.utils.config import Config

from headgate.errors import ConfigError, HeadgateError
from headgate.lakehouse.table_rows import DAY, TableRows
from headgate.lakehouse.tables import PROPERTY, created_again, decoded, encoded, foreign_rows, one_line, table_errors
from headgate.reading.topic_position import TopicPosition

NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
LAST_ROW: Final = "headgate.last-row"
"""The property of a table with the filter that finds the last row of the last export."""
NAME_PARTS: Final = 3
NEED_URI: Final = {"rest", "sql", "hive"}
"""Types of catalogs."""


class IcebergExport:
    def __init__(self, name: str, begin: TopicPosition, rows: TableRows) -> None:
        """``name``: CATALOG.NAMESPACE.TABLE. The table of another topic, whose export is refused, is not changed."""
        self.name = f"Iceberg table {name}"
        self._rows = rows
        with table_errors(self.name, CommitFailedException):
            self._table = _opened(*_parts(name), rows)
            self._table.catalog = cast("Catalog", _ConfirmingCatalog(self._table.catalog))
            lacks_columns = rows.lacks_columns(self._table.schema().as_arrow(), self.name)
            found = self.position = self._position()
            if found is not None and (found.ledger_id, found.topic_id) != (begin.ledger_id, begin.topic_id):
                return
            if not NO_RETRIES.items() <= self._table.properties.items():
                with self._table.transaction() as transaction:
                    transaction.set_properties(NO_RETRIES)
            if lacks_columns:
                with self._table.update_schema() as update:
                    update.union_by_name(rows.schema)
            self.position = self._position()  # What was changed has read the table again.

    def append(self, rows: pa.Table, position: TopicPosition) -> None:
        stated = {PROPERTY: encoded(position)}
        last = f"segment = {rows['segment'][-1]} and offset = {rows['offset'][-1]}"
        errors = table_errors(self.name, CommitFailedException, is_stored=self._is_stored, missing=(NoSuchTableError,))
        with errors, self._table.transaction() as transaction:
            transaction.append(rows, snapshot_properties=stated)
            transaction.set_properties(stated | {LAST_ROW: last})
        self.position = position

    def _is_stored(self) -> bool:
        """Return False, as `_ConfirmingCatalog` has found. Raises HeadgateError: a change of the columns came first."""
        present = self._table.catalog.load_table(self._table.name())
        if present.metadata.table_uuid != self._table.metadata.table_uuid:
            raise created_again(self.name)
        self._rows.lacks_columns(present.schema().as_arrow(), self.name)
        return False

    def _position(self) -> TopicPosition | None:
        newest = self._table.current_snapshot()
        snapshots = ancestors_of(newest, self._table.metadata)
        text = next(filter(None, (each.summary.get(PROPERTY) for each in snapshots if each.summary)), None)
        if text is None and (text := self._table.properties.get(PROPERTY)) is not None:
            last = self._table.properties.get(LAST_ROW)
            if last is not None and not len(self._table.scan(last, ("offset",), limit=1).to_arrow()):
                raise HeadgateError(
                    f"{self.name} was rolled back, or the last row of its last export deleted, and the snapshots with "
                    f"its position have expired: export to another table, or remove {LAST_ROW} if it was not"
                )
        elif text is None and newest is not None:
            raise foreign_rows(self.name)
        return None if text is None else decoded(text, self.name)


class _ConfirmingCatalog:
    """A catalog that knows its own commits, and refuses one if the columns have changed since the table was read.

    When the answer to a commit was lost, its repetition is refused. Without retries pyiceberg (seen with 0.12) would
    then delete the manifests of what is in the table.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        same_columns = AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})
        try:
            return self._catalog.commit_table(table, (*requirements, same_columns), updates)
        except CommitFailedException:
            added = [each.snapshot.snapshot_id for each in updates if isinstance(each, AddSnapshotUpdate)]
            found = self._catalog.load_table(table.name())
            if not added or not all(map(found.metadata.snapshot_by_id, added)):
                raise
            return CommitTableResponse(metadata=found.metadata, **{"metadata-location": found.metadata_location})


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the catalog, and the identifier in it; raises ConfigError."""
    parts = name.split(".")
    if len(parts) < NAME_PARTS or not all(parts):
        raise ConfigError(f"{name!r} is not CATALOG.NAMESPACE.TABLE, of a catalog that pyiceberg is configured for")
    return parts[0], tuple(parts[1:])


def _catalog(name: str) -> Catalog:
    """Return a catalog; raises ConfigError: its settings are wrong, or HeadgateError: it does not answer as one."""
    settings = f"PYICEBERG_CATALOG__{name.upper()}__TYPE, …__URI and so on, or ~/.pyiceberg.yaml"
    configured = Config().get_catalog_config(name) or {}
    if configured.get("type", "rest") in NEED_URI and not configured.get("uri"):
        raise ConfigError(f"pyiceberg has no URI of a catalog {name!r}: set {settings}")
    try:
        return load_catalog(name)
    except Exception as error:  # They have no common base: of pyiceberg, requests, pydantic, SQLAlchemy and boto3.
        wrong = ConfigError if isinstance(error, ValueError) else HeadgateError
        raise wrong(f"catalog {name!r}: {one_line(error)}; its settings are {settings}") from error


def loaded_table(name: str) -> Table:
    """Return the table CATALOG.NAMESPACE.TABLE. Raises HeadgateError, or what pyiceberg raises."""
    catalog, identifier = _parts(name)
    return _catalog(catalog).load_table(identifier)


def _opened(catalog_name: str, identifier: tuple[str, ...], rows: TableRows) -> Table:
    catalog = _catalog(catalog_name)
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        if catalog_name != (known := catalog_name.lower()):  # Both would have the same folders.
            raise ConfigError(f"pyiceberg configures catalogs in lower case: name it {known!r}") from None
        catalog.create_namespace_if_not_exists(identifier[:-1])
    with catalog.create_table_transaction(identifier, rows.schema, properties=NO_RETRIES) as transaction:
        if rows.by_day:
            with transaction.update_spec() as spec:
                spec.add_identity(DAY)
    return catalog.load_table(identifier)
