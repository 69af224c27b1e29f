"""A ledger of chosen chunks with two topics, some of them compacted, and what each position in it should be."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate import topic_dataset
from headgate.client.topic_source import TopicSource
from headgate.ledger.identity import identity_object
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import IDENTITY_PATH, snapshot_path
from headgate.model import entries as e
from headgate.reading.topic_files import positions_at
from headgate.storage.object_store import open_store
from headgate.views.topics import TopicInfo
from shard.requests.topic_commands import describe
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.chunks import add_record
from trials.compaction import compact

Step = int | str
"""The segment of a new record, or "split"."""
CHUNKS = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=4), max_size=20)
PAIRS_OF_CHUNKS = [10 * (number // 2) for number in range(1, 21)]  # times, of which two chunks have the same


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
            segment, offset = step, topic.tails[step].next_offset
            placements = [e.Placement(segment, 0, 65535, offset, 1)]
            step = e.RecordsStored(topic_id=topic_id, count=1, placements=placements, size_bytes=2)
            record = {"topic_id": topic_id, "segment": segment, "key": b"k%d" % (offset % 2)}
            headers = (("n", b"\xff%d" % offset),) if offset % 2 else ()
            add_record(builder, offset, 0, self.value or b"%d.%d" % (segment, offset), headers, **record)
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


async def any_ledger(chunks: list[list[Step]], times: Iterable[int], compacted: int) -> LedgerWithPositions:
    """Write a record, and what a leader would accept of ``chunks`` at ``times``; then compact the first chunks."""
    known = LedgerWithPositions()
    await known.write(1)
    for time, steps in zip(times, chunks, strict=False):
        await known.write(time, *possible(known, steps))
    if compacted:
        await known.compact(min(compacted, known.state.chunk))
    return known


class TrimmedLedger(NamedTuple):
    """Where the ledger is, and the records of the topic."""

    url: str
    chunks: Path
    stored: list[tuple[int, int, bytes]]
    """Segment, offset and value of each record that is stored, in order."""
    described: TopicInfo

    def serve(
        self, monkeypatch: pytest.MonkeyPatch, describe: Callable[[], Awaitable[TopicInfo]] | None = None
    ) -> None:
        """Let `headgate.dataset` find the topic under every name, as if a leader had described it."""

        @asynccontextmanager
        async def source(_client: Any, _topic: str, _timeout_seconds: float) -> AsyncIterator[TopicSource]:
            now = self.described if describe is None else await describe()
            yield TopicSource(now, Ledger(open_store(self.url), 0), "1" * 32, 8, _present)

        async def _present() -> TopicInfo:
            return self.described

        monkeypatch.setattr(topic_dataset, "open_topic_source", source)
        config = self.chunks.parents[2] / "client.toml"
        config.write_text(
            f'cluster = "local"\nbroker_host = "localhost"\nbroker_port = 1883\nledger_url = "{self.url}"\n'
        )
        monkeypatch.setenv("HEADGATE_CONFIG", str(config))


def trimmed_ledger(folder: Path, *, compacted: int = 5, start_ms: int = 0) -> TrimmedLedger:
    """Write the ledger into ``folder``; chunks 1 to ``compacted`` of 8 are compacted.

    Chunk 1 begins a term, and 8 is the newest, so they are kept; 5 is not deleted yet. Segment 1 was pruned.
    """

    async def write() -> tuple[list[tuple[int, int, bytes]], TopicInfo]:
        known = LedgerWithPositions()
        known.ledger.store.objects[IDENTITY_PATH] = identity_object("1" * 32)
        for at_ms, steps in enumerate([(0, 1), (0, 0), (1,), ("split",), (2, 3, 1), (3, 3), (1, 2)], 1):
            await known.write(start_ms + 10 * at_ms, *steps)
            if at_ms == 3:
                await known.write(start_ms + 35, 0, 1, 0, topic_id=9)
        kept = {
            path: data
            for path, data in known.ledger.store.objects.items()
            if path.endswith(("01.parquet", "05.parquet", "08.parquet"))
        }
        if compacted:
            await known.compact(compacted)
            await known.ledger.store.create(snapshot_path(0, compacted), b"")
        known.ledger.store.objects.update(kept)
        described = known.description()
        segments = [each for each in described.segments if each.segment != 1]
        described = msgspec.structs.replace(described, segments=segments)
        for path in [path for path in known.ledger.store.objects if "/topic_id=1/segment=1/" in path]:
            await known.ledger.store.delete(path)
        for path, data in known.ledger.store.objects.items():
            (folder / "ledger" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ledger" / path).write_bytes(data)
        return [(s.segment, at, b"%d.%d" % (s.segment, at)) for s in segments for at in range(s.next_offset)], described

    stored, described = asyncio.run(write())
    return TrimmedLedger(
        f"file://{folder}/ledger", folder / "ledger" / "chunks" / "shard=0000", sorted(stored), described
    )
