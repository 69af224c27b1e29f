"""Columns read with arro3 equal the values that pyarrow wrote, in each encoding that writers use."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.core import DataType
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LedgerError
from headgate.ledger.parquet_columns import Columns, read_columns, read_first_rows

INTEGERS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(INTEGERS, st.binary(max_size=30)), max_size=60)
WRITERS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4"]),
        "use_dictionary": st.booleans(),
        "row_group_size": st.integers(1, 70),
        "data_page_size": st.sampled_from([1, 1 << 20]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
    }
)


def parquet(columns: dict[str, pa.Array], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def written(rows: list[tuple[int, bytes]], **options: Any) -> bytes:
    numbers, contents = [row[0] for row in rows], [row[1] for row in rows]
    return parquet({"number": pa.array(numbers, pa.int64()), "content": pa.array(contents, pa.binary())}, **options)


def rows_of(columns: Columns) -> list[tuple[int, bytes]]:
    return list(zip(columns.integers("number"), columns.blobs("content"), strict=True))


@given(ROWS, WRITERS)
def test_any_rows_are_read_as_they_were_written(rows: list[tuple[int, bytes]], options: dict[str, Any]) -> None:
    assert rows == rows_of(read_columns(written(rows, **options), "x"))


@given(ROWS, st.integers(0, 60), st.integers(0, 60), WRITERS)
def test_a_slice_has_the_rows_that_a_list_would_have(
    rows: list[tuple[int, bytes]], first: int, count: int, options: dict[str, Any]
) -> None:
    first = min(first, len(rows))
    found = read_columns(written(rows, **options), "x").slice(first, count)

    assert rows[first : first + count] == rows_of(found)
    assert len(rows[first : first + count]) == len(found)


def test_an_instant_that_libraries_do_not_know_is_null_and_the_others_are_read() -> None:
    at_ms = [0, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1]
    instants = read_columns(parquet({"at": pa.array(at_ms)}), "x").instants("at", DataType.timestamp("ms", tz="UTC"))

    found = pa.array(instants).cast(pa.timestamp("us", "UTC"))  # As Spark and DuckDB do.
    assert [0, 253_402_300_799_999_000, None, None] == found.cast(pa.int64()).to_pylist()


@given(ROWS, st.integers(1, 70))
def test_the_first_rows(rows: list[tuple[int, bytes]], count: int) -> None:
    assert rows[:count] == rows_of(read_first_rows(written(rows), "x", count))


def test_rows_of_several_batches_are_concatenated() -> None:
    rows = [(number, b"%d" % number) for number in range(10)]

    assert rows == rows_of(read_columns(written(rows), "x", batch_rows=3))


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array([1], pa.int32()), "a column a with nulls, or of another type"),
        (pa.array(["text"]), "a column a with nulls, or of another type"),
        (pa.array([1, None], pa.int64()), "a column a with nulls, or of another type"),
        (pa.array([b"", None], pa.binary()), "a column a with nulls, or of another type"),
    ],
    ids=["shorter integers", "strings", "no integer", "no blob"],
)
def test_a_column_of_another_type_or_with_nulls_is_an_error(column: pa.Array, complaint: str) -> None:
    """Its buffers have other lengths, and the place of a null has any value."""
    columns = read_columns(parquet({"a": column}), "path/1")
    with pytest.raises(LedgerError, match=f"^path/1 has {complaint}"):
        columns.integers("a")
    with pytest.raises(LedgerError, match=f"^path/1 has {complaint}"):
        columns.blobs("a")


def test_a_missing_column_is_an_error() -> None:
    columns = read_columns(written([(1, b"")]), "path/1")
    for read in (columns.integers, columns.blobs, columns.values):
        with pytest.raises(LedgerError, match=r"^path/1 has only the columns \['number', 'content'\], without size"):
            read("size")


def test_values_counts_what_is_not_null() -> None:
    assert 2 == read_columns(parquet({"a": pa.array([b"", None, b"x"])}), "x").values("a")
