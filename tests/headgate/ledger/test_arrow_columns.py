"""Columns laid into buffers are what pyarrow would have made of the same values."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.ledger.arrow_columns import PaddedColumns

PADDING = st.integers(0, 20)


@given(PADDING, st.lists(st.integers(-(2**63), 2**63 - 1)), PADDING)
def test_integers(before: int, values: list[int], after: int) -> None:
    """Any 64-bit value, at any place, nulls around it."""
    column = PaddedColumns(before + len(values) + after, before, len(values)).integers(values)

    column.validate(full=True)
    assert pa.array([None] * before + values + [None] * after, pa.int64()).equals(column)


@given(PADDING, st.lists(st.binary(max_size=40)), PADDING)
def test_blobs(before: int, values: list[bytes], after: int) -> None:
    """Any bytes, the empty ones told from null."""
    column = PaddedColumns(before + len(values) + after, before, len(values)).blobs(values, pa.binary())

    column.validate(full=True)
    assert pa.array([None] * before + values + [None] * after, pa.binary()).equals(column)


def test_strings() -> None:
    """As given, in UTF-8."""
    assert ["a", None, "ä"] == [
        *PaddedColumns(2, 0, 1).blobs([b"a"], pa.string()).to_pylist(),
        *PaddedColumns(1, 0, 1).blobs(["ä".encode()], pa.string()).to_pylist(),
    ]


def test_what_does_not_fit_is_an_error() -> None:
    """Arrow would read beyond the end of what is too short."""
    with pytest.raises(OverflowError):
        PaddedColumns(1, 0, 1).integers([2**63])
    with pytest.raises(AssertionError, match="1 values for 2 rows"):
        PaddedColumns(2, 0, 2).integers([1])
    with pytest.raises(AssertionError, match="3 values for 2 rows"):
        PaddedColumns(2, 0, 2).blobs([b"a", b"b", b"c"], pa.binary())
