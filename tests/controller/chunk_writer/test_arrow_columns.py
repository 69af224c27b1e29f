"""Columns built in their buffers equal those that pyarrow builds from the same values."""

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.arrow_columns import PaddedColumns, nullable

PADDING = st.integers(0, 20)


@given(PADDING, st.lists(st.integers(-(2**63), 2**63 - 1)), PADDING)
def test_any_64_bit_integers_between_nulls(before: int, values: list[int], after: int) -> None:
    column = PaddedColumns(before + len(values) + after, before, len(values)).integers(values)

    column.validate(full=True)
    assert pa.array([None] * before + values + [None] * after, pa.int64()).equals(column)


def test_strings_in_utf_8() -> None:
    assert ["a", None, "ä"] == [
        *PaddedColumns(2, 0, 1).blobs([b"a"], pa.string()).to_pylist(),
        *PaddedColumns(1, 0, 1).blobs(["ä".encode()], pa.string()).to_pylist(),
    ]


def test_values_that_do_not_fit_are_an_error() -> None:
    """Arrow would read beyond the end of a column that is too short."""
    with pytest.raises(OverflowError):
        PaddedColumns(1, 0, 1).integers([2**63])
    with pytest.raises(AssertionError, match="1 values for 2 rows"):
        PaddedColumns(2, 0, 2).integers([1])
    with pytest.raises(AssertionError, match="3 values for 2 rows"):
        PaddedColumns(2, 0, 2).blobs([b"a", b"b", b"c"], pa.binary())


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_with_nulls_anywhere(values: list[int | None]) -> None:
    column = nullable(values, pa.int64())

    column.validate(full=True)
    assert pa.array(values, pa.int64()).equals(column)


def test_a_chunk_of_facts_is_encoded_without_pandas() -> None:
    """The import stops the event loop for half a second."""
    program = (
        "import sys; from controller.chunk_writer.builder import ChunkBuilder; from headgate.model import entries as e; "
        "builder = ChunkBuilder(); builder.add(e.TopicCreated(topic_id=1, topic='t', segments=3, token='')); "
        "builder.encode(shard=0, number=1, leader_epoch=1, at_ms=0); sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
