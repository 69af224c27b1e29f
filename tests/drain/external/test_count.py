"""Counting the tables of an external topic with offsets: all formats, duplicates, files that change meanwhile, faults."""

import asyncio
import base64
import json
import random
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.types import LongType
from pyroaring import BitMap

from drain.backlog.merge import StateRow
from drain.external import count as count_module
from drain.external import table_files
from drain.external.count import ATTEMPTS, TableCounter
from drain.external.known_files import TableError
from drain.protocol import Backlog
from drain.spark.engines import RunError
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from headgate.lakehouse import iceberg
from tests.support.samples.table_files import InProcessSpark, write_table
from tests.support.servers.s3_server import BUCKET, SECRET

pytestmark = pytest.mark.contract

VIEW = ExternalView(topic="orders", labels={0: "a", 1: "b", 2: "c"})
ROWS = (
    StateRow(1, None, 0, sealed_end_offset=10),
    StateRow(1, None, 1),
    StateRow(1, None, 2),
    StateRow(1, 2, None, seek_generation=3, subscription_type="STREAM"),
)
"""The ledger's rows: segment a is sealed at 10, b and c are active."""
COUNTED = {0: (0, 0, None, True), 1: (1, 7, 2003, False), 2: (0, 0, None, False)}
"""What is left of `entry_rows` after `acks`: records, bytes, oldest, drained."""
FORMATS = ("parquet", "json", "csv", "delta", "iceberg")


def entry_rows() -> list[dict[str, Any]]:
    rows = [{"shard": "a", "seq": n, "bytes": 11, "at": 1000 + n} for n in range(10)]
    return rows + [{"shard": "b", "seq": n, "bytes": 7, "at": 2000 + n} for n in range(4)]


def ack(shard: str = "a", first: int = 0, end: int = 10) -> dict[str, Any]:
    return {"app": 2, "shard": shard, "first": first, "next": end}


ACKS = [ack(), ack(end=4), ack("b", end=3), ack("b", first=1, end=2)]


def entries(path: Path, form: str = "parquet", **more: Any) -> EntriesTable:
    where = f"lake.shop.{path.name}" if form == "iceberg" else str(path)
    columns = {"size_bytes": "bytes", "timestamp": "at"} | more
    return EntriesTable(path=where, format=form, segment="shard", offset="seq", **columns)


def acknowledgements(path: Path, form: str = "parquet") -> AcknowledgementsTable:
    where = f"lake.shop.{path.name}" if form == "iceberg" else str(path)
    columns = {"subscription_id": "app", "segment": "shard", "first_offset": "first", "end_offset": "next"}
    return AcknowledgementsTable(path=where, format=form, **columns)


