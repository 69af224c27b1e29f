"""Writing chunks: their columns, and when a chunk is compressed."""

import io
import random

import pyarrow.parquet as pq
import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.chunk import COLUMNS
from headgate.model import entries as e
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


def test_a_chunk_of_one_record_is_written_without_compression_and_is_not_larger() -> None:
    plain = one_record()
    packed = one_record(uncompressed_max_rows=0)

    assert _compressions(plain) == {"UNCOMPRESSED"}
    assert "SNAPPY" in _compressions(packed)
    assert pq.read_table(io.BytesIO(plain)) == pq.read_table(io.BytesIO(packed))
    assert len(plain) <= len(packed)
    assert "SNAPPY" in _compressions(small_chunk()[1])


def one_record(**limits: int) -> bytes:
    builder = ChunkBuilder(**limits)
    builder.add(e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 9, 0, 1)], size_bytes=101))
    add_record(builder, 0, 5, random.Random(1).randbytes(100))
    return builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def _compressions(data: bytes) -> set[str]:
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    return {group.column(number).compression for number in range(group.num_columns)}
