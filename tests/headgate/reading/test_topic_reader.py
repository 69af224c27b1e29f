"""The records of a whole topic: order, bounds, the last ones, new ones, and damaged ledgers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import LedgerError, StoreUnavailableError
from headgate.reading.head import Head
from headgate.reading.topic_reader import LedgerRecord, TopicReader
from tests.support.samples.positioned_ledger import LedgerWithPositions, Step

pytestmark = pytest.mark.looptime

Place = tuple[int, int]
"""Segment and offset."""
CHUNKS = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=4), max_size=20)


def reader(known: LedgerWithPositions, starts: dict[int, int] | None = None, **options) -> TopicReader:
    described = known.description()
    return TopicReader(
        known.ledger,
        described,
        starts=dict.fromkeys((each.segment for each in described.segments), 0) if starts is None else starts,
        **options,
    )


async def places(records: AsyncGenerator[LedgerRecord]) -> list[Place]:
    return [(record.segment, record.offset) async for record in records]


async def written(*chunks: tuple[Step, ...]) -> LedgerWithPositions:
    """Return a ledger with these chunks, one per 10 ms."""
    known = LedgerWithPositions()
    for number, steps in enumerate(chunks, 1):
        await known.write(10 * number, *steps)
    return known


async def test_records_come_in_the_order_in_which_they_were_stored():
    known = await written((0, 1, 0), (1,), ("split",), (3, 2, 1))
    await known.write(100, 0, topic_id=9)

    assert [(0, 0), (1, 0), (0, 1), (1, 1), (3, 0), (2, 0), (1, 2)] == await places(reader(known).stored())


async def test_records_after_the_description_are_not_read_and_chunks_after_its_end_neither():
    known = await written((0,), (1,))
    bounded = reader(known)
    for time in range(50, 350, 10):
        await known.write(time, 0)
    reads = known.ledger.store.calls["read"]

    assert [(0, 0), (1, 0)] == await places(bounded.stored())
    assert 8 >= known.ledger.store.calls["read"] - reads


async def test_a_start_at_a_time_skips_older_chunks():
    known = await written(*[(0,)] * 200)
    starts = await known.positions(1900)
    reads = known.ledger.store.calls["read"]

    assert [(0, offset) for offset in range(189, 200)] == await places(
        reader(known, {0: starts[0]}, stored_at_ms=1900).stored()
    )
    assert 30 > known.ledger.store.calls["read"] - reads


@settings(max_examples=60)
@given(CHUNKS, st.integers(0, 21), st.integers(0, 200))
def test_any_ledger_from_any_time(chunks, compacted: int, at_ms: int):
    """Every record once, a segment by offset, and no record of a child before one of its ancestors."""

    async def play() -> None:
        known = LedgerWithPositions()
        await known.write(1)
        for time, steps in enumerate(chunks, 1):
            await known.write(10 * time, *possible(known, steps))
        if compacted:
            await known.compact(min(compacted, known.state.chunk))
        starts = await known.positions(at_ms)
        found = await places(reader(known, starts, stored_at_ms=at_ms).stored())

        topic = known.state.topics["t"]
        for segment, tail in topic.tails.items():
            own = [offset for number, offset in found if number == segment]
            assert list(range(starts[segment], tail.next_offset)) == own
            for ancestor in topic.layout.ancestors(segment):
                last = max((at for at, (number, _) in enumerate(found) if number == ancestor), default=-1)
                assert all(at > last for at, (number, _) in enumerate(found) if number == segment)
        everything = await places(reader(known).stored())
        for count in (0, 1, 3, 100):
            assert everything[len(everything) - min(count, len(everything)) :] == [
                each[:2] for each in await reader(known).tail(count)
            ]

    asyncio.run(play())


def possible(known: LedgerWithPositions, steps: list[Step]) -> list[Step]:
    """Return the steps that a leader would accept; a split ends its chunk."""
    active = {each.segment_id for each in known.state.topics["t"].layout.active()}
    accepted: list[Step] = []
    for step in steps:
        if step == "split":
            return [*accepted, step]
        if step in active:
            accepted.append(step)
    return accepted


async def test_following_continues_with_new_records_and_segments():
    known = await written((0, 1), (1,))
    head = Head()
    following = reader(known).follow(head)
    assert [(0, 0), (1, 0), (1, 1)] == [(await anext(following))[:2] for _ in range(3)]

    await known.write(60, "split")
    await known.write(70, 2)
    head.advance(4)
    assert (2, 0) == (await anext(following))[:2]

    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(30)
    await known.write(80, 3)  # its announcement is lost
    assert (3, 0) == (await waiting)[:2]
    await following.aclose()


async def test_what_is_read_before_it_is_announced_is_made_durable_first():
    known = await written((0,))
    known.ledger.store.fail_next("unavailable", "make_durable")
    with pytest.raises(StoreUnavailableError):
        await reader(known).tail(1)

    following = reader(known).follow(Head())
    assert (0, 0) == (await anext(following))[:2]
    await known.write(60, 0)
    known.ledger.store.fail_next("unavailable", "make_durable")
    before = known.ledger.store.calls["make_durable"]
    assert (0, 1) == (await anext(following))[:2]
    assert before + 2 == known.ledger.store.calls["make_durable"]
    await following.aclose()


async def test_following_survives_compaction_a_forged_head_and_an_outage_of_the_store():
    known = await written((0,))
    head = Head()
    following = reader(known).follow(head)
    assert (0, 0) == (await anext(following))[:2]

    head.advance(1000)
    for time in (60, 70):
        await known.write(time, 0)
    await known.compact(3)
    known.ledger.store.fail_next("unavailable", "read")
    assert [(0, 1), (0, 2)] == [(await anext(following))[:2] for _ in range(2)]
    await following.aclose()


async def test_chunks_that_compaction_deletes_meanwhile_are_read_from_its_objects():
    known = await written(*[(0,)] * 20)
    reading = reader(known).stored()
    assert (0, 0) == (await anext(reading))[:2]
    await known.compact(18)

    assert [(0, offset) for offset in range(1, 20)] == await places(reading)


async def test_records_that_the_leader_counts_and_the_ledger_lacks_are_an_error():
    """As the end, they would look like no records."""
    known = await written((0,), (0,))
    other = await written((0,))

    with pytest.raises(LedgerError, match="segment 0 ends at offset 1 in the ledger, and its leader counts 2"):
        await places(TopicReader(other.ledger, known.description(), starts={0: 0}).stored())


async def test_a_gap_between_offsets_is_an_error():
    known = await written((0,), (0,))
    with pytest.raises(LedgerError, match="continues at offset 1, expected 0: records are missing"):
        await places(reader(known, first_chunk=2).stored())


@pytest.mark.parametrize("follows", [False, True])
async def test_a_reader_that_is_left_early_closes_what_it_reads(follows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the garbage collector decides when."""
    known = await written(*[(0,)] * 20)
    await known.compact(known.state.chunk)
    whole_pass, closed = TopicReader._pass, []

    async def recorded(reader: TopicReader) -> AsyncGenerator[LedgerRecord]:
        try:
            async for record in whole_pass(reader):
                yield record
        finally:
            closed.append(True)

    monkeypatch.setattr(TopicReader, "_pass", recorded)
    records = reader(known).follow(Head()) if follows else reader(known).stored()
    async with aclosing(records):
        await anext(records)

    assert closed
