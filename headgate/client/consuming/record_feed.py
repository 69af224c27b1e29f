"""Read the records of held segments: one reader per segment, one bounded queue for all.

Records of a segment are delivered in the order of their offsets, and none of a stopped segment. They are queued in
runs: consecutive deliveries of one segment, which cost one turn of the reader.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, Protocol

from headgate.client.client_metrics import ConsumerTotals
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.delivery_lease import DeliveryLease
from headgate.client.decisions.held_segments import HeldKey
from headgate.errors import StoreUnavailableError
from headgate.ledger.ledger import Ledger
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.protocol.messages import Grant, Redelivery
from headgate.reading.chunk_cache import NEAR, ChunkCache
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.head import Head
from headgate.reading.segment_reader import SegmentReader
from headgate.reading.stored_rows import Rows
from headgate.storage.object_store import Store

QUEUE_RECORDS: Final = 1000
"""Most records that are queued for the program, over all segments."""
RUN_RECORDS: Final = 500
READ_SECONDS: Final = 30.0
"""For one record that has failed. Its segment may be pruned meanwhile."""
SKIP_REPORT_INTERVAL_SECONDS: Final = 1.0
"""How often a bucket range without deliveries reports how many records of other ranges it has
skipped."""

OnGrantSkipped = Callable[[Grant, int, int], None]
"""(grant, first offset, end offset)."""
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


@dataclass(slots=True, eq=False)
class ParkedKey:
    queued_end: int
    """The offset after the last record that was queued before the key was parked."""
    is_resuming: bool = False
    parked_at: float = 0.0
    """Loop time at which it was parked again: what the leader said before about its resumption is outdated."""
    held: asyncio.Event | None = None
    """Set when the next record of the key need not wait any more; None: none waits, they are parked."""
    stored_at: float = float("-inf")
    """Loop time at which the dead-letter topic last had further records of the key, or all of them."""
    queued: int = 0
    """While it is being resumed: number of the last record that was queued; the others likewise."""
    delivered: int = 0
    acknowledged: int = 0
    expected: deque[int] = field(default_factory=deque)
    """Numbers of those that were queued and not taken. The queue may have others, of a resumption that has ended."""

    def is_delivered(self, number: int) -> bool:
        """Return whether a resumed record was delivered by the present resumption, and is not acknowledged."""
        return self.is_resuming and self.acknowledged < number <= self.delivered

    def takes(self, number: int) -> bool:
        """Return whether a resumed record is the next one, which is taken from the queue."""
        if not self.expected or self.expected[0] != number:
            return False
        self.delivered = self.expected.popleft()
        return True

    def end_resumption(self) -> None:
        """Deliver no more of its records; wake what waits for it."""
        self.is_resuming = False
        self.expected.clear()
        self.hold(False)

    def hold(self, wanted: bool) -> None:
        """Let the next record of the key wait, or no more."""
        if self.held is not None and not wanted:
            self.held.set()
        self.held = (self.held or asyncio.Event()) if wanted else None


class Reader(Protocol):
    async def run(self) -> None:
        """Read until cancelled."""

    def has_read(self, chunk: int) -> bool:
        """Return whether every record up to ``chunk`` was queued."""


@dataclass(slots=True, eq=False)
class HeldSegment:
    grant: Grant
    reader: Reader
    delivered: int
    """The offset after the last record that was delivered."""
    acknowledged: int
    """STREAM: the offset after the last record that was acknowledged."""
    unacknowledged_offsets: dict[int, int] = field(default_factory=dict)
    """QUEUE: offset that is delivered and not acknowledged → its delivery count."""
    deadlines: dict[int, tuple[float, int]] = field(default_factory=dict)
    """QUEUE with a time-out: offset of those → loop time at which its delivery fails, and its key bucket."""
    retrying: dict[int, float] = field(default_factory=dict)
    """QUEUE: offset that has failed → loop time at which it is delivered again; infinite: it is dead."""
    has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the leader keeps no more failed records of this segment. Until then no further record is read."""
    queued: int = 0
    """Records in the queue; those of resumed keys do not count."""
    stopped: bool = False
    read_task: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every acknowledgement, and when the segment is dropped."""
    parked: dict[bytes, ParkedKey] = field(default_factory=dict)
    """STREAM: keys whose records are not delivered."""
    queued_end: int = 0
    """The offset after the last record that was queued; resumed ones do not count."""
    taken_end: int = 0
    """The offset after the last one of them that was taken from the queue."""
    read_offset: int = 0
    """If buckets differ, or keys are parked: the offset after the last record that was read, delivered or skipped."""
    skip_reported_at: float = 0.0
    """Loop time at which ``read_offset`` was last reported."""
    resumed: asyncio.Event | None = None
    """Set when a paused segment is read again; None: it is not paused."""

    def __post_init__(self) -> None:
        self.has_capacity.set()

    def end_delivery(self, offset: int) -> int:
        """End the present delivery of a QUEUE's record; return its delivery count."""
        self.deadlines.pop(offset, None)
        self.progress.set()
        return self.unacknowledged_offsets.pop(offset)

    def is_acknowledged(self, kind: SubscriptionType) -> bool:
        if kind == SubscriptionType.STREAM:
            resumed = all(each.acknowledged >= each.delivered for each in self.parked.values() if each.is_resuming)
            return self.acknowledged >= self.delivered and resumed
        return kind == SubscriptionType.CHECKPOINT or not self.unacknowledged_offsets