class Counter:
    """A counter without Spark, and the number of files that each of its runs read."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.counter = TableCounter(self.run)
        self.before_run = lambda: None
        self.fails_above = 1000

    async def run(self, work: Any) -> Any:
        self.before_run()
        found = work(InProcessSpark())
        if found["label"].null_count > self.fails_above:
            raise RunError("the run took longer than 60 s and was cancelled")
        self.reads.append(found["label"].null_count)
        return found

    async def __call__(self, *tables: EntriesTable | AcknowledgementsTable, rows: Any = ROWS) -> tuple[Backlog, ...]:
        by_kind = {"entries" if isinstance(each, EntriesTable) else "acknowledgements": each for each in tables}
        return await self.counter.count(ExternalTables(**by_kind), VIEW, rows, 5)


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter:
    monkeypatch.chdir(tmp_path)
    return Counter()


def by_segment(backlogs: tuple[Backlog, ...]) -> dict[int, tuple[int | None, int | None, int | None, bool]]:
    return {row.segment: (row.records, row.size_bytes, row.oldest_ms, row.drained) for row in backlogs}


@pytest.mark.parametrize("form", FORMATS)
async def test_rows_that_occur_twice_count_once_in_every_format(counter: Counter, tmp_path: Path, form: str) -> None:
    for at, rows in enumerate([entry_rows()[:11], entry_rows(), entry_rows()[12:] * 2]):
        write_table(tmp_path / "entries", rows, form, f"part-{at}")
    write_table(tmp_path / "acks", ACKS + ACKS[:2], form)

    given = entries(tmp_path / "entries", form), acknowledgements(tmp_path / "acks", form)
    assert by_segment(await counter(*given)) == COUNTED
    assert by_segment(await counter(*given)) == COUNTED
    assert len(counter.reads) == 2, "the second count reads no file"


@pytest.mark.spark
async def test_spark_reads_the_files(spark, tmp_path: Path) -> None:
    write_table(tmp_path / "entries", entry_rows())
    write_table(tmp_path / "entries", entry_rows()[5:], name="part-1")
    write_table(tmp_path / "acks", ACKS, "json")

    async def run(work: Any) -> Any:
        return work(spark)

    given = ExternalTables(
        entries=entries(tmp_path / "entries"), acknowledgements=acknowledgements(tmp_path / "acks", "json")
    )
    assert by_segment(await TableCounter(run).count(given, VIEW, ROWS, 5)) == COUNTED


async def test_without_a_table_of_entries_ends_come_from_the_ledger(counter: Counter, tmp_path: Path) -> None:
    write_table(tmp_path / "acks", [ack(end=9)])
    found = await counter(acknowledgements(tmp_path / "acks"))
    assert {0: (1, None, None, False), 1: (None, None, None, False), 2: (None, None, None, False)} == by_segment(found)


async def test_without_a_table_of_acknowledgements_those_in_the_ledger_count(counter: Counter, tmp_path: Path) -> None:
    write_table(tmp_path / "entries", entry_rows())
    rows = (*ROWS, StateRow(1, 2, 0, seek_generation=3, position=10), StateRow(1, 2, 1, seek_generation=3, position=3))
    assert by_segment(await counter(entries(tmp_path / "entries"), rows=rows)) == COUNTED


@pytest.mark.parametrize("form", FORMATS)
async def test_rows_that_were_written_for_a_deleted_subscription_count_for_no_other_of_its_name(
    counter: Counter, tmp_path: Path, form: str
) -> None:
    write_table(tmp_path / "acks", [ack(end=9) | {"app": 1}, ack(end=6) | {"app": 4}], form)
    given = acknowledgements(tmp_path / "acks", form)
    left = {}
    for number in (1, 2, 4):
        found = await counter(given, rows=(*ROWS[:3], replace(ROWS[3], subscription_id=number)))
        left[number] = by_segment(found)[0][0]
    assert left == {1: 1, 2: 10, 4: 4}
    write_table(tmp_path / "named", [ack() | {"app": "billing"}], form)
    with pytest.raises(TableError, match=r"column 'app'.*billing|column 'app' is of type"):
        await counter(acknowledgements(tmp_path / "named", form))


async def test_an_empty_folder_has_no_entries(counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    found = await counter(entries(tmp_path / "entries"))
    assert {0: 10, 1: 0, 2: 0} == {row.segment: row.records for row in found}


# Files that change


async def test_only_new_files_are_read_and_removed_ones_are_forgotten(counter: Counter, tmp_path: Path) -> None:
    given = entries(tmp_path / "t")
    for at in range(3):
        write_table(tmp_path / "t", [{"shard": "b", "seq": at, "bytes": 1, "at": at}], name=f"part-{at}")
    assert by_segment(await counter(given))[1][0] == 3

    write_table(tmp_path / "t", [{"shard": "b", "seq": 7, "bytes": 1, "at": 9}], name="part-7")
    assert by_segment(await counter(given))[1][0] == 8
    (tmp_path / "t" / "part-7.parquet").unlink()
    write_table(tmp_path / "t", [{"shard": "b", "seq": n, "bytes": 1, "at": 9} for n in range(5)], name="part-2")
    assert by_segment(await counter(given))[1][0] == 5
    assert counter.reads == [3, 1, 1]


@pytest.mark.parametrize("late", [1, 99], ids=["once", "in each attempt"])
async def test_a_table_that_is_compacted_and_vacuumed_during_a_count_is_counted_at_a_later_version(
    counter: Counter, tmp_path: Path, late: int
) -> None:
    for at in range(3):
        write_table(tmp_path / "t", [{"shard": "b", "seq": at, "bytes": 1, "at": at}], "delta")
    compactions = 0

    def compact() -> None:
        nonlocal compactions
        compactions += 1
        if compactions <= late:
            write_table(tmp_path / "t", [{"shard": "b", "seq": 3, "bytes": 1, "at": 3}], "delta")
            table = DeltaTable(tmp_path / "t")
            table.optimize.compact()
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    counter.before_run = compact
    if late < ATTEMPTS:
        assert by_segment(await counter(entries(tmp_path / "t", "delta")))[1][0] == 4
        assert counter.reads == [3, 1]
    else:
        with pytest.raises(TableError, match=r"external.orders.entries \(.*parquet: is listed and does not exist"):
            await counter(entries(tmp_path / "t", "delta"))


Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)
"""From Python's base 85 to that of Delta's deletion vectors."""


@pytest.mark.parametrize("scheme", ["", "file:"], ids=["of the table", "at an absolute path, as in a shallow clone"])
async def test_rows_in_a_deletion_vector_of_delta_do_not_count(counter: Counter, tmp_path: Path, scheme: str) -> None:
    """deltalake writes none, so the commit is written here."""
    table = tmp_path / "my table"
    write_table(table, entry_rows(), "delta")
    given = entries(table, "delta")
    assert by_segment(await counter(given))[1][0] == 4
    log = table / "_delta_log"
    add = next(json.loads(line)["add"] for line in (log / f"{0:020}.json").read_text().splitlines() if '{"add"' in line)
    bitmap = struct.pack("<IQI", 1681511377, 1, 0) + BitMap([12, 13]).serialize()
    bitmap += bytes(-len(bitmap) % 4)
    text = base64.b85encode(bitmap).decode().translate(Z85)
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 2}
    path = (scheme and scheme + quote(f"{table}/")) + add["path"]
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": add | {"path": path, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))

    assert by_segment(await counter(given))[1][:2] == (2, 14)
    assert counter.reads == [1, 1]


async def test_a_file_of_another_table_of_that_name_is_another_file(counter: Counter, tmp_path: Path) -> None:
    """Of the same path and size, as a table gets that is dropped, and created again over files that others write."""
    for first in (0, 5):
        rows = pa.Table.from_pylist([{"shard": "b", "seq": first, "bytes": 7, "at": 1}])
        pq.write_table(rows, tmp_path / "x.parquet", use_dictionary=False, compression="none")
        catalog = load_catalog("lake")
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table("shop.t", rows.schema).add_files([str(tmp_path / "x.parquet")])
        assert by_segment(await counter(entries(tmp_path / "t", "iceberg")))[1][0] == first + 1
        catalog.drop_table("shop.t")


async def test_rows_in_a_position_delete_of_iceberg_do_not_count(counter: Counter, tmp_path: Path, monkeypatch) -> None:
    """pyiceberg writes none, so its plan is changed here. Other kinds of deletes are refused."""
    write_table(tmp_path / "t", entry_rows(), "iceberg")
    assert by_segment(await counter(entries(tmp_path / "t", "iceberg")))[1][:2] == (4, 28)
    monkeypatch.setattr(ManifestFile, "content", ManifestContent.DELETES)
    plan = DataScan.plan_files
    (task,) = plan(load_catalog("lake").load_table("shop.t").scan())
    deletes = pa.table({"file_path": [task.file.file_path, "another", task.file.file_path], "pos": [12, 1, 13]})
    pq.write_table(deletes, tmp_path / "deletes.parquet")

    def deleted_by(form: FileFormat) -> None:
        path = str(tmp_path / "deletes.parquet")
        delete = IcebergFile.from_args(file_path=path, file_format=form, content=DataFileContent.POSITION_DELETES)
        monkeypatch.setattr(
            DataScan, "plan_files", lambda scan: [FileScanTask(each.file, {delete}) for each in plan(scan)]
        )

    deleted_by(FileFormat.PARQUET)
    assert by_segment(await counter(entries(tmp_path / "t", "iceberg")))[1][:2] == (2, 14)
    deleted_by(FileFormat.PUFFIN)
    with pytest.raises(TableError, match=r"deletes.parquet is not Parquet, and .* deletion vectors are not read"):
        await counter(entries(tmp_path / "t", "iceberg"))


@pytest.mark.parametrize("seed", range(2))
def test_a_list_of_an_iceberg_table_reads_its_new_manifests_only_whatever_has_happened_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, catalog, read = random.Random(seed), load_catalog("lake"), list[str]()
    catalog.create_namespace("shop")
    rows = pa.table({"shard": ["a", "b"], "seq": [1, 2]})
    pq.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    fetch = ManifestFile.fetch_manifest_entry
    known: table_files.Manifests = {}

    def created() -> None:
        merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
        made = catalog.create_table("shop.t", rows.schema, properties=merging if rng.random() < 0.5 else {})
        with made.update_spec() as spec:
            spec.add_identity("shard")

    def rolled_back(table: Table) -> None:
        earlier = rng.choice([*ancestors_of(table.current_snapshot(), table.metadata)])
        with table.manage_snapshots() as snapshots:
            snapshots.rollback_to_snapshot(earlier.snapshot_id)

    def expired(table: Table) -> None:
        with table.maintenance.expire_snapshots() as snapshots:
            snapshots.by_ids([each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()])

    def counted(manifest: ManifestFile, *given: Any, **options: Any) -> Any:
        read.append(manifest.manifest_path)
        return fetch(manifest, *given, **options)

    happenings: list[Callable[[Table], object]] = [
        *(4 * [lambda table: table.append(rows)]),
        lambda table: table.overwrite(rows),
        lambda table: table.delete("seq = 1"),
        lambda table: table.add_files([str(tmp_path / "empty.parquet")], check_duplicate_files=False),
        lambda _: (catalog.drop_table("shop.t"), created()),
        rolled_back,
        expired,
    ]
    created()
    for _ in range(25):
        table = catalog.load_table("shop.t")
        rng.choice(happenings if table.current_snapshot() else happenings[:1])(table)
        table = catalog.load_table("shop.t")
        whole = sorted(
            (each.file.file_path.removeprefix("file://"), each.file.file_size_in_bytes)
            for each in table.scan().plan_files()
        )
        snapshot, before = table.current_snapshot(), {*known}
        with monkeypatch.context() as patched:
            patched.setattr(ManifestFile, "fetch_manifest_entry", counted)
            found = table_files.table_files(entries(tmp_path / "t", "iceberg"), ["shard", "seq"], known)
        assert whole == [(file.path, file.size_bytes) for file in found]
        uuid = str(table.metadata.table_uuid)
        names = {(uuid, each.manifest_path) for each in snapshot.manifests(table.io)} if snapshot else set()
        assert names == known.keys(), "others are forgotten"
        assert sorted(name for _, name in names - before) == sorted(read)
        read.clear()


async def test_a_column_of_an_iceberg_table_may_be_renamed_and_widened(counter: Counter, tmp_path: Path) -> None:
    rows = [row | {"seq": row["seq"]} for row in entry_rows()]
    old = pa.Table.from_pylist(rows).rename_columns(["stream", "seq", "bytes", "at"])
    old = old.set_column(1, "seq", old["seq"].cast(pa.int32()))
    catalog = load_catalog("lake")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.t", old.schema)
    table.append(old)
    with table.update_schema() as update:
        update.rename_column("stream", "shard")
        update.update_column("seq", LongType())
    table.append(pa.Table.from_pylist([{"shard": "b", "seq": 4, "bytes": 7, "at": 2004}]))
    assert by_segment(await counter(entries(tmp_path / "t", "iceberg")))[1] == (5, 35, 2000, False)


async def test_files_of_other_types_and_without_later_columns_are_one_table(counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "t" / "day=2026-11-26").mkdir(parents=True)
    old = pa.table({"shard": ["b"] * 2, "seq": pa.array([0, 1], pa.int32()), "at": pa.array([2000, 2001], pa.int64())})
    pq.write_table(old, tmp_path / "t" / "day=2026-11-26" / "x.parquet")
    at = pa.array([datetime(2026, 11, 27, tzinfo=UTC)] * 2).cast(pa.timestamp("us", "Europe/Berlin"))
    new = pa.table({"shard": pa.array(["b"] * 2).dictionary_encode(), "seq": [2, 3], "at": at, "bytes": [6, 8]})
    pq.write_table(new, tmp_path / "t" / "y.parquet")
    (tmp_path / "t" / "_temporary").mkdir()
    (tmp_path / "t" / "_temporary" / "z.parquet").write_text("not finished")

    given = entries(tmp_path / "t")
    assert by_segment(await counter(given))[1] == (4, 28, 2000, False), "the mean of those with a size is 7"
    rows = (*ROWS, StateRow(1, 2, 1, seek_generation=3, position=3))
    assert by_segment(await counter(given, rows=rows))[1] == (1, 7, 1_795_737_600_000, False)


async def test_a_path_may_have_wildcards_or_name_a_file(counter: Counter, tmp_path: Path) -> None:
    for name in ("b-1", "b-2", "other", "[x]/[other]"):
        write_table(
            (tmp_path / "t" / name).parent, [{"shard": "b", "seq": len(name), "bytes": 1, "at": 1}], name=name[-7:]
        )
    names = ("b-*", "other.parquet", "[x]", "[x]/[other].parquet")
    found = [by_segment(await counter(entries(tmp_path / "t" / name)))[1][0] for name in names]
    assert found == [4, 6, 12, 12]
    with pytest.raises(TableError, match="there is no such object"):
        await counter(entries(tmp_path / "t" / "c-*"))


@pytest.mark.parametrize("form", ["csv", "delta", "iceberg"])
async def test_a_table_may_be_in_a_bucket(s3, counter: Counter, tmp_path: Path, form: str, monkeypatch) -> None:
    given, url = entries(tmp_path / "t", form), f"s3a://{BUCKET}/lake {form}"
    if form == "iceberg":
        url, rows = given.path, pa.Table.from_pylist(entry_rows())
        s3_options = {"endpoint": s3.url, "region": "us-east-1", "access-key-id": "a", "secret-access-key": SECRET}
        catalog = load_catalog("lake", **{f"s3.{name}": value for name, value in s3_options.items()})
        monkeypatch.setattr(iceberg, "load_catalog", lambda _: catalog)
        catalog.create_namespace("shop")
        catalog.create_table("shop.t", rows.schema, location=f"s3://{BUCKET}/lake iceberg").append(rows)
    elif form == "delta":
        write_deltalake(f"s3://{BUCKET}/lake {form}", pa.Table.from_pylist(entry_rows()), partition_by=["shard"])
    else:
        write_table(tmp_path / "t" / "shard=b", [{"seq": at, "bytes": 7, "at": at} for at in range(4)], form)
        file = tmp_path / "t" / "shard=b" / "part-0.csv"
        obstore.put(obstore.store.from_url(url.replace("s3a", "s3")), "shard=b/part-0.csv", file.read_bytes())
    assert by_segment(await counter(msgspec.structs.replace(given, path=url)))[1][:2] == (4, 28)
    nowhere = "lake.shop.nowhere" if form == "iceberg" else f"s3://{BUCKET}/nowhere"
    with pytest.raises(TableError, match=rf"external.orders.entries \({nowhere}\): "):
        await counter(msgspec.structs.replace(given, path=nowhere))


async def test_a_listing_that_hangs_names_its_table_and_delays_no_other_count(counter, tmp_path, monkeypatch):
    hangs, listed = threading.Event(), count_module.table_files
    for name in ("slow", "quick"):
        write_table(tmp_path / name, entry_rows())

    def listing(table: Any, *given: Any) -> Any:
        assert table.path.endswith("quick") or hangs.wait(60)
        return listed(table, *given)

    monkeypatch.setattr(count_module, "table_files", listing)
    monkeypatch.setattr(count_module, "LISTING_SECONDS", 0.2)
    for _ in range(2):  # The second count does not begin another listing.
        with pytest.raises(
            TableError, match=r"entries \(.*slow\): its files were not listed within 0.2 s, and are still"
        ):
            await counter(entries(tmp_path / "slow"))
    others = tuple(replace(row, topic_id=2) for row in ROWS)
    assert by_segment(await counter(entries(tmp_path / "quick"), rows=others))[1][0] == 4
    hangs.set()
    await finished(counter)

    assert by_segment(await counter(entries(tmp_path / "slow")))[1][0] == 4


async def finished(counter: Counter) -> None:
    """Wait until the listings that no count waits for have ended."""
    await asyncio.wait({each for topic in counter.counter._topics.values() for each in topic.listings.values()})


async def test_acknowledgements_that_a_seek_deleted_after_a_slow_listing_do_not_count(counter, tmp_path, monkeypatch):
    """The next listing may take as long as the slow one: there is no older one to fall back on."""
    write_table(tmp_path / "acks", [ack()], "delta")
    listed, slow_seconds = count_module.table_files, [0.1, 0.5]

    def listing(table: Any, *given: Any) -> Any:
        found = listed(table, *given)
        time.sleep(slow_seconds.pop())
        return found

    monkeypatch.setattr(count_module, "table_files", listing)
    monkeypatch.setattr(count_module, "LISTING_SECONDS", 0.01)
    given = acknowledgements(tmp_path / "acks", "delta")
    with pytest.raises(TableError, match="still being listed"):
        await counter(given)
    await finished(counter)
    DeltaTable(tmp_path / "acks").delete("app = 2")
    assert by_segment(await counter(given))[0][0] == 10


async def test_the_segment_may_be_the_column_of_a_partition(counter: Counter, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "my t", pa.Table.from_pylist(entry_rows()), partition_by=["shard"])
    write_table(tmp_path / "f" / "shard=b", [{"seq": 4, "bytes": 1, "at": 1}])
    assert by_segment(await counter(entries(tmp_path / "my t", "delta")))[1][0] == 4
    assert by_segment(await counter(entries(tmp_path / "f")))[1][0] == 5


async def test_large_tables_are_read_in_several_runs(counter: Counter, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(count_module, "RUN_BYTES", 2 * count_module.LEAST_BYTES)
    for at in range(5):
        write_table(tmp_path / "t", [{"shard": "b", "seq": at, "bytes": 1, "at": at}], name=f"part-{at}")
    (tmp_path / "t" / "part-3.parquet").write_text("cut off")
    with pytest.raises(TableError, match=r"part-3\.parquet"):
        await counter(entries(tmp_path / "t"))
    write_table(tmp_path / "t", [{"shard": "b", "seq": 3, "bytes": 1, "at": 3}], name="part-3")
    assert by_segment(await counter(entries(tmp_path / "t")))[1][0] == 5
    assert counter.reads == [2, 3, 1], "what was read before the fault is not read again"


async def test_a_run_that_takes_too_long_is_followed_by_smaller_ones(counter: Counter, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(count_module, "RUN_BYTES", 32 * count_module.LEAST_BYTES)
    counter.fails_above = 10
    for at in range(14):
        write_table(tmp_path / "t", [{"shard": "b", "seq": at, "bytes": 1, "at": at}], name=f"part-{at}")
    with pytest.raises(RunError, match=r"external.orders.entries \(.*\): the run took longer"):
        await counter(entries(tmp_path / "t"))
    assert by_segment(await counter(entries(tmp_path / "t")))[1][0] == 14
    assert counter.reads == [8, 6]


async def test_a_large_file_is_read_in_pieces(counter: Counter, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(table_files, "PIECE_BYTES", 500)
    (tmp_path / "t").mkdir()
    pq.write_table(pa.Table.from_pylist(entry_rows()), tmp_path / "t" / "x.parquet", row_group_size=3)
    assert by_segment(await counter(entries(tmp_path / "t")))[1] == (4, 28, 2000, False)
    assert counter.reads[0] > 3


async def test_what_is_known_of_a_deleted_topic_is_forgotten(counter: Counter, tmp_path: Path) -> None:
    write_table(tmp_path / "t", entry_rows())
    await counter(entries(tmp_path / "t"))
    counter.counter.forget((5, 1))
    await counter(entries(tmp_path / "t"))
    await counter(entries(tmp_path / "t"), rows=[replace(row, topic_id=9) for row in ROWS])
    assert counter.reads == [1, 1, 1]


# Faults


def changed(**columns: Any) -> list[dict[str, Any]]:
    """Return the entries with the second row changed."""
    rows = entry_rows()
    rows[1] = rows[1] | columns
    return rows


def without(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


ENTRY_FAULTS = {
    "a missing column": (without("seq", entry_rows()), "has no column 'seq'; it has shard, bytes, at"),
    "a column that no file has": (without("at", entry_rows()), "no file has a value in column 'at'"),
    "a null offset": (changed(seq=None), "column 'seq' is null in 1 row(s), first in row 2"),
    "a null segment": (changed(shard=None), "column 'shard' is null in 1 row(s), first in row 2"),
    "a negative offset": (changed(seq=-1), "an offset is negative in 1 row(s), first in row 2"),
    "a negative size": (changed(bytes=-1), "a size is negative in 1 row(s)"),
    "beyond the sealed end": (
        changed(seq=10),
        "goes up to offset 11 in 'a', beyond the end of that sealed segment, 10",
    ),
    "a fraction": ([row | {"seq": row["seq"] + 0.5} for row in entry_rows()], "column 'seq' is of type double"),
    "text for a number": ([row | {"seq": str(row["seq"])} for row in entry_rows()], "column 'seq' is of type string"),
    "no instant": ([row | {"at": "yesterday"} for row in entry_rows()], "column 'at' has a text that is no instant"),
    "a flag as instant": ([row | {"at": True} for row in entry_rows()], "column 'at' is of type bool, and must be"),
    "no segment of the topic": (
        [row | {"shard": "x" + row["shard"]} for row in entry_rows()],
        "no row belongs to a segment of the topic: one has 'xa', they are a, b, c",
    ),
}


@pytest.mark.parametrize(("rows", "fault"), ENTRY_FAULTS.values(), ids=ENTRY_FAULTS.keys())
async def test_a_fault_names_the_table_the_file_and_the_column(counter, tmp_path, rows, fault):
    write_table(tmp_path / "entries", rows)
    with pytest.raises(TableError) as caught:
        await counter(entries(tmp_path / "entries"), rows=(*ROWS, StateRow(1, 2, 0, seek_generation=3, position=10)))
    assert str(caught.value).startswith(f"external.orders.entries ({tmp_path}/entries): ")
    assert fault in str(caught.value)
    assert ("entries/part-0.parquet: " in str(caught.value)) == (not fault.startswith("no "))


LATIN = "shard,seq,at,bytes,städte\nb,0,1,1,\n".encode("latin-1")
TEXTS = {
    "csv, many": ("csv", "shard,seq,bytes,at\nb,many,1,1\n", "column 'seq': Failed to parse string: 'many'"),
    "csv, in another encoding": ("csv", LATIN, "'utf-8' codec can't decode"),
    "csv, a column twice": ("csv", "shard,seq,bytes,at,seq\nb,0,1,1,5\n", "has column 'seq' twice"),
    "csv, an open quote": ("csv", 'shard,seq,bytes,at,note\nb,0,1,1,"x\nb,1,1,1,x\n', "a quote is not closed"),
    "csv, two of them": ("csv", 'shard,seq,bytes,at,note\nb,0,1,1,"x\nb,1,1,1,"x\n', "a quote is not closed"),
    "json, a null line": ("json", "null\n", "a line is null"),
    "csv, no instant": ("csv", "shard,seq,bytes,at\nb,1,1,x\n", "column 'at' has a text that is no instant"),
    "json, cut off": ("json", '{"shard": "a", "seq": \n', "JSON parse error"),
    "json, a fraction": ("json", '{"shard": "a", "seq": 1.5}\n', "1.5"),
    "json, no offset": ("json", '{"shard": "a"}\n', "has no column 'seq'"),
    "not Parquet": ("parquet", "shard,seq\n", "Parquet"),
}


@pytest.mark.parametrize(("form", "text", "fault"), TEXTS.values(), ids=TEXTS.keys())
async def test_an_unreadable_file_is_named(counter: Counter, tmp_path: Path, form: str, text: Any, fault: str) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / f"x.{form}").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TableError, match=rf"x.{form}: ") as caught:
        await counter(entries(tmp_path / "t", form))
    assert fault in str(caught.value)


async def test_json_and_csv_files_may_have_instants_as_text_and_other_fields_of_any_type(counter, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.json").write_text(
        '{"shard": "b", "seq": 0, "at": "1970-01-01T00:00:02Z", "v": 1}\n'
        '{"shard": "b", "seq": 1, "at": "1970-01-01T01:00:03.25+01:00", "v": {"w": []}}\n'
    )
    (tmp_path / "t" / "empty.json").write_text("")
    assert by_segment(await counter(entries(tmp_path / "t", "json", size_bytes=None)))[1] == (2, None, 2000, False)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("\ufeffshard,seq\n", "b,{}\n"),
        ("shard,seq\r", "b,{}\r"),
        ('"shard","seq","two\nlines"\r\n', 'b,{},"\nb,9"\r\n'),
        ("shard,seq,note\n", 'b,{},5" pipe\n'),
    ],
    ids=["byte-order mark", "carriage returns", "line feeds in quotes", "a quote within a value"],
)
async def test_csv_files_are_read_as_other_programs_write_them(counter: Counter, tmp_path: Path, header: str, row: str):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.csv").write_text(header + "".join(map(row.format, range(100_000))), newline="")
    assert by_segment(await counter(entries(tmp_path / "t", "csv", size_bytes=None, timestamp=None)))[1][0] == 100_000


MISSING = {
    "no folder": ("parquet", "nowhere", "nowhere does not exist"),
    "no delta table": ("delta", "nowhere", "does not exist"),
    "no iceberg table": ("iceberg", "lake.shop.nowhere", "lake.shop.nowhere"),
    "no iceberg name": ("iceberg", "nowhere", "'nowhere' is not CATALOG.NAMESPACE.TABLE"),
    "no catalog": ("iceberg", "nowhere.shop.t", "nowhere"),
    "no such storage": ("parquet", "hdfs://namenode/t", "URLs of hdfs are not read; use a path, or a URL of s3"),
}


@pytest.mark.parametrize(("form", "path", "fault"), MISSING.values(), ids=MISSING.keys())
async def test_a_missing_table_is_named(counter: Counter, form: str, path: str, fault: str) -> None:
    given = EntriesTable(path=path, format=form, segment="s", offset="o")
    with pytest.raises(TableError) as caught:
        await counter(given)
    assert str(caught.value).startswith(f"external.orders.entries ({path}): ")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)
    assert counter.reads == [], "nothing long has begun"
