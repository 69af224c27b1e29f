"""The contract of the tables that `headgate export` writes, on the libraries that write them."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from msgspec.structs import replace
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.types import LongType
from pyiceberg.utils.config import Config

from headgate.errors import ConfigError, HeadgateError
from headgate.lakehouse import delta
from headgate.lakehouse.delta import DeltaExport
from headgate.lakehouse.iceberg import LAST_ROW, IcebergExport
from headgate.lakehouse.parquet import ParquetExport
from headgate.lakehouse.table_rows import TableRows
from headgate.lakehouse.tables import ExportTable, OpenTable, TableConflictError, decoded
from headgate.reading.stored_rows import SCHEMA
from headgate.reading.topic_position import TopicPosition
from headgate.storage.object_store import open_store

pytestmark = pytest.mark.contract

ORIGIN = TopicPosition(topic="orders", topic_id=7, ledger_id="0123456789abcdef" * 2)


def position(chunk: int, *, newest: int = 0, **offsets: int) -> TopicPosition:
    """Return a position in the segments ``s0=5`` and so on."""
    return replace(
        ORIGIN,
        chunk=chunk,
        term_id=2**63 - chunk,
        newest=newest,
        offsets={int(name[1:]): offset for name, offset in offsets.items()},
    )


def batch(*values: bytes) -> pa.RecordBatch:
    """Return records of segment 0, the first of which has offset 0."""
    at = list(range(len(values)))
    headers = ([None, [{"name": "n", "value": b"\xff"}]] * len(at))[: len(at)]
    columns = [[b"k"] * len(at), list(values), headers, at, [0] * len(at), at]
    schema = pa.schema(SCHEMA)
    return pa.record_batch([pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema)


@dataclass
class Kind:
    """One kind of table, at one place."""

    open_table: OpenTable
    place: str
    rows: Callable[[], pa.Table]
    """What other programs read of it."""

    def opened(self, layout: TableRows | None = None, origin: TopicPosition = ORIGIN) -> ExportTable:
        return self.open_table(self.place, origin, layout or TableRows(None, by_day=False))

    def values(self) -> list[bytes]:
        return sorted(self.rows()["value"].to_pylist())


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.chdir(tmp_path)
    return Kind(IcebergExport, "lake.a.orders", lambda: load_catalog("lake").load_table("a.orders").scan().to_arrow())


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({}, ConfigError, "pyiceberg has no URI of a catalog 'prod'"),
        ({"TYPE": "rest", "CREDENTIAL": "a:b"}, ConfigError, "pyiceberg has no URI of a catalog 'prod'"),
        ({"TYPE": "rset", "URI": "http://127.0.0.1:1"}, ConfigError, "catalog 'prod': 'rset' is not a valid Cat"),
        ({"TYPE": "rest", "URI": "catalog.example"}, ConfigError, "catalog 'prod': Invalid URL 'catalog.example"),
        ({"TYPE": "rest", "URI": "http://127.0.0.1:1"}, HeadgateError, "catalog 'prod': .*refused"),
    ],
)
def test_a_catalog_that_cannot_be_used_is_named_in_one_line_with_its_variables(settings, error, reason, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(error, match=f"^{reason}.*PYICEBERG_CATALOG__PROD__TYPE, …__URI .*yaml$") as raised:
        IcebergExport("prod.sales.orders", ORIGIN, TableRows(None, by_day=False))
    assert error is type(raised.value)


def test_a_catalog_creates_no_table_under_a_second_name(iceberg: Kind) -> None:
    """pyiceberg finds the same settings under both names, and the tables would share a folder."""
    with pytest.raises(ConfigError, match=r"name it 'lake'$"):
        IcebergExport("Lake.a.orders", ORIGIN, TableRows(None, by_day=False))


def parquet_rows(url: str) -> pa.Table:
    store = open_store(url)
    names = asyncio.run(store.names("data"))
    files = [pa.BufferReader(asyncio.run(store.read(f"data/{name}"))) for name in names]
    return pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    """An S3 server in a process of its own: delta-rs keeps Python's lock while it waits for an answer."""
    serve = "import json; from tests.support.servers.s3_server import s3_server\n"
    serve += "with s3_server() as server: print(json.dumps(server.environment()), flush=True); input()"
    with (
        subprocess.Popen([sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in json.loads(process.stdout.readline()).items():
            environment.setenv(name, value)
        yield
        process.communicate(b"\n")


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return kind_at(request, request.param, (tmp_path / "orders").as_uri())


@pytest.fixture(
    params=[
        "delta",
        "iceberg",
        "parquet",
        *(pytest.param(f"{each} in a bucket", marks=pytest.mark.contract) for each in ("delta", "parquet")),
    ]
)
def kind_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    name, *in_bucket = request.param.split(maxsplit=1)
    if in_bucket:
        request.getfixturevalue("bucket")
    return kind_at(
        request, name, f"s3://bucket/{tmp_path.name}/orders" if in_bucket else (tmp_path / "orders").as_uri()
    )


def kind_at(request: pytest.FixtureRequest, name: str, url: str) -> Kind:
    if name == "iceberg":
        return request.getfixturevalue("iceberg")
    if name == "delta":
        return Kind(DeltaExport, url, lambda: pa.table(DeltaTable(url).to_pyarrow_table()))
    return Kind(ParquetExport, url, lambda: parquet_rows(url))


def rows(*values: bytes, layout: TableRows | None = None) -> pa.Table:
    return (layout or TableRows(None, by_day=False)).table([batch(*values)])


def test_a_position_is_read_back_with_the_rows_of_its_commit(kind_anywhere: Kind) -> None:
    table = kind_anywhere.opened()
    assert table.position is None
    for stated, values in (
        (position(5, newest=2, s0=2, s1=0), [b"a", b"b"]),
        (position(9, newest=4, s1=3, s3=0), [b"c"]),
    ):
        table.append(rows(*values), stated)
        assert stated == table.position == kind_anywhere.opened().position
    other = kind_anywhere.opened(origin=replace(ORIGIN, topic_id=8)).position
    assert other.topic_id == ORIGIN.topic_id, "which is refused, see test_exporter.py"
    found = kind_anywhere.rows()
    assert [b"a", b"b", b"c"] == kind_anywhere.values()
    assert {None, "n"} == {headers[0]["name"] if headers else None for headers in found["headers"].to_pylist()}


@pytest.mark.parametrize("has_rows", [False, True], ids=["a new table", "a table with rows"])
def test_of_two_exports_one_adds_rows(kind_anywhere: Kind, has_rows: bool) -> None:
    """The second one read its position before the first one wrote: the same records would be in the table twice."""
    if has_rows:
        kind_anywhere.opened().append(rows(b"a"), position(2, s0=1))
    first, second = kind_anywhere.opened(), kind_anywhere.opened()
    first.append(rows(b"b"), position(5, s0=2))

    with pytest.raises(TableConflictError, match=r"another commit to .*orders came first, so nothing was added"):
        second.append(rows(b"b", b"c"), position(7, s0=3))

    assert [b"a"] * has_rows + [b"b"] == kind_anywhere.values()
    again = kind_anywhere.opened()
    assert again.position == position(5, s0=2)
    again.append(rows(b"c"), position(7, s0=3))
    assert [b"a"] * has_rows + [b"b", b"c"] == kind_anywhere.values()


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_commit_whose_answer_was_lost_is_no_other_one(request, tmp_path: Path, monkeypatch, name: str) -> None:
    kind = kind_at(request, name, str(tmp_path / "orders"))
    module, attribute = (delta, "write_deltalake") if name == "delta" else (SqlCatalog, "commit_table")
    failure = CommitFailedError if name == "delta" else CommitFailedException
    original = getattr(module, attribute)

    def commit(*given: Any, **options: Any) -> None:
        other = DeltaTable(given[0].table_uri) if name == "delta" else given[0]
        original(other, *given[1:], **options)
        raise failure("repeated")

    table = kind.opened()
    with monkeypatch.context() as patched:
        patched.setattr(module, attribute, commit)
        table.append(rows(b"a"), position(2, s0=1))
    table.append(rows(b"b"), position(5, s0=2))
    assert [b"a", b"b"] == kind.values()


def test_fields_become_columns_and_a_later_schema_adds_columns(kind: Kind) -> None:
    kind.opened().append(rows(b'{"id":"x"}'), position(1, s0=1))
    for types, value in (({"id": "string"}, b'{"id":"y"}'), ({"id": "string", "n": "long"}, b'{"id":"z","n":3}')):
        layout = TableRows(types, by_day=False)
        kind.opened(layout).append(rows(value, layout=layout), position(2, s0=2))

    found = kind.rows().sort_by([("id", "ascending"), ("n", "ascending")]).select(["value", "id", "n"]).to_pylist()
    assert found == [
        {"value": None, "id": "y", "n": None},
        {"value": None, "id": "z", "n": 3},
        {"value": b'{"id":"x"}', "id": None, "n": None},
    ]
    for types, reason in (
        (None, "has column 'id' of type string, which is missing in the schema: give one with it"),
        ({"id": "string"}, "has column 'n' of type int64, which is missing"),
        ({"id": "string", "n": "double"}, "has column 'n' of type int64, which is of type double in the schema"),
    ):
        with pytest.raises(HeadgateError, match=reason):
            kind.opened(TableRows(types, by_day=False))


@pytest.mark.parametrize("again", [True, False], ids=["created again", "deleted"])
@pytest.mark.parametrize("name", ["delta", "iceberg", "parquet"])
def test_an_export_does_not_continue_a_table_that_was_deleted(request, tmp_path: Path, name: str, again: bool) -> None:
    """One that was created again has as many commits, and lacks the rows in front of the position."""
    kind = kind_at(request, name, (tmp_path / "orders").as_uri())
    table = kind.opened()
    table.append(rows(b"a", b"b"), position(1, s0=2))
    _ = load_catalog("lake").drop_table("a.orders") if name == "iceberg" else shutil.rmtree(tmp_path / "orders")
    if again:
        kind.opened().append(rows(b"a"), position(1, s0=1))

    what = r"orders was deleted and created again meanwhile" if again else "orders was deleted meanwhile"
    with pytest.raises(HeadgateError, match=f"{what}, so nothing was added: start this export again"):
        table.append(rows(b"c"), position(2, s0=3))

    found = kind.opened()
    assert found.position == (position(1, s0=1) if again else None)
    found.append(rows(b"z"), position(3, s0=2))
    assert [b"a"] * again + [b"z"] == kind.values()


def test_a_parquet_folder_that_is_created_again_while_it_is_opened_is_another(request, tmp_path: Path, monkeypatch):
    kind = kind_at(request, "parquet", str(tmp_path / "orders"))

    def read(*given: Any) -> pq.ParquetFile:
        monkeypatch.undo()
        shutil.rmtree(kind.place)
        kind.opened().append(rows(b"a"), position(1, s0=1))
        return pq.ParquetFile(*given)

    kind.opened().append(rows(b"a", b"b"), position(1, s0=2))
    monkeypatch.setattr("headgate.lakehouse.parquet.pq.ParquetFile", read)
    with pytest.raises(HeadgateError, match="was deleted and created again meanwhile"):
        kind.opened().append(rows(b"c"), position(2, s0=3))


@pytest.mark.parametrize("dropped", [False, True], ids=["added", "dropped"])
@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_change_of_columns_during_an_export_ends_it(request, tmp_path: Path, name: str, dropped: bool) -> None:
    """What is in a column that was dropped would be lost: the position says that it is in the table."""
    kind, layout = kind_at(request, name, str(tmp_path / "orders")), TableRows({"id": "string"}, by_day=False)
    table = kind.opened(layout)
    table.append(rows(b'{"id":"x"}', layout=layout), position(1, s0=1))
    if name == "delta":
        found = kind.rows()
        found = found.drop_columns("id") if dropped else found.append_column("n", pa.array([3]))
        write_deltalake(kind.place, found, mode="overwrite", schema_mode="overwrite")
    else:
        with table_of_orders().update_schema(allow_incompatible_changes=True) as columns:
            _ = columns.delete_column("id") if dropped else columns.add_column("n", LongType())
    next_rows, reason = (
        rows(b'{"id":"y"}', layout=layout),
        "has column 'n' of type int64, which is missing in the schema",
    )

    with pytest.raises(HeadgateError, match="another commit .* came first" if dropped else reason):
        table.append(next_rows, position(2, s0=2))

    assert len(kind.rows()) == 1
    if dropped:
        kind.opened(layout).append(next_rows, position(2, s0=2))
        assert {None, "y"} == {*kind.rows()["id"].to_pylist()}, "dropped, and added again"
    else:
        with pytest.raises(HeadgateError, match=reason):
            kind.opened(layout)


def test_the_table_of_another_topic_is_not_changed_before_it_is_refused(kind: Kind) -> None:
    """Its own export could not continue with columns that its schema lacks."""
    kind.opened().append(rows(b"a"), position(1, s0=1))
    kind.opened(TableRows({"id": "string"}, by_day=False), replace(ORIGIN, topic="others", topic_id=8))
    kind.opened().append(rows(b"b"), position(2, s0=2))

    assert [b"a", b"b"] == kind.values()


def test_delta_and_iceberg_are_partitioned_by_day(kind: Kind) -> None:
    layout = TableRows(None, by_day=True)
    if kind.open_table is ParquetExport:
        with pytest.raises(HeadgateError, match="--partition-by day needs a Delta or Iceberg table"):
            kind.opened(layout)
        return
    kind.opened(layout).append(rows(b"a", layout=layout), position(1, s0=1))

    assert ["1970-01-01"] == [str(day) for day in kind.rows()["day"].to_pylist()]
    with pytest.raises(HeadgateError, match="has a column 'day': add --partition-by day"):
        kind.opened()


def test_positions_survive_the_maintenance_of_a_delta_table(tmp_path: Path) -> None:
    """Its log is rewritten as a checkpoint and deleted, and its files are compacted and deleted."""
    url = str(tmp_path / "orders")
    for chunk in range(1, 4):
        DeltaExport(url, ORIGIN, TableRows(None, by_day=False)).append(rows(b"a"), position(chunk, s0=chunk))
    table = DeltaTable(url)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    assert DeltaExport(url, ORIGIN, TableRows(None, by_day=False)).position == position(3, s0=3)


def test_a_delta_table_that_was_restored_to_before_the_last_export_is_refused(tmp_path: Path, monkeypatch) -> None:
    """Its transaction identifiers stay, so the next export would leave out what was taken back."""
    monkeypatch.setattr(delta, "RECENT_COMMITS", 2)
    url = str(tmp_path / "orders")
    for chunk in range(1, 4):
        DeltaExport(url, ORIGIN, TableRows(None, by_day=False)).append(rows(b"a"), position(chunk, s0=chunk))
    DeltaTable(url).delete()
    DeltaTable(url).restore(3)  # What another program did is taken back, and nothing of an export.
    assert DeltaExport(url, ORIGIN, TableRows(None, by_day=False)).position == position(3, s0=3)
    DeltaTable(url).restore(2)
    for _ in range(3):
        with pytest.raises(HeadgateError, match="was restored, and lacks rows of an export"):
            DeltaExport(url, ORIGIN, TableRows(None, by_day=False))
        DeltaTable(url).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        DeltaTable(url).restore(DeltaTable(url).version() - 1)
    DeltaTable(url).restore(4)
    assert DeltaExport(url, ORIGIN, TableRows(None, by_day=False)).position == position(3, s0=3)


def table_of_orders() -> Table:
    return load_catalog("lake").load_table("a.orders")


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("rolled_back", [False, True])
def test_an_iceberg_table_that_is_rolled_back_continues_at_its_rows_or_is_refused(
    iceberg: Kind, rolled_back: bool, expired: bool, rewritten: bool
) -> None:
    """The position of the last export is in the table, but the rolled back one has not its rows."""
    iceberg.opened().append(rows(b"1"), position(1, s0=1))
    table_of_orders().overwrite(table_of_orders().scan().to_arrow())  # Another program compacts it.
    before = table_of_orders().current_snapshot()
    if rolled_back:
        iceberg.opened().append(rows(b"1", b"2").slice(1), position(2, s0=2))
        with table_of_orders().manage_snapshots() as snapshots:
            snapshots.rollback_to_snapshot(before.snapshot_id)
    if rewritten:
        table_of_orders().overwrite(table_of_orders().scan().to_arrow())
    present = table_of_orders().current_snapshot()
    if expired:
        with table_of_orders().maintenance.expire_snapshots() as found:
            found.by_ids([each.snapshot_id for each in table_of_orders().snapshots() if each != present])
    if expired and rolled_back:
        with pytest.raises(
            HeadgateError, match=r"was rolled back, .* have expired: export to another table, or remove"
        ):
            iceberg.opened()
        with table_of_orders().transaction() as transaction:
            transaction.remove_properties(LAST_ROW)
    else:
        assert iceberg.opened().position == position(1, s0=1)
    iceberg.opened().append(rows(b"3"), position(3, s0=3))
    assert [b"1", b"3"] == iceberg.values()


def test_rows_that_no_export_has_written_are_not_mixed_with_records(kind: Kind) -> None:
    if kind.open_table is DeltaExport:
        write_deltalake(kind.place, rows(b"a"))
    elif kind.open_table is IcebergExport:
        kind.opened()
        load_catalog("lake").load_table("a.orders").append(rows(b"a"))
    else:
        out = pa.BufferOutputStream()
        pq.write_table(rows(b"a"), out)
        asyncio.run(open_store(kind.place).create("data/000000000001.parquet", out.getvalue().to_pybytes()))

    with pytest.raises(HeadgateError, match="rows that no export has written"):
        kind.opened()


@pytest.mark.parametrize("stored", [b'{"topic": 1}', b'{"topic": "\xff"}'], ids=["another type", "no text"])
def test_a_position_that_cannot_be_read_names_its_table(stored: bytes) -> None:
    with pytest.raises(HeadgateError, match=r"^table sales has a position that this version does not read: "):
        decoded(stored, "table sales")


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        pytest.param(DeltaExport, ParquetExport, "has _delta_log beside data", id="Parquet into Delta"),
        pytest.param(ParquetExport, DeltaExport, "would share its folder with data", id="Delta into Parquet"),
    ],
)
def test_a_table_shares_its_folder_with_no_other(first, second, refusal, tmp_path):
    first(str(tmp_path), ORIGIN, TableRows(None, by_day=False)).append(rows(b"1"), position(1))

    with pytest.raises(HeadgateError, match=refusal):
        second(str(tmp_path), ORIGIN, TableRows(None, by_day=False))
