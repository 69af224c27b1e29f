"""Which chunks are compacted next, and how many ranges there are at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drain.compaction.policy import PlannedCompaction, next_compactions
from headgate.ledger.objects import FANOUT, ChunkRange


def all_compacted(watermark: int, chunks: int, widest: int = 1) -> list[tuple[ChunkRange, int]]:
    """Return the ranges and levels once nothing is due."""
    covering: list[tuple[ChunkRange, int]] = []
    while found := next_compactions(covering, watermark=watermark, chunks=chunks, widest=widest):
        planned = found[0]
        covering = [each for each in covering if each[0] not in planned.sources]
        covering = sorted([*covering, (planned.range, planned.level)])
    return covering


@given(st.integers(0, 2000), st.integers(1, 40), st.integers(1, 8))
def test_counted_chunks_are_in_few_ranges_without_gaps(watermark: int, chunks: int, widest: int) -> None:
    covering = all_compacted(watermark, chunks, widest)
    numbers = [n for each, _ in covering for n in range(each.first, each.last + 1)]
    assert list(range(1, watermark // chunks * chunks + 1)) == numbers
    levels, width = 0, chunks
    while width <= len(numbers):
        levels, width = levels + 1, width * FANOUT
    assert len(covering) <= levels * (FANOUT - 1)


def test_a_changed_number_of_chunks_continues_after_the_last_range() -> None:
    covering = all_compacted(60, 4)
    assert [PlannedCompaction(ChunkRange(61, 70), 0, ())] == next_compactions(covering, watermark=75, chunks=10)


def test_only_adjacent_ranges_of_one_level_are_merged() -> None:
    mixed = [(ChunkRange(n, n), n % 2) for n in range(1, 3 * FANOUT)]
    assert next_compactions(mixed, watermark=3 * FANOUT - 1, chunks=1) == []


@pytest.mark.parametrize(
    ("ranges", "watermark", "merged"), [(3, 79, False), (4, 79, False), (4, 80, True), (4, 1000, True)]
)
def test_a_full_group_that_is_counted_becomes_one_range_before_new_chunks(ranges: int, watermark: int, merged: bool):
    """Without a count, no segment is known to exist: a merge would leave out all records."""
    sources = tuple(ChunkRange(first, first + 9) for first in (41, 51, 61, 71)[:ranges])
    covering = [(ChunkRange(1, 40), 1), *((each, 0) for each in sources)]

    planned = next_compactions(covering, watermark=watermark, chunks=10, fanout=4)
    assert planned == ([PlannedCompaction(ChunkRange(41, 80), 1, sources)] if merged else [])
    if merged:
        after_chunks = next_compactions(covering, watermark=watermark, chunks=10, fanout=4, merges_last=True)
        assert planned == after_chunks[min(8, (watermark - 80) // 10) :]
