"""Feed a program with records of the segments that it holds: one reader a segment, one bounded queue for all.

What is held, and when a segment is given back, is headgate.client.consumer's business. Here: each segment's records
come in the order of their offsets, what is over is never delivered, and it is known what was taken and what
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from headgate.client.decisions.held_segments import HeldKey
from headgate.ledger.ledger import Ledger
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.protocol.messages import Grant
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.segment_reader import ChunkCache, Head, SegmentReader
from headgate.storage.object_store import Store

QUEUE_RECORDS: Final = 1000
"""Records that wait to be taken by the program, over all segments."""
SKIP_REPORT_INTERVAL_SECONDS: Final = 1.0
"""How often a share without deliveries says how far it has gone past the records of others."""

OnGrantSkipped = Callable[[Grant, int, int], None]
"""(grant, first offset, end offset)."""
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a named task that somebody owns."""


class ConsumedRecord(msgspec.Struct, frozen=True):
    """One record as it was delivered."""

    topic: str
    segment: SegmentId
    offset: Offset
    key: bytes
    value: bytes
    timestamp_ms: int
    """Milliseconds since 1970, as the producer set it."""
    generation: Generation
    """Generation of the grant under which the record was read. An acknowledgement refers to it."""


class Reader(Protocol):
    """Reads one granted segment."""

    async def run(self) -> None:
        """Read until cancelled."""

    def has_read(self, chunk: int) -> bool:
        """Return whether everything up to ``chunk`` was handed on."""


@dataclass(slots=True, eq=False)
class HeldSegment:
    """A segment that is being read."""

    grant: Grant
    reader: Reader
    delivered: int
    """End offset of what the program has taken."""
    acknowledged: int
    """STREAM: end offset of what it has acknowledged."""
    unacknowledged_offsets: set[int] = field(default_factory=set)
    """QUEUE: taken and not acknowledged."""
    queued: int = 0
    stopped: bool = False
    """Nothing of it is delivered any more."""
    read_task: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every acknowledgement, and when it is dropped."""
    read_offset: int = 0
    """A share: end offset of what was read, delivered or passed by."""
    skip_reported_at: float = 0.0
    """When that was last said, by the loop's clock."""

    def is_acknowledged(self, kind: SubscriptionType) -> bool:
        """Return whether everything that was delivered is acknowledged."""
        if kind == SubscriptionType.STREAM:
            return self.acknowledged >= self.delivered
        return kind == SubscriptionType.CHECKPOINT or not self.unacknowledged_offsets


