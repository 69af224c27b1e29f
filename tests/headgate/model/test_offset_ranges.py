"""`OffsetRanges` compared with a plain set of integers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.positions import OffsetRange, OffsetRanges

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=15)


def offsets(ranges: list[OffsetRange]) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


def assert_holds(ranges: OffsetRanges, expected: set[int]) -> None:
    edges = [edge for offset_range in ranges for edge in offset_range]
    assert all(before < after for before, after in pairwise(edges)), "sorted, disjoint, not touching, not empty"
    assert expected == offsets(list(ranges))
    assert len(expected) == ranges.count()


@given(RANGES)
def test_adding_ranges_one_by_one_or_at_once_is_their_union(drawn: list[OffsetRange]) -> None:
    one_by_one = OffsetRanges()
    for first, end in drawn:
        one_by_one.add(first, end)

    assert_holds(one_by_one, offsets(drawn))
    assert OffsetRanges(drawn) == one_by_one
    assert OffsetRanges(one_by_one) == one_by_one


@given(RANGES, RANGES)
def test_union_and_intersection_leave_their_operands_alone(left: list[OffsetRange], right: list[OffsetRange]) -> None:
    one, other = OffsetRanges(left), OffsetRanges(right)

    assert_holds(one | other, offsets(left) | offsets(right))
    assert_holds(one & other, offsets(left) & offsets(right))
    assert (OffsetRanges(left), OffsetRanges(right)) == (one, other)


@given(RANGES, st.integers(0, 35))
def test_membership_and_counts_are_those_of_the_set(drawn: list[OffsetRange], offset: int) -> None:
    ranges, expected = OffsetRanges(drawn), offsets(drawn)

    assert (offset in expected) == ranges.contains(offset)
    assert len({other for other in expected if other < offset}) == ranges.count(below=offset)
    assert bool(expected) == bool(ranges)


@given(RANGES, st.integers(0, 35))
def test_the_prefix_ends_at_the_first_missing_offset(drawn: list[OffsetRange], position: int) -> None:
    ranges, expected = OffsetRanges(drawn), offsets(drawn)
    end = next(offset for offset in range(position, 99) if offset not in expected)

    assert end == ranges.pop_prefix(position)
    assert_holds(ranges, {offset for offset in expected if offset >= end})


def test_ranges_are_removed_from_the_lowest_on() -> None:
    ranges = OffsetRanges([(6, 9), (1, 2), (2, 4)])

    assert [(1, 4), (6, 9)] == [ranges.pop_first(), ranges.pop_first()]
    with pytest.raises(IndexError):
        ranges.pop_first()


def test_a_range_touches_those_that_it_overlaps_or_continues() -> None:
    ranges = OffsetRanges([(4, 6)])

    assert [(n, n + 2) for n in range(9) if ranges.touches(n, n + 2)] == [(2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]


def test_a_range_contains_its_first_offset_and_not_its_end() -> None:
    ranges = OffsetRanges([(2, 5)])

    assert [False, True, True, False] == [ranges.contains(offset) for offset in (1, 2, 4, 5)]


def test_one_range_has_several_ranges_in_common_with_another_set() -> None:
    wide, narrow = OffsetRanges([(0, 10)]), OffsetRanges([(1, 3), (5, 7)])

    assert narrow == wide & narrow == narrow & wide


def test_a_prefix_begins_at_the_first_offset_unless_another_position_is_given() -> None:
    assert [3, 0] == [OffsetRanges([part]).pop_prefix() for part in ((0, 3), (1, 3))]


def test_a_set_is_shown_as_its_ranges() -> None:
    assert "OffsetRanges([(1, 3), (5, 7)])" == repr(OffsetRanges([(5, 7), (1, 3)]))
