"""A topic as Arrow data, of a ledger that was compacted and trimmed."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import headgate
from controller.chunk_writer.builder import ChunkBuilder
from headgate.errors import ConfigError, PositionOutOfRangeError
from headgate.ledger.chunk import decode_records
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH, chunk_name
from headgate.storage.object_store import LocalStore
from headgate.views.topics import TopicInfo
from tests.support.samples.positioned_ledger import TrimmedLedger, trimmed_ledger

T0 = 1_700_000_000_000
"""Chunk n was stored n times 10 ms later."""


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrimmedLedger:
    known = trimmed_ledger(tmp_path, start_ms=T0)
    known.serve(monkeypatch)
    return known


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    read = LocalStore._read

    def recorded(store: LocalStore, path: str) -> bytes:
        paths.append(path)
        return read(store, path)

    monkeypatch.setattr(LocalStore, "_read", recorded)
    return paths


def rows(found: headgate.Dataset) -> list[tuple[int, int, bytes]]:
    columns = pa.table(found).select(["segment", "offset", "value"]).to_pydict().values()
    return list(zip(*columns, strict=True))


def test_every_library_gets_each_record_once_as_often_as_it_reads(ledger: TrimmedLedger) -> None:
    found = headgate.dataset("orders")

    assert ledger.stored == sorted(rows(found)) == sorted(rows(found))
    assert len(ledger.stored) == found.num_rows
    table = pa.table(found)
    assert [
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "list<element: struct<name: string, value: binary>>"),
        ("timestamp", "timestamp[ms, tz=UTC]"),
        ("segment", "int64"),
        ("offset", "int64"),
    ] == [(field.name, str(field.type)) for field in table.schema]
    assert table.schema == pa.schema(found)
    assert [None, [{"name": "n", "value": b"\xff1"}]] == table.filter(pa.compute.field("segment") == 0)[
        "headers"
    ].to_pylist()[:2]
    assert len(ledger.stored) == len(table.to_pandas())


def test_only_objects_with_wanted_records_are_read(ledger: TrimmedLedger, reads: list[str]) -> None:
    def data() -> list[str]:
        """Return the objects with records that were read since the last call."""
        paths = [path.split("/", 2)[2] for path in reads if path.startswith(("chunks/", "compacted/"))]
        reads.clear()
        return paths

    everything = headgate.dataset("orders")
    witness = chunk_name(8)  # It is read when a dataset is made, and before its records are.
    assert [witness] == data()
    assert len(rows(everything)) > 0
    assert 5 == len(data())

    assert [each for each in ledger.stored if each[0] == 0] == rows(headgate.dataset("orders", segments=[0]))
    assert all("segment=0" in path or path == witness for path in data())
    assert [(0, 1, b"0.1")] == rows(headgate.dataset("orders", offsets={0: (1, 2)}))
    assert 3 == len(data())

    late = headgate.dataset("orders", since_ms=T0 + 65)
    data()
    assert [(2, 1, b"2.1")] == rows(late)
    assert {"000000000008.parquet"} == {path for path in data() if path > "000000000006"} - {"000000000007.parquet"}
    early = headgate.dataset("orders", before_ms=T0 + 65)
    assert ledger.stored == sorted(rows(early) + rows(late))
    assert [] == rows(headgate.dataset("orders", since_ms=T0 + 65, before_ms=T0 + 50))


def test_a_dataset_is_lazy_and_left_early(ledger: TrimmedLedger, reads: list[str]) -> None:
    reader = headgate.dataset("orders").reader()
    first = reader.read_next_batch()
    seen = len(reads)
    del reader

    assert first.num_rows
    assert seen == len(reads)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"offsets": {1: (0, 5)}}, PositionOutOfRangeError, "segment 1 of topic 't' was pruned"),
        ({"segments": [7]}, PositionOutOfRangeError, "topic 't' has no segment 7"),
        ({"since_ms": 1_700_000_000}, ConfigError, "since_ms=1700000000 is not between 1990 and 2100 in milliseconds"),
        ({"segments": [0], "offsets": {0: (0, 1)}}, ConfigError, "give segments or offsets, not both"),
    ],
    ids=["pruned", "no segment", "seconds", "both"],
)
def test_a_wrong_filter_is_one_line(ledger: TrimmedLedger, options: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        headgate.dataset("orders", **options)


def test_a_segment_that_is_pruned_before_it_is_read_is_named(ledger: TrimmedLedger, monkeypatch: pytest.MonkeyPatch):
    found = headgate.dataset("orders")

    async def without_segment_0() -> TopicInfo:
        kept = tuple(each for each in ledger.described.segments if each.segment != 0)
        return msgspec.structs.replace(ledger.described, segments=kept)

    ledger.serve(monkeypatch, without_segment_0)
    for path in (ledger.chunks.parents[1] / "compacted").rglob("topic_id=1/segment=0/**/*.parquet"):
        path.unlink()
    with pytest.raises(pa.ArrowInvalid, match="segment 0 was pruned while it was read"):
        pa.table(found)


def test_a_dataset_of_a_ledger_that_was_replaced_is_refused(ledger: TrimmedLedger) -> None:
    """A cluster that is set up again gives its topics the same ids."""
    found = headgate.dataset("orders")
    (ledger.chunks.parents[1] / IDENTITY_PATH).write_bytes(identity_object("2" * 32))

    with pytest.raises(pa.ArrowInvalid, match="is another ledger by now, with id 2222"):
        pa.table(found)


def test_a_dataset_is_refused_if_an_older_ledger_was_put_back_and_grew_again(ledger: TrimmedLedger) -> None:
    """The offsets of its records are those of others."""
    found = headgate.dataset("orders")
    newest, builder = ledger.chunks / chunk_name(8), ChunkBuilder()
    header, builder.records = decode_records(newest.read_bytes(), shard=0, number=8)
    newest.write_bytes(builder.encode(shard=0, number=8, leader_epoch=1, at_ms=header.at_ms, term_id=77))

    with pytest.raises(pa.ArrowInvalid, match=r"an older ledger was put back at file.*: call headgate.dataset again"):
        pa.table(found)


def test_a_program_ends_while_it_has_read_a_part() -> None:
    """The interpreter stops the thread that reads before it ends what waits for that thread."""
    program = """
from headgate.topic_dataset import stored_batches

class Rows:
    def arrow(self): return 7

class Reader:
    async def stored_rows(self):
        while True: yield Rows()

found = stored_batches(Reader())
print(next(found))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)

    assert (ended.stdout, ended.stderr) == (b"7\n", b"")
