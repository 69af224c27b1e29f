"""What is rolled up next, and how many ranges there ever are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drain.compaction.policy import PlannedCompaction, most_ranges, next_compaction
from headgate.ledger.chunk_ranges import FANOUT, ChunkRange


def played(watermark: int, chunks: int) -> list[tuple[ChunkRange, int]]:
    """Return the ranges and levels once nothing is left to do."""
    covering: list[tuple[ChunkRange, int]] = []
    while (roll := next_compaction(covering, watermark=watermark, chunks=chunks)) is not None:
        covering = [each for each in covering if each[0] not in roll.sources]
        covering = sorted([*covering, (roll.range, roll.level)])
    return covering


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2000), st.integers(1, 40))
def test_all_that_is_counted_is_in_few_ranges_without_gaps(watermark: int, chunks: int) -> None:
    covering = played(watermark, chunks)
    numbers = [n for each, _ in covering for n in range(each.first, each.last + 1)]

    assert list(range(1, watermark // chunks * chunks + 1)) == numbers
    assert len(covering) <= most_ranges(len(numbers), chunks)


def test_the_bound_grows_with_the_logarithm_of_the_age() -> None:
    """At one chunk a second, a year of 1024-chunk ranges is at most 60 of them, and a thousand years 105."""
    year = 365 * 86_400

    assert [15, 60, 105] == [most_ranges(age, 1024) for age in (1024, year, 1000 * year)]
    assert 0 == most_ranges(1023, 1024)


@pytest.mark.parametrize(("watermark", "expected"), [(3, None), (4, PlannedCompaction(ChunkRange(1, 4), 0, ()))])
def test_a_range_never_reaches_beyond_what_is_counted(watermark: int, expected: PlannedCompaction | None) -> None:
    assert expected == next_compaction([], watermark=watermark, chunks=4)


def test_another_width_goes_on_where_the_last_one_ended() -> None:
    covering = played(60, 4)

    assert PlannedCompaction(ChunkRange(61, 70), 0, ()) == next_compaction(covering, watermark=75, chunks=10)


def test_only_neighbours_of_one_level_are_merged() -> None:
    mixed = [(ChunkRange(n, n), n % 2) for n in range(1, 3 * FANOUT)]

    assert next_compaction(mixed, watermark=3 * FANOUT - 1, chunks=1) is None
