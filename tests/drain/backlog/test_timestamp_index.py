"""The timestamp index: which records it keeps, how exact it is, and merging."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from drain.backlog.merge import build_timestamp_index, timestamp_at


def index_of(records, ms=lambda offset: 10 * offset):
    return build_timestamp_index((offset, ms(offset)) for offset in range(records))


@given(st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=5))
def test_counting_in_steps_or_at_once_gives_the_same_index(records, cuts):
    bounds = [0, *sorted(min(cut, records) for cut in cuts), records]
    kept = ()
    for first, end in itertools.pairwise(bounds):
        kept = build_timestamp_index([*kept, *((offset, 10 * offset) for offset in range(first, end))])

    assert kept == index_of(records)


@given(st.integers(1, 3000), st.data())
def test_the_entries_around_an_offset_are_no_farther_apart_than_the_backlog_is_long(records, data):
    """So the error of the interpolation is small compared with the backlog."""
    kept = [offset for offset, _ in index_of(records)]
    offset = data.draw(st.integers(0, records - 1))

    before = max(each for each in kept if each <= offset)
    after = min(each for each in kept if each >= offset)
    assert after - before <= records - offset


def test_timestamps_are_interpolated_between_entries_and_unknown_outside():
    index = ((4, 100), (8, 200))

    assert [timestamp_at(index, offset) for offset in (3, 4, 5, 8, 9)] == [None, 100, 125, 200, None]
    assert timestamp_at((), 0) is None
