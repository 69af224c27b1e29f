"""Writing chunks: their columns, and when a chunk is compressed."""

import io
import random

import pyarrow.parquet as pq
import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.chunk import COLUMNS
from headgate.model.headers import Headers
from tests.support.samples.chunks import add_record, small_chunk


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
        builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def test_only_pages_that_become_smaller_are_compressed() -> None:
    builder = ChunkBuilder()
    for offset in range(100):
        add_record(builder, offset, 5, random.Random(offset).randbytes(100))
    group = pq.ParquetFile(io.BytesIO(builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99))).metadata.row_group(
        0
    )
    compressions = {column["path_in_schema"]: column["compression"] for column in group.to_dict()["columns"]}

    assert ("SNAPPY", "UNCOMPRESSED", "UNCOMPRESSED") == tuple(compressions[name] for name in ("key", "value", "body"))
