"""Published results are read back unchanged. Results of other versions are rejected."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.merge import StateRow
from drain.backlog.results import Result, ResultError, decode_result, encode_result
from tests.support.samples.object_formats import sealed


def test_a_result_of_an_earlier_version_is_rejected_with_instructions():
    """It has no timestamps. Counting from the first chunk does not need it."""
    table = pq.read_table(pa.BufferReader(encode_result(Result(3, 7, (StateRow(1, None, 0),)))), partitioning=None)
    old = table.drop_columns("timestamp_index").replace_schema_metadata(
        {"headgate-backlog": '{"format":1,"shard":3,"watermark":7}'}
    )

    with pytest.raises(
        ResultError,
        match=r"shard=0003/000000000007.parquet has format 1, .* reads format 5;.*move backlog/shard=0003 away",
    ):
        decode_result(sealed(old), shard=3, watermark=7)


@pytest.mark.parametrize(
    "row",
    [StateRow(1, None, 0, end_offset=2, timestamp_index=((0, 100), (1, 90))), StateRow(1, 2, 0, bucket=5, position=2)],
)
def test_a_result_is_read_back_unchanged(row):
    result = Result(3, 7, (row,), at_ms=1234, term_id=9)

    assert decode_result(encode_result(result), shard=3, watermark=7) == result
