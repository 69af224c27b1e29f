"""A ledger of chosen chunks with two topics, some of them compacted, and what each position in it should be."""

from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.reading.time_lookup import positions_at
from headgate.views.topics import TopicInfo
from shard.requests.topic_commands import describe
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from trials.compaction import compact

Step = int | str
"""The segment of a new record, or "split"."""
CHUNKS = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=4), max_size=20)


class LedgerWithPositions:
    """A ledger of chosen chunks, and the expected positions at each point in time."""

    def __init__(self) -> None:
        self.ledger = Ledger(FakeStore(latency_seconds=(0, 0)), 0)
        self.state = ShardState(0)
        self.value = b""
        """Of each record that is written; empty: its place."""
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
            columns.key.append(b"k%d" % (offset % 2))
            columns.value.append(self.value or b"%d.%d" % (placements[0].segment, offset))
            columns.headers.append((("n", b"\xff%d" % offset),) if offset % 2 else ())
        elif step == "split":
            segment = topic.layout.active()[0].segment_id
            step = e.SegmentSplit(topic_id=1, segment=segment, end_offset=topic.tails[segment].next_offset, token="s")
        self.state.apply(step)
        found = self.state.topic_of(step)
        builder.add(step, None if found is None else found.layout)

    async def compact(self, last: int, *, first: int = 1) -> None:
        """Compact chunks ``first`` to ``last``, and delete them, except the newest one."""
        await compact(self.ledger, first, last)
        for number in range(first, min(last + 1, self.state.chunk)):
            await self.ledger.delete(number)

    def description(self) -> TopicInfo:
        """Return what the leader tells clients about the topic."""
        return describe(self.state.topics["t"], 0)

    async def positions(self, at_ms: int) -> dict[int, int]:
        return await positions_at(self.ledger, self.description(), at_ms)

    def expected(self, at_ms: int) -> dict[int, int]:
        """Computed from all chunks."""
        ends = {s: tail.next_offset for s, tail in self.state.topics["t"].tails.items()}
        for time, before in self.at:
            if time >= at_ms:
                return {segment: before.get(segment, 0) for segment in ends}
        return ends


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
