"""Which objects hold the records of a topic."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ObjectMissingError
from headgate.reading.topic_files import (
    CONCURRENT_CHUNK_READS,
    StoredObjects,
    first_chunk_at,
    list_objects,
    select_files,
    terms_of,
    topic_files,
)
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.samples.positioned_ledger import LedgerWithPositions, any_ledger
from trials.compaction import compact


async def written(chunks: int = 8) -> LedgerWithPositions:
    """Return a ledger with a record of both topics in each segment of each chunk."""
    known = LedgerWithPositions()
    for number in range(1, chunks + 1):
        await known.write(10 * number, 0, 1, topic_id=1 if number % 2 else 9)
    return known


async def listed(known: LedgerWithPositions) -> list[tuple[str, int, int, int | None, int | None, int | None]]:
    files = await topic_files(known.ledger, known.description())
    return [(f.kind, f.first_chunk, f.last_chunk, f.segment, f.first_offset, f.end_offset) for f in files]


async def test_the_term_of_each_chunk_is_found_with_few_reads() -> None:
    ledger = LedgerInMemory(40).ledger  # its terms begin at 1 and 6
    assert {number: 1 if number < 6 else 6 for number in range(2, 41)} == await terms_of(ledger, range(2, 41))
    assert sum(ledger.store.calls.values()) < 40


async def test_a_compacted_range_replaces_its_chunks_whether_they_still_exist_or_not() -> None:
    known = await written(6)
    await compact(known.ledger, 1, 2)
    await compact(known.ledger, 3, 4)
    expected = [
        ("compacted", 1, 2, 0, 0, 1),
        ("compacted", 1, 2, 1, 0, 1),
        ("compacted", 3, 4, 0, 1, 2),
        ("compacted", 3, 4, 1, 1, 2),
        ("chunk", 5, 5, None, None, None),
        ("chunk", 6, 6, None, None, None),
    ]

    assert expected == await listed(known)
    for number in (2, 3, 4):  # chunk 1 begins a term
        await known.ledger.delete(number)
    assert expected == await listed(known)


async def test_a_wider_range_replaces_narrow_ones_and_a_range_after_a_gap_does_not_count() -> None:
    known = await written(8)
    await compact(known.ledger, 1, 2)
    await compact(known.ledger, 3, 4)
    await compact(known.ledger, 1, 4, run="b")
    await compact(known.ledger, 6, 7)

    assert [("compacted", 1, 4, 0, 0, 2), ("compacted", 1, 4, 1, 0, 2)] + [
        ("chunk", number, number, None, None, None) for number in (5, 6, 7, 8)
    ] == await listed(known)


async def test_a_topic_that_was_created_again_and_a_pruned_segment_have_no_old_objects() -> None:
    known = await written(4)
    await compact(known.ledger, 1, 4)
    objects = await list_objects(known.ledger)

    assert [(9, 1)] == [(9, each.segment) for each in select_files(9, [1, 2], objects)]
    assert [] == select_files(17, [0, 1], objects)
    assert [] == select_files(1, [0, 1], StoredObjects(0, [], 4, []))


async def test_a_trim_between_the_two_listings_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = await written(6)
    numbers = known.ledger.numbers
    trims = iter([4])

    async def trimmed_first(after: int = 0) -> list[int]:
        for last in trims:
            await known.compact(last)
        return await numbers(after)

    monkeypatch.setattr(known.ledger, "numbers", trimmed_first)

    assert ["compacted", "compacted", "chunk", "chunk"] == [kind for kind, *_ in await listed(known)]


async def test_a_lost_chunk_is_an_error_and_not_a_shorter_list() -> None:
    known = await written(6)
    await known.compact(2)
    await known.ledger.delete(3)

    with pytest.raises(ObjectMissingError, match="chunk 3 of shard 0 is missing"):
        await listed(known)


# Offsets at a point in time, in chunks and in compacted ranges.


@pytest.mark.parametrize(("at_ms", "older"), [(0, 0), (10, 0), (11, 1), (20, 1), (21, 3), (30, 3), (31, 4)])
async def test_the_number_of_chunks_older_than_a_time(at_ms: int, older: int) -> None:
    """Chunks at 10, 20, 20 and 30 ms."""
    known = LedgerWithPositions()
    for time in (10, 20, 20, 30):
        await known.write(time, 0)

    assert older == await first_chunk_at(known.ledger, [1, 2, 3, 4], at_ms)


async def test_finding_a_time_takes_few_reads() -> None:
    known = LedgerWithPositions()
    for time in range(200):
        await known.write(time * 10, 0, 1)
    assert {0: 123, 1: 123} == await known.positions(1225)

    assert 16 + CONCURRENT_CHUNK_READS >= known.ledger.store.calls["read"]


async def test_a_gap_is_an_error_and_not_the_end() -> None:
    """As the end of the ledger, it would hide everything after it."""
    known = LedgerWithPositions()
    for time in range(10, 60, 10):
        await known.write(time, 0)
    await known.ledger.delete(1)

    with pytest.raises(ObjectMissingError):
        await known.positions(20)


@pytest.mark.parametrize("hidden", [{4}, {5}, {3, 4}, {4, 5}, {3, 5}])
async def test_a_listing_that_lags_moves_no_position_behind_a_record(hidden: set[int], monkeypatch) -> None:
    """A seek would skip the records of a chunk that the listing does not show yet."""
    known = LedgerWithPositions()
    for time, segment in ((10, 0), (20, 0), (30, 0), (3_600_040, 0), (3_600_050, 1)):  # the shard was idle for an hour
        await known.write(time, segment)
    shown = known.ledger.numbers

    async def numbers(after: int = 0) -> list[int]:
        return [each for each in await shown(after=after) if each not in hidden]

    monkeypatch.setattr(known.ledger, "numbers", numbers)
    assert {0: 2, 1: 0} == await known.positions(25)


CHUNKS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=3)), max_size=25
)


@given(CHUNKS, st.integers(0, 60), st.integers(0, 26))
async def test_positions_in_any_ledger_at_any_time(chunks, at_ms: int, compacted: int) -> None:
    """Compared with a walk through all chunks. Chunks include splits, and some are compacted and deleted.

    A child has a position above 0 only if all its ancestors are read to their end.
    """
    times = accumulate((pause for pause, _ in chunks), initial=1)
    next(times)
    known = await any_ledger([steps for _, steps in chunks], times, compacted)
    found = await known.positions(at_ms)
    assert known.expected(at_ms) == found
    layout = known.state.topics["t"].layout
    for segment, offset in found.items():
        for ancestor in layout.ancestors(segment):
            assert offset == 0 or found[ancestor] == layout.segments[ancestor].end_offset
