"""Reading a few chunks in this process returns the same rows as Spark, or None."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.spark.fact_source import FACT_COLUMNS, FACTS, SMALL_READ_MAX_ROWS, read_small_chunks
from tests.support.samples.damaged_files import corrupt, truncate
from tests.support.samples.ledgers import RandomLedger


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """The chunks of a shard, in a folder with a space in its name."""
    ledger = RandomLedger(tmp_path / "one folder", seed=7, shard=12)
    ledger.grow(9)
    return [str(ledger.path(number)) for number in range(1, ledger.state.chunk + 1)]


def test_every_row_is_read_once_in_order_with_its_folders_shard(paths):
    expected = [
        row | {"shard": 12}
        for path in paths
        for row in pq.read_table(path, columns=list(FACT_COLUMNS), partitioning=None).to_pylist()
    ]
    table = read_small_chunks(paths, SMALL_READ_MAX_ROWS)

    assert table.schema == FACTS
    assert table.to_pylist() == expected


@pytest.mark.parametrize("lacking", [1, 10])
def test_a_column_that_a_file_lacks_is_null_in_its_rows(paths, lacking):
    expected = []
    for number, path in enumerate(paths):
        table = pq.read_table(path, partitioning=None)
        expected += [None] * len(table) if number < lacking else table.column("bucket").to_pylist()
        pq.write_table(table.drop_columns(["bucket"]) if number < lacking else table, path)

    table = read_small_chunks(paths, SMALL_READ_MAX_ROWS)

    assert table.schema == FACTS
    assert table.column("bucket").to_pylist() == expected


def test_the_limit_of_rows_is_inclusive(paths):
    rows = len(read_small_chunks(paths, SMALL_READ_MAX_ROWS))

    assert len(read_small_chunks(paths, rows)) == rows
    assert read_small_chunks(paths, rows - 1) is None


def test_too_many_chunks_are_not_opened(paths, monkeypatch):
    monkeypatch.setattr(pq, "ParquetFile", lambda path: pytest.fail(f"{path} was opened"))

    assert read_small_chunks(paths, SMALL_READ_MAX_ROWS, max_chunks=len(paths) - 1) is None


def of_other_types(path: Path) -> None:
    pq.write_table(pa.table({"fact": pa.array(["record"]), "topic_id": pa.array(["one"])}), path)


@pytest.mark.parametrize("damage", [Path.unlink, truncate, corrupt, of_other_types])
def test_unreadable_chunks_are_left_to_spark(paths, damage):
    damage(Path(paths[2]))

    assert read_small_chunks(paths, SMALL_READ_MAX_ROWS) is None
