"""Reading the facts of a few chunks here: what Spark would read of them, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.spark import small_chunk_reader
from drain.spark.schemas import FACT_COLUMNS, FACTS
from drain.spark.small_chunk_reader import SMALL_READ_MAX_ROWS, read_small_chunks
from tests.support.ledgers import RandomLedger


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """The chunks of a shard, in a folder with a space in its name."""
    ledger = RandomLedger(tmp_path / "one folder", seed=7, shard=12)
    ledger.grow(9)
    return [str(ledger.path(number)) for number in range(1, ledger.state.chunk + 1)]


def test_every_row_is_read_once_in_order_with_its_folders_shard(paths):
    wanted = [
        row | {"shard": 12}
        for path in paths
        for row in pq.read_table(path, columns=list(FACT_COLUMNS), partitioning=None).to_pylist()
    ]
    table = read_small_chunks(paths, SMALL_READ_MAX_ROWS)

    assert table.schema == FACTS
    assert table.to_pylist() == wanted


@pytest.mark.parametrize("lacking", [1, 10])
def test_a_column_that_a_file_lacks_is_null_in_its_rows(paths, lacking):
    wanted = []
    for number, path in enumerate(paths):
        table = pq.read_table(path, partitioning=None)
        wanted += [None] * len(table) if number < lacking else table.column("bucket").to_pylist()
        pq.write_table(table.drop_columns(["bucket"]) if number < lacking else table, path)

    table = read_small_chunks(paths, SMALL_READ_MAX_ROWS)

    assert table.schema == FACTS
    assert table.column("bucket").to_pylist() == wanted


def test_as_many_rows_as_the_limit_are_few_and_one_more_is_not(paths):
    rows = len(read_small_chunks(paths, SMALL_READ_MAX_ROWS))

    assert len(read_small_chunks(paths, rows)) == rows
    assert read_small_chunks(paths, rows - 1) is None


def test_of_many_chunks_none_is_opened(paths, monkeypatch):
    monkeypatch.setattr(small_chunk_reader, "SMALL_READ_MAX_CHUNKS", len(paths) - 1)
    monkeypatch.setattr(pq, "ParquetFile", lambda path: pytest.fail(f"{path} was opened"))

    assert read_small_chunks(paths, SMALL_READ_MAX_ROWS) is None


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoilt_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def of_other_types(path: Path) -> None:
    pq.write_table(pa.table({"fact": pa.array(["record"]), "topic_id": pa.array(["one"])}), path)


@pytest.mark.parametrize("spoil", [Path.unlink, cut_short, spoilt_inside, of_other_types])
def test_what_cannot_be_read_is_left_to_spark(paths, spoil):
    spoil(Path(paths[2]))

    assert read_small_chunks(paths, SMALL_READ_MAX_ROWS) is None
