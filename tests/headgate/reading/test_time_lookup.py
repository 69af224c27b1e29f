"""Offsets at a point in time, in chunks and in compacted ranges."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from controller.decisions.topic_commands import describe
from controller.state.shard_state import ShardState
from headgate.errors import ObjectMissingError
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.reading.time_lookup import CONCURRENT_CHUNK_READS, first_chunk_at, positions_at
from tests.support.compaction import compact
from tests.support.object_store import FakeStore

pytestmark = pytest.mark.looptime

Step = int | str
"""The segment of a new record, or "split"."""


class LedgerWithPositions:
    """A ledger of chosen chunks, and the expected positions at each point in time."""

    def __init__(self) -> None:
        self.ledger = Ledger(FakeStore(latency_seconds=(0, 0)), 0)
        self.state = ShardState(0)
        self.at: list[tuple[int, dict[int, int]]] = []
        """Time of each chunk, and the end offsets before it."""

    async def write(self, at_ms: int, *steps: Step, topic_id: int = 1) -> None:
        """Write one chunk."""
        ends = {s: tail.next_offset for s, tail in self.state.topics["t"].tails.items()} if self.at else {}
        builder = ChunkBuilder()
        self.state.begin_chunk(self.state.chunk + 1, at_ms)
        self.at.append((self.state.at_ms, ends))
        entries: list[e.AnyEntry] = []
        if self.state.chunk == 1:
            entries.append(e.TopicCreated(topic_id=1, topic="t", segments=2, token="x"))
            entries.append(e.TopicCreated(topic_id=9, topic="other", segments=2, token="y"))
        for step in entries + list(steps):
            self._add(builder, step, topic_id)
        number, header_ms = self.state.chunk, self.state.at_ms
        await self.ledger.append(number, builder.encode(shard=0, number=number, leader_epoch=1, at_ms=header_ms))

    def _add(self, builder: ChunkBuilder, step, topic_id: int) -> None:
        topic = self.state.topics_by_id.get(topic_id)
        if isinstance(step, int):
            offset = topic.tails[step].next_offset
            placements = [e.Placement(step, 0, 65535, offset, 1)]
            step = e.RecordsStored(topic_id=topic_id, count=1, placements=placements, size_bytes=2)
            columns = builder.records
            columns.topic_id.append(topic_id)
            columns.segment.append(placements[0].segment)
            columns.offset.append(offset)
            columns.timestamp_ms.append(0)
            columns.key.append(b"k")
            columns.value.append(b"v")
        elif step == "split":
            segment = topic.layout.active()[0].segment_id
            step = e.SegmentSplit(topic_id=1, segment=segment, end_offset=topic.tails[segment].next_offset, token="s")
        self.state.apply(step)
        found = self.state.topic_of(step)
        builder.add(step, None if found is None else found.layout)

    async def compact(self, last: int) -> None:
        """Compact chunks 1 to ``last``, and delete them."""
        await compact(self.ledger, 1, last)
        for number in range(1, last + 1):
            await self.ledger.delete(number)

    async def positions(self, at_ms: int) -> dict[int, int]:
        return await positions_at(self.ledger, describe(self.state.topics["t"], 0), at_ms)

    def expected(self, at_ms: int) -> dict[int, int]:
        """Computed from all chunks."""
        ends = {s: tail.next_offset for s, tail in self.state.topics["t"].tails.items()}
        for time, before in self.at:
            if time >= at_ms:
                return {segment: before.get(segment, 0) for segment in ends}
        return ends


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


async def test_an_idle_segment_is_at_its_end() -> None:
    known = LedgerWithPositions()
    await known.write(10, 0, 1)
    for time in range(20, 20 + 3 * CONCURRENT_CHUNK_READS):
        await known.write(time, 1)

    assert {0: 1, 1: 11} == await known.positions(30)


async def test_records_of_another_topic_do_not_count() -> None:
    known = LedgerWithPositions()
    await known.write(10, 0)
    await known.write(20, 0, topic_id=9)
    await known.write(30, 0)

    assert {0: 1, 1: 0} == await known.positions(20)


async def test_a_gap_is_an_error_and_not_the_end() -> None:
    """As the end of the ledger, it would hide everything after it."""
    known = LedgerWithPositions()
    for time in range(10, 60, 10):
        await known.write(time, 0)
    await known.ledger.delete(1)

    with pytest.raises(ObjectMissingError):
        await known.positions(20)


CHUNKS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=3)), max_size=25
)


@settings(max_examples=50)
@given(CHUNKS, st.integers(0, 60), st.integers(0, 26))
def test_positions_in_any_ledger_at_any_time(chunks, at_ms: int, compacted: int) -> None:
    """Compared with a walk through all chunks. Chunks include splits, and some are compacted and deleted.

    A child has a position above 0 only if all its ancestors are read to their end.
    """

    async def play() -> None:
        known = LedgerWithPositions()
        await known.write(1)
        time = 1
        for pause, steps in chunks:
            time += pause
            possible: list[Step] = []
            for step in steps:
                active = {s.segment_id for s in known.state.topics["t"].layout.active()}
                if step == "split" or step in active:
                    possible.append(step)
                if step == "split":
                    break
            await known.write(time, *possible)
        if compacted:
            await known.compact(min(compacted, known.state.chunk))
        found = await known.positions(at_ms)
        assert known.expected(at_ms) == found
        layout = known.state.topics["t"].layout
        for segment, offset in found.items():
            for ancestor in layout.ancestors(segment):
                assert offset == 0 or found[ancestor] == layout.segments[ancestor].end_offset

    asyncio.run(play())
