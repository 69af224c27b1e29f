"""Writing chunks: their columns, and when a chunk is compressed."""

import io
import random
from collections.abc import Callable
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.io import read_parquet
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import (
    BYTE_ARRAY,
    HEADERS,
    INT64,
    ChunkBuilder,
    Node,
    Page,
    ParquetWriter,
    blobs,
    header_pages,
    integers,
    levels,
)
from headgate.ledger.chunk import COLUMNS
from headgate.model.headers import Headers
from tests.support.samples.chunks import add_record, small_chunk

FIELDS = {"shard": 3, "number": 7, "leader_epoch": 2, "at_ms": 99}


@pytest.mark.parametrize("headers", [(), (("a", b"1"), ("a", b"\xff"))], ids=["no headers", "headers"])
def test_a_chunk_has_the_documented_columns(headers: Headers) -> None:
    """A chunk whose records have no headers has no column of headers."""
    schema = pq.read_table(io.BytesIO(small_chunk(headers=headers)[1])).schema
    kinds = {field.name: str(field.type).replace("list<element: ", "list<") for field in schema}

    assert kinds == {name: kind for name, kind in COLUMNS.items() if headers or name != "headers"}


def test_a_chunk_whose_columns_differ_in_length_is_not_written() -> None:
    """A reader would read a value of another record."""
    builder = ChunkBuilder()
    add_record(builder, 0, 5, b"v")
    builder.records.offset.append(1)
    builder.records.segment.append(0)

    with pytest.raises(AssertionError, match="topic_id has 1 values for 2 records"):
        builder.encode(**FIELDS)


@pytest.mark.parametrize("count", [100, 5000], ids=["small pages", "sampled pages"])
def test_only_pages_that_become_smaller_are_compressed(count: int) -> None:
    builder = ChunkBuilder()
    for offset in range(count):
        add_record(builder, offset, 5, random.Random(offset).randbytes(100))
    group = pq.ParquetFile(io.BytesIO(builder.encode(**FIELDS))).metadata.row_group(0)
    compressions = {column["path_in_schema"]: column["compression"] for column in group.to_dict()["columns"]}

    assert ("SNAPPY", "UNCOMPRESSED", "UNCOMPRESSED") == tuple(compressions[name] for name in ("key", "value", "body"))


def test_a_large_page_of_equal_values_is_compressed() -> None:
    builder = ChunkBuilder()
    for offset in range(5000):
        add_record(builder, offset, 5, bytes(100))

    assert len(builder.encode(**FIELDS)) < 100_000


def test_records_that_are_encoded_ahead_make_the_same_chunk() -> None:
    ahead, at_once = ChunkBuilder(), ChunkBuilder()
    for offset in range(1900):
        for builder in (batch := ChunkBuilder(), at_once):
            add_record(builder, offset, 5, b"v" * (offset % 9), (("a", b"1"),) * (offset % 3))
        ahead.extend(batch.records, 10)
        if ahead.has_many_waiting:
            ahead.encode_records()

    assert (ahead.is_large, at_once.is_large) == (True, False)
    assert at_once.encode(**FIELDS) == ahead.encode(**FIELDS)


WRITER = ParquetWriter([Node("integer", INT64), Node("blob", BYTE_ARRAY), HEADERS])
HEADER = st.tuples(st.text(max_size=3), st.binary(max_size=200))
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.binary(max_size=300), st.lists(HEADER, max_size=3)
)


@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 100))
def test_any_rows_are_read_as_they_were_written(rows: list[tuple], repeated: int) -> None:
    """Repeated rows make pages whose sizes take several bytes in their headers."""
    rows *= repeated
    whole, blob, headers = (list(column) for column in zip(*rows, strict=True))

    def page(column: list, encode: Callable[[list], bytes]) -> Page:
        runs = [(bit, len([*run])) for bit, run in groupby(each is not None for each in column)]
        return Page(len(rows), levels(*runs), [encode([each for each in column if each is not None])])

    pages = page(whole, integers), page(blob, blobs)
    parts, footer = WRITER.write([*pages, *header_pages(0, headers)], len(rows), {"key": "ä"})

    data = b"".join((*parts, footer))
    lists = [[{"name": name, "value": value} for name, value in each] or None for each in headers]
    for table in (pq.read_table(io.BytesIO(data)), pa.table(read_parquet(io.BytesIO(data)).read_all())):
        assert [whole, blob, lists] == [column.to_pylist() for column in table.columns]
    assert pq.read_metadata(io.BytesIO(data)).metadata == {b"key": "ä".encode()}


def test_an_integer_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        integers([2**63])
