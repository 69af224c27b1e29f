"""A few timestamps answer for every offset: which are kept, how exact they are, and that merging loses nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from drain.backlog.timestamp_index import build_timestamp_index, index_slot, timestamp_at


def checkpoint_keys(records, ms=lambda offset: 10 * offset):
    return build_timestamp_index((offset, ms(offset)) for offset in range(records))


@given(st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=5))
def test_counted_in_pieces_or_at_once_the_same_marks_are_kept(records, cuts):
    bounds = [0, *sorted(min(cut, records) for cut in cuts), records]
    kept = ()
    for first, end in itertools.pairwise(bounds):
        kept = build_timestamp_index([*kept, *((offset, 10 * offset) for offset in range(first, end))])

    assert kept == checkpoint_keys(records)


@given(st.integers(1, 2**14))
def test_there_are_two_marks_for_each_bit_and_one_for_the_first_record(records):
    assert len(checkpoint_keys(records)) <= 2 * (records - 1).bit_length() + 1


@given(st.integers(1, 3000), st.data())
def test_the_two_marks_around_an_offset_are_no_farther_apart_than_the_backlog_behind_it(records, data):
    """The interpolation is then between two records that the backlog itself is long enough to tell apart."""
    kept = [offset for offset, _ in checkpoint_keys(records)]
    offset = data.draw(st.integers(0, records - 1))

    before = max(mark for mark in kept if mark <= offset)
    after = min(mark for mark in kept if mark >= offset)
    assert after - before <= records - offset


@given(st.integers(1, 3000))
def test_short_backlogs_are_exact(records):
    kept = {offset for offset, _ in checkpoint_keys(records)}

    assert {records - 1 - behind for behind in range(min(4, records))} <= kept


def test_between_two_marks_the_timestamp_is_interpolated_and_outside_nothing_is_known():
    marks = ((4, 100), (8, 200))

    assert [timestamp_at(marks, offset) for offset in (3, 4, 5, 8, 9)] == [None, 100, 125, 200, None]
    assert timestamp_at((), 0) is None


def test_the_last_record_of_a_mark_counts_whatever_the_clocks_of_producers_say():
    assert build_timestamp_index([(9, 50), (1, 70), (5, 60)]) == ((9, 50),)
    assert {index_slot(offset) for offset in (1, 5, 9)} == {1}
