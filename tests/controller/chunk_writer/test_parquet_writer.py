"""Objects of our own writer, as the libraries that read chunks see them."""

import io
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.io import read_parquet
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import HEADERS, header_pages
from controller.chunk_writer.parquet_writer import BYTE_ARRAY, INT64, Node, Page, ParquetWriter, blobs, integers, levels

WRITER = ParquetWriter([Node("integer", INT64), Node("blob", BYTE_ARRAY), HEADERS])
HEADER = st.tuples(st.text(max_size=3), st.binary(max_size=200))
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.binary(max_size=300), st.lists(HEADER, max_size=3)
)


@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 400))
def test_any_rows_are_read_as_they_were_written(rows: list[tuple], repeated: int) -> None:
    """Repeated rows make pages whose sizes take several bytes in their headers."""
    rows *= repeated
    whole, blob, headers = (list(column) for column in zip(*rows, strict=True))
    pages = [
        Page(
            len(rows),
            levels(*[(bit, len([*run])) for bit, run in groupby(each is not None for each in column)]),
            values,
        )
        for column, values in (
            (whole, integers([each for each in whole if each is not None])),
            (blob, blobs([each for each in blob if each is not None])),
        )
    ]

    parts, footer = WRITER.write([*pages, *header_pages(0, headers)], len(rows), {"key": "ä"})

    data = b"".join((*parts, footer))
    lists = [[{"name": name, "value": value} for name, value in each] or None for each in headers]
    for table in (pq.read_table(io.BytesIO(data)), pa.table(read_parquet(io.BytesIO(data)).read_all())):
        assert [whole, blob, lists] == [column.to_pylist() for column in table.columns]
    assert pq.read_metadata(io.BytesIO(data)).metadata == {b"key": "ä".encode()}


def test_an_integer_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        integers([2**63])
