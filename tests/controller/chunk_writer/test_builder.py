"""Writing chunks: both writers, and when a chunk is compressed."""

import io
import random

import pyarrow.parquet as pq
import pytest

from controller.chunk_writer import builder as writer
from controller.chunk_writer.builder import ChunkBuilder
from headgate.model import entries as e
from headgate.model.headers import Headers
from tests.support.samples.chunks import add_record, small_chunk


@pytest.mark.parametrize("headers", [(), (("a", b"1"), ("a", b"\xff"))], ids=["no headers", "headers"])
def test_both_writers_produce_the_same_schema_rows_and_metadata(headers: Headers) -> None:
    """A chunk whose records have no headers has no column of headers."""
    tables, metadata = [], []
    for large_bytes in (1, 2**30):
        _, data = small_chunk(headers=headers, pyarrow_threshold_bytes=large_bytes)
        file = pq.ParquetFile(io.BytesIO(data))
        tables.append(file.read())
        metadata.append(file.metadata.metadata)
        assert file.metadata.created_by.startswith("parquet-cpp" if large_bytes == 1 else "parquet-rs")
    assert tables[0] == tables[1]
    assert tables[0].schema == (writer.SCHEMA if headers else writer.SCHEMA_WITHOUT_HEADERS)
    assert metadata[0] == metadata[1]


def test_a_chunk_of_one_record_is_written_without_compression_and_is_not_larger() -> None:
    plain = one_record()
    packed = one_record(uncompressed_max_rows=0)

    assert _compressions(plain) == {"UNCOMPRESSED"}
    assert _compressions(packed) == {"SNAPPY"}
    assert pq.read_table(io.BytesIO(plain)) == pq.read_table(io.BytesIO(packed))
    assert len(plain) <= len(packed)
    assert _compressions(small_chunk()[1]) == {"SNAPPY"}


def one_record(**limits: int) -> bytes:
    builder = ChunkBuilder(**limits)
    builder.add(e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 9, 0, 1)], size_bytes=101))
    add_record(builder, 0, 5, random.Random(1).randbytes(100))
    return builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def _compressions(data: bytes) -> set[str]:
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    return {group.column(number).compression for number in range(group.num_columns)}
