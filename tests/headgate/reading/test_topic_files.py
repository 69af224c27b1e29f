"""Which objects hold the records of a topic."""

import pytest

from headgate.errors import ObjectMissingError
from headgate.reading.topic_files import StoredObjects, list_objects, select_files, terms_of, topic_files
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.samples.positioned_ledger import LedgerWithPositions
from trials.compaction import compact

pytestmark = pytest.mark.looptime


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


async def test_without_compaction_all_chunks_are_listed() -> None:
    known = await written(3)

    assert [("chunk", number, number, None, None, None) for number in (1, 2, 3)] == await listed(known)


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