OnParked = Callable[[HeldSegment, ConsumedRecord], None]
"""(holding, a record of a key that is parked)."""
OnFailed = Callable[[HeldSegment, list[Redelivery]], None]
"""(holding, its records that are delivered again later)."""


class RecordFeed:
    reads_by_call = False
    """Whether the end of a lease has to end the reading: nothing else limits what a call reads."""

    def __init__(self, topic: str, kind: SubscriptionType, positions: Mapping[SegmentId, Offset], spawn: Spawn) -> None:
        """``positions``: for CHECKPOINT, where to start instead of at the grant's offset."""
        self.head = Head()
        self.holdings: dict[HeldKey, HeldSegment] = {}
        self.on_skipped: OnGrantSkipped = lambda *_: None
        """Called for records that can be acknowledged without a delivery: their keys are in other
        buckets."""
        self.positions: dict[SegmentId, Offset] = dict(positions)
        self.own: set[SegmentId] = set()
        """Segments whose position is this consumer's to bring to the end: no other consumer has taken them over."""
        self.positions_follow_handling = False
        """Whether `handled` moves `positions`, and not the delivery."""
        self.on_failed: OnFailed = lambda *_: None
        """Called for the records of a new grant that are delivered again later."""
        self.totals = ConsumerTotals()
        self.on_parked: OnParked = lambda *_: None
        """Called instead of delivering a record."""
        self._topic = topic
        self._kind = kind
        self._spawn = spawn
        self._cache: ChunkCache | None = None
        self._compacted: CompactedRecords | None = None
        self.queue = _Queue()

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
        self.on_failed(holding, grant.failed)
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
        # The reader is at the end of a sealed segment. Without an acknowledgement it is never
        # drained.
        self.acknowledge_skipped(holding.grant.segment, holding.grant.generation)

    def stop(self, holding: HeldSegment) -> None:
        holding.stopped = True
        if holding.read_task is not None:
            holding.read_task.cancel()

    def pause(self, key: HeldKey) -> None:
        """Queue no more records of a segment, until `resume`."""
        if (holding := self.holdings.get(key)) is not None:
            holding.resumed = asyncio.Event()

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
            holding.retrying.pop(redelivery.offset, None)
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
        records, left = self._records(grant, rows, delivery_count), len(rows.offsets)
        while left:
            if delivery_count == 1 and not holding.has_capacity.is_set():
                await holding.has_capacity.wait()
            if delivery_count == 1 and holding.resumed is not None:
                await holding.resumed.wait()
            # With parked keys, one by one: what is queued and what is parked keep their order.
            run = list(islice(records, 1 if holding.parked else RUN_RECORDS))
            left -= len(run)
            if holding.parked and await self._is_parked(holding, run[0].key):
                self.on_parked(holding, run[0])
            else:
                holding.queued_end = run[-1].offset + 1
                await self.enqueue(holding, run)

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

    async def enqueue(self, holding: HeldSegment, records: list[ConsumedRecord]) -> None:
        """Queue a run for the program, once there is space. A record that is resumed or delivered again is a run."""
        holding.queued += 0 if records[0].parked_number else len(records)
        await self.queue.put(holding, records)

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
                holding.unacknowledged_offsets.update((each.offset, each.delivery_count) for each in records)
        totals = self.totals
        totals.delivered += count
        totals.redelivered += count if last.delivery_count > 1 else 0
        totals.newest = last
        return records

    def is_present(self, record: ConsumedRecord) -> bool:
        """Return whether this delivery of a QUEUE's record is neither acknowledged nor over."""
        holding = self.holdings.get((record.segment, record.generation))
        return holding is not None and holding.unacknowledged_offsets.get(record.offset) == record.delivery_count

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
            if holding is not None:
                self.stop(holding)
            if holding is not None and record.parked_number:
                if record.key in holding.parked:
                    parked = holding.parked[record.key]
                    parked.delivered = min(parked.delivered, record.parked_number - 1)
                holding.progress.set()
            elif holding is not None:
                holding.delivered = min(holding.delivered, record.offset)
                holding.unacknowledged_offsets.pop(record.offset, None)
                holding.deadlines.pop(record.offset, None)
                holding.progress.set()

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
            and all(due > now for due in holding.retrying.values())
            for holding in self.holdings.values()
        )

    def lag_seconds(self, now_ms: int) -> float:
        """Return the metric of this name (headgate.client.client_metrics). Any thread may call it."""
        behind = (held.queued or not held.reader.has_read(self.head.number) for held in list(self.holdings.values()))
        if not any(behind):
            return 0.0
        newest = self.totals.newest
        return math.inf if newest is None else max(0, now_ms - newest.timestamp_ms) / 1000

    @property
    def unhandled(self) -> list[tuple[int, int, int | None]]:
        """What a heartbeat says of external segments, see `Heartbeat`."""
        return []