class RecordFeed:
    """Records of one consumer, on their way from the ledger to its program."""

    def __init__(self, topic: str, kind: SubscriptionType, positions: Mapping[SegmentId, Offset], spawn: Spawn) -> None:
        """``positions``: for CHECKPOINT, where to begin instead of where a grant says."""
        self.head = Head()
        self.holdings: dict[HeldKey, HeldSegment] = {}
        self.on_skipped: OnGrantSkipped = lambda *_: None
        """Is told which records may be acknowledged although they were not delivered: they are of others' buckets."""
        self.positions: dict[SegmentId, Offset] = dict(positions)
        self._topic = topic
        self._kind = kind
        self._spawn = spawn
        self._cache: ChunkCache | None = None
        self._compacted: CompactedRecords | None = None
        self._queue: asyncio.Queue[tuple[HeldSegment, ConsumedRecord] | None] = asyncio.Queue(QUEUE_RECORDS)

    def open(self, store: Store, shard: int, topic_id: int) -> None:
        """Read from the ledger of ``shard``; again after the first time it changes nothing."""
        if self._cache is None:
            self._cache = ChunkCache(Ledger(store, shard), topic_id)
            self._compacted = CompactedRecords(store, shard, topic_id)

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

    def begin(self, grant: Grant) -> HeldSegment:
        """Read a segment from where its grant says."""
        start = Offset(grant.start_offset)
        if self._kind == SubscriptionType.CHECKPOINT:
            start = self.positions.get(SegmentId(grant.segment), start)
        reader = self._reader(grant, start)
        holding = HeldSegment(grant, reader, delivered=start, acknowledged=start)
        holding.read_offset = start
        self.positions[SegmentId(grant.segment)] = start
        self.holdings[grant.segment, grant.generation] = holding
        holding.read_task = self._spawn(self._read(holding), f"read-{grant.segment}")
        return holding

    def _reader(self, grant: Grant, start: int, /) -> Reader:
        assert self._cache is not None, "a grant before the first answer"
        assert self._compacted is not None, "opened together"
        return SegmentReader(
            grant,
            cache=self._cache,
            compacted=self._compacted,
            head=self.head,
            deliver=partial(self._deliver, grant),
            start_offset=start,
            skip_acknowledged=self._kind == SubscriptionType.QUEUE,
            on_skipped=partial(self._record_skipped, grant),
        )

    async def _read(self, holding: HeldSegment) -> None:
        await holding.reader.run()
        # Read to a sealed end: that must be known, or the segment is never drained.
        self.acknowledge_skipped(holding.grant.segment, holding.grant.generation)

    def stop(self, holding: HeldSegment) -> None:
        """Deliver nothing more of it."""
        holding.stopped = True
        if holding.read_task is not None:
            holding.read_task.cancel()

    def drop(self, segment: int, generation: int) -> None:
        """Hold no more what was granted at ``generation``."""
        holding = self.holdings.pop((segment, generation), None)
        if holding is not None:
            self.stop(holding)
            holding.progress.set()

    def holds(self, holding: HeldSegment) -> bool:
        """Return whether it was not dropped."""
        return self.holdings.get((holding.grant.segment, holding.grant.generation)) is holding

    def generations(self) -> list[tuple[int, int]]:
        """Return (segment, generation) of all that is held."""
        return sorted(self.holdings)

    # --- records ------------------------------------------------------------------------------------------------------

    async def _deliver(self, grant: Grant, offset: int, timestamp_ms: int, key: bytes, value: bytes) -> None:
        holding = self.holdings[grant.segment, grant.generation]
        record = ConsumedRecord(
            self._topic,
            SegmentId(grant.segment),
            Offset(offset),
            key,
            value,
            timestamp_ms,
            Generation(grant.generation),
        )
        holding.queued += 1
        await self._queue.put((holding, record))

    def _record_skipped(self, grant: Grant, first_offset: int, end_offset: int) -> None:
        """Note how far a share is; tell what can be acknowledged of the buckets of others."""
        holding = self.holdings.get((grant.segment, grant.generation))
        if holding is None or holding.stopped:
            return
        holding.read_offset = end_offset
        if self._kind == SubscriptionType.QUEUE:
            if end_offset > first_offset:
                self.on_skipped(grant, first_offset, end_offset)
        elif first_offset == end_offset:
            now = asyncio.get_running_loop().time()
            if now - holding.skip_reported_at >= SKIP_REPORT_INTERVAL_SECONDS:
                holding.skip_reported_at = now
                self.acknowledge_skipped(grant.segment, grant.generation)

    def acknowledge_skipped(self, segment: int, generation: int) -> None:
        """STREAM: acknowledge up to where a share was read, if all that was delivered of it is acknowledged."""
        holding = self.holdings.get((segment, generation))
        # What is over has perhaps not been delivered as far as it was read, although nothing queues any more.
        if holding is None or holding.stopped or self._kind != SubscriptionType.STREAM:
            return
        if holding.queued or holding.acknowledged < holding.delivered:
            return
        if holding.read_offset > holding.acknowledged:
            holding.acknowledged = holding.read_offset
            self.on_skipped(holding.grant, 0, holding.read_offset)

    async def next(self) -> ConsumedRecord | None:
        """Return the next record, or None if there may be a reason to stop."""
        while True:
            item = await self._queue.get()
            if item is None:
                return None
            record = self._delivered(*item)
            if record is not None:
                return record

    def next_nowait(self) -> ConsumedRecord | None:
        """Return the next record that is queued, or None if there is none."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            record = None if item is None else self._delivered(*item)
            if record is not None:
                return record
        return None

    def _delivered(self, holding: HeldSegment, record: ConsumedRecord) -> ConsumedRecord | None:
        """Count a record as delivered; None if its segment was revoked meanwhile."""
        holding.queued -= 1
        if holding.stopped:
            return None
        holding.delivered = self.positions[record.segment] = Offset(record.offset + 1)
        if self._kind == SubscriptionType.QUEUE:
            holding.unacknowledged_offsets.add(record.offset)
        return record

    def acknowledge(self, record: ConsumedRecord) -> bool:
        """Note what the program has finished; False if it is known already."""
        holding = self.holdings.get((record.segment, record.generation))
        if holding is None:
            return True
        if self._kind == SubscriptionType.STREAM and record.offset < holding.acknowledged:
            return False
        holding.acknowledged = max(holding.acknowledged, record.offset + 1)
        holding.unacknowledged_offsets.discard(record.offset)
        holding.progress.set()
        return True

    def has_delivered(self, chunk: int) -> bool:
        """Return whether the program has taken everything up to ``chunk`` from all that is held."""
        return all(
            not holding.stopped and not holding.queued and holding.reader.has_read(chunk)
            for holding in self.holdings.values()
        )

    def wake(self) -> None:
        """Let a waiting `next` return None; if the queue is full it is not waiting."""
        if not self._queue.full():
            self._queue.put_nowait(None)
