"""Read the records of held segments: one reader per segment, one bounded queue for all.

Records of a segment are delivered in the order of their offsets, and none of a stopped segment. They are queued in
runs: consecutive deliveries of one segment, which cost one turn of the reader.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, Final

from headgate.client.client_metrics import ConsumerTotals
from headgate.client.connection import Client
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.record_queue import QUEUE_RECORDS, HeldSegment, ParkedKey, Reader, RecordQueue
from headgate.client.decisions.held_segments import HeldKey
from headgate.errors import StoreUnavailableError, TransportError
from headgate.ledger.ledger import Ledger
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.protocol.codec import ChunkAnnouncement
from headgate.protocol.replies import Grant, HeartbeatReply, Redelivery
from headgate.reading.segment_reader import CompactedRecords, SegmentReader
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import NEAR, ChunkCache, Head
from headgate.storage.object_store import Store

READ_SECONDS: Final = 30.0
"""For one record that has failed. Its segment may be pruned meanwhile."""
SKIP_REPORT_INTERVAL_SECONDS: Final = 1.0
"""How often a bucket range without deliveries reports how many records of other ranges it has skipped."""

OnGrantSkipped = Callable[[Grant, int, int], None]
"""(grant, first offset, end offset)."""
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
OnParked = Callable[[HeldSegment, ConsumedRecord], None]
"""(holding, a record of a key that is parked)."""


class RecordFeed:
    reads_by_call = False
    """Whether the end of a lease has to end the reading: nothing else limits what a call reads."""

    def __init__(self, topic: str, kind: SubscriptionType, positions: Mapping[SegmentId, Offset], spawn: Spawn) -> None:
        """``positions``: for CHECKPOINT, where to start instead of at the grant's offset."""
        self.head = Head()
        self.holdings: dict[HeldKey, HeldSegment] = {}
        self.on_skipped: OnGrantSkipped = lambda *_: None
        """Called for records that can be acknowledged without a delivery: their keys are in other buckets."""
        self.positions: dict[SegmentId, Offset] = dict(positions)
        self.own: set[SegmentId] = set()
        """Segments whose position is this consumer's to bring to the end: no other consumer has taken them over."""
        self.positions_follow_handling = False
        """Whether `handled` moves `positions`, and not the delivery."""
        self.on_granted: Callable[[HeldSegment], None] = lambda _: None
        """Called for each new holding, before it is read."""
        self.totals = ConsumerTotals()
        self.on_parked: OnParked = lambda *_: None
        """Called instead of delivering a record."""
        self._topic = topic
        self._kind = kind
        self._spawn = spawn
        self._cache: ChunkCache | None = None
        self._compacted: CompactedRecords | None = None
        self.queue = RecordQueue()

    def open(self, store: Store, shard: int, topic_id: int) -> None:
        """Read from the ledger of ``shard``. Further calls change nothing."""
        if self._cache is None:
            self._cache = ChunkCache(Ledger(store, shard), topic_id)
            self._compacted = CompactedRecords(store, shard, topic_id)

    async def close(self) -> None:
        for holding in self.holdings.values():
            self.stop(holding)
        self.queue.wake()
        if self._cache is not None:
            await self._cache.close()

    # Segments

    def begin(self, grant: Grant, after: asyncio.Task[None] | None = None) -> HeldSegment:
        """Read a segment, from its grant's offset on. ``after``: once this task has ended without a failure."""
        start = Offset(grant.start_offset)
        if self._kind == SubscriptionType.CHECKPOINT:
            start = self.positions.get(SegmentId(grant.segment), start)
        reader = self._reader(grant, start)
        holding = HeldSegment(grant, reader, delivered=start, acknowledged=start)
        holding.parked = {key: ParkedKey(0) for key in grant.parked}
        self.positions[SegmentId(grant.segment)] = start
        self.own.add(SegmentId(grant.segment))
        self.holdings[grant.segment, grant.generation] = holding
        self.on_granted(holding)
        holding.read_task = self._spawn(self._read(holding, after), f"read-{grant.segment}")
        return holding

    def _reader(self, grant: Grant, start: int, /) -> Reader:
        assert self._cache is not None, "a grant arrived before the registration"
        assert self._compacted is not None, "opened together with the cache"
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

    async def _read(self, holding: HeldSegment, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
            if after.cancelled() or after.exception() is not None:
                return
        await holding.reader.run()
        # The reader is at the end of a sealed segment. Without an acknowledgement it is never drained.
        self.acknowledge_skipped(holding.grant.segment, holding.grant.generation)

    def stop(self, holding: HeldSegment) -> None:
        holding.stopped = True
        if holding.read_task is not None:
            holding.read_task.cancel()

    def pause(self, key: HeldKey) -> None:
        """Queue no more records of a segment, until `resume`."""
        if (holding := self.holdings.get(key)) is not None:
            holding.resumed = holding.resumed or asyncio.Event()  # The reader may wait for it already.

    def resume(self, key: HeldKey) -> None:
        if (holding := self.holdings.get(key)) is not None and holding.resumed is not None:
            holding.resumed.set()
            holding.resumed = None

    def drop(self, segment: int, generation: int) -> None:
        holding = self.holdings.pop((segment, generation), None)
        if holding is not None:
            self.stop(holding)
            holding.progress.set()

    @property
    def own_positions(self) -> dict[SegmentId, Offset]:
        return {segment: offset for segment, offset in self.positions.items() if segment in self.own}

    def holds(self, holding: HeldSegment) -> bool:
        return self.holdings.get((holding.grant.segment, holding.grant.generation)) is holding

    def generations(self) -> list[tuple[int, int]]:
        return sorted(self.holdings)

    # Records

    async def deliver_again(self, holding: HeldSegment, redelivery: Redelivery) -> None:
        """Read a record that has failed once more, and deliver it."""
        found = await self.read_one(holding.grant.segment, redelivery.offset, redelivery.start_chunk)
        if self.holds(holding) and not holding.stopped:
            holding.deliveries.retrying.pop(redelivery.offset, None)
            await self._deliver(holding.grant, found, redelivery.delivery)

    async def read_one(self, segment: int, offset: int, start_chunk: int) -> Rows:
        """Read the record at ``offset``, which is in ``start_chunk`` or later.

        Raises StoreUnavailableError: it cannot be read at present, or its segment was pruned meanwhile.
        """
        assert self._cache is not None, "the feed is not open"
        assert self._compacted is not None, "opened together with the cache"
        found: list[Rows] = []

        async def keep(rows: Rows) -> None:
            found.append(rows.part(0, 1))

        grant = Grant(
            segment=segment,
            generation=0,
            first_hash=0,
            last_hash=0,
            start_offset=offset,
            start_chunk=start_chunk,
            end_offset=offset + 1,
        )
        reader = SegmentReader(grant, cache=self._cache, compacted=self._compacted, head=self.head, deliver=keep)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await reader.run()
        except TimeoutError:
            raise StoreUnavailableError(
                f"offset {offset} of segment {segment} was not read within {READ_SECONDS:g} s"
            ) from None
        return found[0]

    async def _deliver(self, grant: Grant, rows: Rows, delivery_count: int = 1) -> None:
        holding = self.holdings[grant.segment, grant.generation]
        at = 0
        while at < len(rows.offsets):
            if delivery_count == 1 and not holding.deliveries.has_capacity.is_set():
                await holding.deliveries.has_capacity.wait()
            if delivery_count == 1 and holding.resumed is not None:
                await holding.resumed.wait()
            # With parked keys, one by one: what is queued and what is parked keep their order.
            run = rows.part(at, at + (1 if holding.parked else QUEUE_RECORDS))
            at += len(run.offsets)
            records = self._records(grant, run, delivery_count)
            if holding.parked and await self._is_parked(holding, run.keys[0]):
                self.on_parked(holding, next(records))
            else:
                holding.queued_end = run.offsets[-1] + 1
                await self.enqueue(holding, records, len(run.offsets))

    def _records(self, grant: Grant, rows: Rows, delivery_count: int) -> Iterator[ConsumedRecord]:
        topic, segment, generation = repeat(self._topic), repeat(SegmentId(grant.segment)), Generation(grant.generation)
        offsets, timestamps_ms, keys, values, headers = rows
        columns = offsets, keys, values, timestamps_ms, repeat(generation), headers, repeat(delivery_count)
        return map(ConsumedRecord, topic, segment, *columns)

    async def _is_parked(self, holding: HeldSegment, key: bytes) -> bool:
        """Return whether a record that was read is parked. Wait while its key is about to be parked no more."""
        while (state := holding.parked.get(key)) is not None and state.held is not None:
            await state.held.wait()
        return state is not None

    async def enqueue(self, holding: HeldSegment, records: Iterator[ConsumedRecord], count: int = 1) -> None:
        """Queue a run for the program, once there is space. A record that is delivered again is a run."""
        holding.queued += count
        await self.queue.put(holding, records, count)

    def _record_skipped(self, grant: Grant, first_offset: int, end_offset: int) -> None:
        """Record how far a bucket range was read; report the skipped records that can be acknowledged."""
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
        """STREAM: acknowledge the skipped records of a bucket range, unless a delivery is pending."""
        holding = self.holdings.get((segment, generation))
        # A stopped holding may have discarded queued records, so its read offset proves nothing.
        if holding is None or holding.stopped or self._kind != SubscriptionType.STREAM:
            return
        if holding.queued or holding.acknowledged < holding.delivered:
            return
        if holding.read_offset > holding.acknowledged:
            holding.acknowledged = holding.read_offset
            self.on_skipped(holding.grant, 0, holding.read_offset)

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Return the next records of one run, at most so many; an empty list if none is queued."""
        queue = self.queue
        while queue.runs and queue.lease.is_valid:
            holding = queue.runs[0].holding
            records = queue.take(1 if holding.parked else max_records)
            if records := self._delivered(holding, records):
                return records
        return []

    def _delivered(self, holding: HeldSegment, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """Count records of a run as delivered; return none if their segment was revoked meanwhile.

        If the segment has parked keys, it is one record: others must be delivered before it is parked.
        """
        last, count = records[-1], len(records)
        number = last.parked_number
        if not number:
            holding.queued -= count
        if holding.stopped:
            return []
        if number:
            parked = holding.parked.get(last.key)
            if parked is None or not parked.takes(number):
                return []
        else:
            holding.taken_end = end = last.offset + 1
            if holding.parked and last.key in holding.parked:
                self.on_parked(holding, last)
                return []
            holding.delivered = max(holding.delivered, end)
            if not self.positions_follow_handling:
                self.positions[last.segment] = holding.delivered
            if self._kind is SubscriptionType.QUEUE:
                holding.deliveries.unacknowledged_offsets.update((each.offset, each.delivery_count) for each in records)
        totals = self.totals
        totals.delivered += count
        totals.redelivered += count if last.delivery_count > 1 else 0
        totals.newest = last
        return records

    def is_present(self, record: ConsumedRecord) -> bool:
        """Return whether this delivery of a QUEUE's record is neither acknowledged nor over."""
        holding = self.holdings.get((record.segment, record.generation))
        present = None if holding is None else holding.deliveries.unacknowledged_offsets.get(record.offset)
        return present == record.delivery_count

    def may_be_delivered(self, record: ConsumedRecord) -> bool:
        """Return False if ``record`` cannot be one that a held segment has delivered. See `is_present` for a QUEUE."""
        holding = self.holdings.get((record.segment, record.generation))
        numbered = record.parked_number > 0 or self._kind is SubscriptionType.QUEUE
        return numbered or holding is None or record.offset < holding.delivered

    def acknowledge(self, record: ConsumedRecord) -> bool:
        """STREAM: record an acknowledgement; False if an earlier one covers it."""
        holding = self.holdings.get((record.segment, record.generation))
        if holding is None:
            return True
        if record.offset < holding.acknowledged:
            return False
        holding.acknowledged = max(holding.acknowledged, record.offset + 1)
        holding.progress.set()
        return True

    def handled(self, record: ConsumedRecord) -> None:
        if (record.segment, record.generation) in self.holdings:
            self.positions[record.segment] = Offset(record.offset + 1)

    def give_back(self, records: Iterable[ConsumedRecord]) -> None:
        """Count records as not delivered: the next holder gets them. STREAM: the last ones. Their segments stop."""
        for record in records:
            holding = self.holdings.get((record.segment, record.generation))
            if holding is None:
                continue
            self.stop(holding)
            holding.progress.set()
            if not record.parked_number:
                holding.delivered = min(holding.delivered, record.offset)
                holding.deliveries.unacknowledged_offsets.pop(record.offset, None)
                holding.deliveries.deadlines.pop(record.offset, None)
            elif (parked := holding.parked.get(record.key)) is not None:
                parked.delivered = min(parked.delivered, record.parked_number - 1)

    @property
    def may_deliver(self) -> bool:
        return self.queue.lease.is_valid

    def is_near(self, head: int) -> bool:
        """Return whether every reader is at the end, or near it, of a ledger that ends with chunk ``head``."""
        reads = self._cache is not None and bool(self.holdings)
        return reads and all(held.reader.has_read(head - NEAR) for held in self.holdings.values())

    def offer(self, number: int, data: bytes) -> None:
        """Take chunk ``number``, which is durable, as it is stored."""
        if self._cache is not None:
            self._cache.offer(number, data)
            self.head.advance(number)

    def has_delivered(self, chunk: int) -> bool:
        """Return whether the records up to ``chunk`` of every holding were delivered, and no redelivery is due."""
        now = asyncio.get_running_loop().time()
        return all(
            not holding.stopped
            and not holding.queued
            and holding.reader.has_read(chunk)
            and all(due > now for due in holding.deliveries.retrying.values())
            for holding in self.holdings.values()
        )

    def lag_seconds(self, now_ms: int) -> float:
        """Return the metric of this name (headgate.client.client_metrics). Any thread may call it."""
        if not any(held.queued or not held.reader.has_read(self.head.number) for held in list(self.holdings.values())):
            return 0.0
        newest = self.totals.newest
        return math.inf if newest is None else max(0, now_ms - newest.timestamp_ms) / 1000

    @property
    def unhandled(self) -> list[tuple[int, int, int | None]]:
        """What a heartbeat says of external segments, see `Heartbeat`."""
        return []


class AnnouncedChunks:
    """Takes the small chunks that a leader publishes, instead of reading them from the store.

    1. Only a consumer that has read to the end of its shard follows; it says so in its heartbeats.
    2. A chunk counts if it is authenticated with the key that the leader of its term has stated in a reply. One of
       another term is passed over: its key is not known, or no longer.
    3. Nothing depends on it. What was not announced, or is lost, is read from the store.
    """

    def __init__(self, client: Client, feed: RecordFeed, log: EventLogger) -> None:
        self.follows = False
        """Whether the leader is to announce chunks to this consumer."""
        self._client = client
        self._feed = feed
        self._log = log
        self._key = 0
        self._term_id = 0
        self._reported = False
        self._asked = False
        self._receives = False
        self._remove: Callable[[], None] = lambda: None

    async def heard(self, shard: int, alive: HeartbeatReply) -> None:
        """Decide by a leader's reply whether to follow from now on."""
        self._key, self._term_id = alive.chunk_key, alive.term_id
        near = self._feed.is_near(alive.head)
        if near and not self._asked and self._client.transport.connected:  # so that a refusal is known at once
            self._asked = True
            try:
                self._remove = await self._client.watch_chunks(shard, self._received)
                self._receives = True
            except TransportError as error:
                self._log.warning("announcements.refused", shard=shard, reason=str(error))
            except asyncio.CancelledError:  # of the program's call: the next heartbeat asks again
                self._asked = False
                raise
        self.follows = near and self._receives

    def close(self) -> None:
        self._remove()
        self._asked = self._receives = self.follows = False

    def _received(self, announced: ChunkAnnouncement) -> None:
        if not self._key or announced.term_id != self._term_id:
            return
        if announced.is_authentic(self._key):
            self._feed.offer(announced.number, announced.object)
        elif not self._reported:
            self._reported = True
            self._log.warning("chunk.not_authentic", shard=announced.shard, chunk=announced.number)
