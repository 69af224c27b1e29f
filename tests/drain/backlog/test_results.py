"""What is published comes back as it was, and nothing is read that another version published."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.merge import StateRow
from drain.backlog.results import Result, ResultError, decode_result, encode_result


def test_a_result_of_the_version_before_is_refused_by_name_with_what_to_do():
    """It has no timestamps, so nothing in it could be added to; counting the ledger anew needs none of it."""
    table = pq.read_table(pa.BufferReader(encode_result(Result(3, 7, (StateRow(1, None, 0),)))), partitioning=None)
    old = table.drop_columns("timestamp_index").replace_schema_metadata(
        {"headgate-backlog": '{"format":1,"shard":3,"watermark":7}'}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(old, sink)

    with pytest.raises(
        ResultError,
        match=r"shard=0003/000000000007.parquet has format 1, .* reads format 3;.*move backlog/shard=0003 away",
    ):
        decode_result(bytes(sink.getvalue()), shard=3, watermark=7)


def test_marks_and_the_time_of_the_watermark_survive_being_published():
    result = Result(3, 7, (StateRow(1, None, 0, end_offset=2, timestamp_index=((0, 100), (1, 90))),), at_ms=1234)

    assert decode_result(encode_result(result), shard=3, watermark=7) == result


def test_a_bucket_survives_being_published():
    result = Result(3, 7, (StateRow(1, 2, 0, bucket=5, position=2),))

    assert decode_result(encode_result(result), shard=3, watermark=7) == result
