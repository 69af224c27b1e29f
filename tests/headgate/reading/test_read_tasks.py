"""Tasks of a range of offsets: together they have each record once, whatever is compacted after they were made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.reading.read_tasks import first_chunk, read_tasks
from headgate.reading.topic_reader import TopicReader
from tests.support.samples.positioned_ledger import CHUNKS, PAIRS_OF_CHUNKS, LedgerWithPositions, any_ledger


async def read(known: LedgerWithPositions, tasks: list) -> list[tuple[int, int]]:
    """Return segment and offset of each record, task by task."""
    found = []
    for bounds, plan in tasks:
        starts, ends = ({segment: each[i] for segment, each in bounds.items()} for i in (0, 1))
        reader = TopicReader(known.ledger, known.description(), starts=starts, ends=ends, plan=plan)
        found += [(record.segment, record.offset) async for record in reader.stored()]
    return found


@given(CHUNKS, st.integers(0, 15), st.integers(0, 9), st.sampled_from([1, 2, 100]), st.sampled_from([1, 5, 100]))
async def test_tasks_have_each_record_once(chunks, compacted: int, later: int, task_chunks: int, task_bytes: int):
    known = await any_ledger(chunks, PAIRS_OF_CHUNKS, compacted)
    ends = {segment: tail.next_offset for segment, tail in known.state.topics["t"].tails.items()}
    bounds = {segment: (end // 3, end - end // 4) for segment, end in ends.items()}
    tasks = await read_tasks(known.ledger, known.description(), bounds, task_chunks=task_chunks, task_bytes=task_bytes)
    wanted = {segment: each for segment, each in bounds.items() if each[0] < each[1]}
    first = await first_chunk(known.ledger, known.description(), wanted)
    await known.write(10_000, 1, 1)
    if compacted < known.state.chunk:
        await known.compact(min(compacted + later, known.state.chunk), first=compacted + 1)

    expected = [(segment, at) for segment, each in bounds.items() for at in range(*each)]
    assert expected == sorted(await read(known, tasks))
    starts, ends = ({segment: each[i] for segment, each in wanted.items()} for i in (0, 1))
    reader = TopicReader(known.ledger, known.description(), starts=starts, ends=ends, first_chunk=first)
    assert expected == sorted([(each.segment, each.offset) async for each in reader.stored()])


@pytest.mark.parametrize(
    ("every", "part", "fewest", "most"),
    [(2, (500, 600), 200, 160), (25, (500, 600), 200, 700), (1, (0, 800), 30, 800), (1, (780, 800), 25, 40)],
    ids=["busy segments", "a quiet segment", "all", "what is new"],
)
async def test_a_part_of_many_chunks_is_found_by_reading_few_of_them(
    every: int, part: tuple[int, int], fewest: int, most: int
):
    known = LedgerWithPositions()
    await known.write(1)
    for time in range(800):
        await known.write(time + 2, 0, *[1] * (time % every == 0))
    reads = known.ledger.store.calls["read"]
    bounds = {0: part, 1: (part[0] // every, part[1] // every)}
    tasks = await read_tasks(known.ledger, known.description(), bounds, task_chunks=32)

    assert fewest > known.ledger.store.calls["read"] - reads
    assert most >= sum(len(plan.chunks) for _, plan in tasks)
    expected = [(segment, at) for segment, each in bounds.items() for at in range(*each)]
    assert expected == sorted(await read(known, tasks))


@pytest.mark.parametrize("bounds", [{1: (500, 600)}, {2: (0, 40)}], ids=["some offsets", "a child"])
async def test_a_read_begins_near_its_first_record(bounds: dict[int, tuple[int, int]]) -> None:
    """It read all chunks before it that were not compacted, and so did its plan."""
    known = LedgerWithPositions()
    for time in range(841):
        await known.write(time + 1, *((0, 1) if time < 800 else ("split",) if time == 800 else (1, 2)))
    calls, described = known.ledger.store.calls, known.description()
    starts, ends = ({segment: each[i] for segment, each in bounds.items()} for i in (0, 1))
    first = await first_chunk(known.ledger, described, bounds)
    reader = TopicReader(known.ledger, described, starts=starts, ends=ends, first_chunk=first)
    assert sum(each[1] - each[0] for each in bounds.values()) == len([each async for each in reader.stored()])
    tasks = await read_tasks(known.ledger, described, bounds)
    assert sum(len(plan.chunks) for _, plan in tasks) <= 120
    assert calls["read"] < 250
