"""Feed a program with records of the segments that it holds: one reader a segment, one bounded queue for all.

What is held, and when a segment is given back, is headgate.consumer's business. Here: each segment's records come in
the order of their offsets, what is over is never delivered, and it is known what was taken and what acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from headgate.entries import SubscriptionType
from headgate.ledger import Ledger
from headgate.messages import Grant
from headgate.segment_reader import ChunkCache, Head, SegmentReader
from headgate.store import Store

QUEUE_RECORDS: Final = 1000
"""Records that wait to be taken by the program, over all segments."""

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a named task that somebody owns."""


class ConsumedRecord(msgspec.Struct, frozen=True):
    """One record as it was delivered. ``generation`` is that of the grant under which it was read."""

    topic: str
    segment: int
    offset: int
    key: bytes
    value: bytes
    timestamp_ms: int
    generation: int


@dataclass(slots=True, eq=False)
class Holding:
    """A segment that is being read."""

    grant: Grant
    reader: SegmentReader
    delivered: int
    """End offset of what the program has taken."""
    acknowledged: int
    """STREAM: end offset of what it has acknowledged."""
    open_offsets: set[int] = field(default_factory=set)
    """QUEUE: taken and not acknowledged."""
    queued: int = 0
    over: bool = False
    """Nothing of it is delivered any more."""
    reading: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every acknowledgement, and when it is dropped."""

    def is_acknowledged(self, kind: SubscriptionType) -> bool:
        """Return whether everything that was delivered is acknowledged."""
        if kind == "STREAM":
            return self.acknowledged >= self.delivered
        return kind == "CHECKPOINT" or not self.open_offsets


class RecordFeed:
    """Records of one consumer, on their way from the ledger to its program."""

    def __init__(self, topic: str, kind: SubscriptionType, positions: Mapping[int, int], spawn: Spawn) -> None:
        """``positions``: for CHECKPOINT, where to begin instead of where a grant says."""
        self.head = Head()
        self.holdings: dict[int, Holding] = {}
        self.positions: dict[int, int] = dict(positions)
        self._topic = topic
        self._kind = kind
        self._spawn = spawn
        self._cache: ChunkCache | None = None
        self._queue: asyncio.Queue[tuple[Holding, ConsumedRecord] | None] = asyncio.Queue(QUEUE_RECORDS)

    def open(self, store: Store, shard: int, topic_id: int) -> None:
        """Read from the ledger of ``shard``; again after the first time it changes nothing."""
        if self._cache is None:
            self._cache = ChunkCache(Ledger(store, shard), topic_id)

    @property
    def is_open(self) -> bool:
        """Whether it knows what to read from."""
        return self._cache is not None

    async def close(self) -> None:
        """Stop reading."""
        for holding in self.holdings.values():
            self.stop(holding)
        self.wake()
        if self._cache is not None:
            await self._cache.close()

    # --- segments -----------------------------------------------------------------------------------------------------

    def begin(self, grant: Grant) -> Holding:
        """Read a segment from where its grant says."""
        assert self._cache is not None, "a grant before the first answer"
        start = grant.start_offset
        if self._kind == "CHECKPOINT":
            start = self.positions.get(grant.segment, start)
        reader = SegmentReader(
            grant,
            cache=self._cache,
            head=self.head,
            deliver=partial(self._deliver, grant),
            start_offset=start,
            skips_acknowledged=self._kind == "QUEUE",
        )
        holding = Holding(grant, reader, delivered=start, acknowledged=start)
        self.positions[grant.segment] = start
        self.holdings[grant.segment] = holding
        holding.reading = self._spawn(reader.run(), f"read-{grant.segment}")
        return holding

    def stop(self, holding: Holding) -> None:
        """Deliver nothing more of it."""
        holding.over = True
        if holding.reading is not None:
            holding.reading.cancel()

    def drop(self, segment: int) -> None:
        """Hold ``segment`` no more."""
        holding = self.holdings.pop(segment, None)
        if holding is not None:
            self.stop(holding)
            holding.progress.set()

    def holds(self, holding: Holding) -> bool:
        """Return whether it is still the one of its segment."""
        return self.holdings.get(holding.grant.segment) is holding

    def generations(self) -> list[tuple[int, int]]:
        """Return (segment, generation) of all that is held."""
        return sorted((segment, holding.grant.generation) for segment, holding in self.holdings.items())

    # --- records ------------------------------------------------------------------------------------------------------

    async def _deliver(self, grant: Grant, offset: int, timestamp_ms: int, key: bytes, value: bytes) -> None:
        holding = self.holdings[grant.segment]
        record = ConsumedRecord(self._topic, grant.segment, offset, key, value, timestamp_ms, grant.generation)
        holding.queued += 1
        await self._queue.put((holding, record))

    async def next(self) -> ConsumedRecord | None:
        """Return the next record, or None if there may be a reason to stop."""
        while True:
            item = await self._queue.get()
            if item is None:
                return None
            holding, record = item
            holding.queued -= 1
            if holding.over:
                continue
            holding.delivered = self.positions[record.segment] = record.offset + 1
            if self._kind == "QUEUE":
                holding.open_offsets.add(record.offset)
            return record

    def acknowledge(self, record: ConsumedRecord) -> bool:
        """Note what the program has finished; False if it is known already."""
        holding = self.holdings.get(record.segment)
        if holding is None or holding.grant.generation != record.generation:
            return True
        if self._kind == "STREAM" and record.offset < holding.acknowledged:
            return False
        holding.acknowledged = max(holding.acknowledged, record.offset + 1)
        holding.open_offsets.discard(record.offset)
        holding.progress.set()
        return True

    def has_delivered(self, chunk: int) -> bool:
        """Return whether the program has taken everything up to ``chunk`` from all that is held."""
        return all(
            not holding.over and not holding.queued and holding.reader.has_read(chunk)
            for holding in self.holdings.values()
        )

    def wake(self) -> None:
        """Let a waiting `next` return None; if the queue is full it is not waiting."""
        if not self._queue.full():
            self._queue.put_nowait(None)