@dataclass(slots=True, eq=False)
class _Run:
    holding: HeldSegment
    records: list[ConsumedRecord]
    taken: int = 0


class _Queue:
    """Runs of records for the program, bounded in records."""

    def __init__(self) -> None:
        self.lease = DeliveryLease()
        """Without a valid one, nothing is taken."""
        self.runs: deque[_Run] = deque()
        self.records = 0
        """Those that are read, and that the program has not taken."""
        self._entrance = asyncio.Lock()
        """Held by the reader that waits for space; others follow in their order."""
        self._awaited = 0
        """How many records it has; 0: no reader waits."""
        self._has_space = asyncio.Event()
        self._changed = asyncio.Event()

    async def put(self, holding: HeldSegment, records: list[ConsumedRecord]) -> None:
        async with self._entrance:
            while self.records + len(records) > QUEUE_RECORDS:
                self._awaited = len(records)
                self._has_space.clear()
                await self._has_space.wait()
            self._awaited = 0
            self.runs.append(_Run(holding, records))
            self.records += len(records)
            self._changed.set()

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Remove records from the first run, at most so many."""
        run = self.runs[0]
        records = run.records[run.taken : run.taken + max_records]
        count = len(records)
        run.taken += count
        if run.taken == len(run.records):
            self.runs.popleft()
        self.records -= count
        if self._awaited and self.records + self._awaited <= QUEUE_RECORDS:
            self._has_space.set()
        return records

    async def changed(self) -> None:
        """Wait until there is a record to take, or the consumer should check whether to stop."""
        if not self.runs or not self.lease.is_valid:
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """End the waits of `changed`."""
        self._changed.set()
