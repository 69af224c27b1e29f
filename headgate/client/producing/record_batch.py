"""One batch of records: filled, sealed, and sent under one sequence.

Each record expires at its own deadline: a record that joins an open batch does not expire with the first one. Expired
records leave a batch that was never sent. Once it was sent it is never rebuilt, and all records without an outcome get
the same one. Offsets are computed when a caller first awaits a delivery.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from headgate import errors
from headgate.client.decisions.session_batches import Outcome
from headgate.model.entries import Placement
from headgate.model.headers import Headers, header_bytes
from headgate.model.identifiers import Offset, SegmentId
from headgate.model.layout import segment_hash
from headgate.protocol.replies import Committed, SourcePosition
from headgate.protocol.requests import ProduceBatch, Record, RecordHeader

RECORD_OVERHEAD_BYTES: Final = 24
"""Most bytes of a record on the wire besides its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 12
"""Most bytes of a header on the wire besides its name and value."""
MAX_PARTS: Final = 2000
"""Records and headers of a batch, from which on it is full: so many stop the loop of a leader for some 4 ms."""
DEADLINE_RESOLUTION_SECONDS = 0.005
"""Deadlines that differ by less from the first of a group count as the latest one of the group. So an
outcome can be twice as late, and a full batch has hundreds of deadlines, not thousands."""


class ByteBudget:
    """How many bytes a producer can buffer, and how the shards share them.

    Each shard has a guaranteed minimum. Beyond it, shards draw on a common pool, first come first served, so a shard
    without a leader cannot starve the others. A record larger than both waits until its shard holds nothing else.
    """

    def __init__(self, total_bytes: int, guaranteed_bytes: int) -> None:
        """``guaranteed_bytes`` is per shard. The pool is ``total_bytes`` less one shard's minimum."""
        self._guaranteed = guaranteed_bytes
        self._pool = max(0, total_bytes - guaranteed_bytes)
        self._pool_used = 0
        self._used: dict[int, int] = {}
        self._waiters: dict[int, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that all shards hold."""
        return sum(list(self._used.values()))

    def used_by(self, shard: int) -> int:
        return self._used.get(shard, 0)

    def try_reserve(self, shard: int, size_bytes: int) -> bool:
        """Reserve bytes for one record; False if there are too few, or other callers wait already."""
        return not self._waiters.get(shard) and self._admit(shard, size_bytes)

    async def reserve(self, shard: int, size_bytes: int) -> None:
        """Wait for bytes, first come first served per shard. A cancelled call reserves nothing."""
        if self.try_reserve(shard, size_bytes):
            return
        waiters = self._waiters.setdefault(shard, deque())
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, ready)
        waiters.append(entry)
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled():
                self.release(shard, size_bytes)
            raise
        finally:
            waiters.remove(entry)  # Until now it has kept later callers behind it.
            if not (waiters and waiters[0][1].done()):
                self._wake()

    def release(self, shard: int, size_bytes: int) -> None:
        before = self._used[shard]
        self._used[shard] = before - size_bytes
        self._pool_used -= self._above_guarantee(before) - self._above_guarantee(before - size_bytes)
        self._wake()

    def _admit(self, shard: int, size_bytes: int) -> bool:
        used = self._used.get(shard, 0)
        more = used + size_bytes - max(self._guaranteed, used)
        if more > 0:
            oversized_alone = used == 0 and size_bytes > self._guaranteed + self._pool
            if self._pool_used + more > self._pool and not oversized_alone:
                return False
            self._pool_used += more
        self._used[shard] = used + size_bytes
        return True

    def _above_guarantee(self, used: int) -> int:
        return max(0, used - self._guaranteed)

    def _wake(self) -> None:
        for shard, waiters in self._waiters.items():
            for size_bytes, ready in waiters:
                if not ready.done():
                    if not self._admit(shard, size_bytes):
                        break
                    ready.set_result(None)


def wire_bytes(key: bytes, value: bytes, headers: Headers) -> int:
    """Return the most bytes that a record takes on the wire, which are those that it takes of the budget."""
    size = len(key) + len(value) + RECORD_OVERHEAD_BYTES
    return size + header_bytes(headers) + HEADER_OVERHEAD_BYTES * len(headers) if headers else size


class BatchContent:
    __slots__ = ("_headers", "_parts", "records", "reserved_headers", "size_bytes")

    def __init__(self, *, reserved_headers: bool) -> None:
        self.records: list[Record] = []
        self.reserved_headers = reserved_headers
        self.size_bytes = 0
        self._headers: list[Headers] = []
        self._parts = 0

    def __len__(self) -> int:
        return len(self.records)

    def fits(self, size_bytes: int, limit_bytes: int) -> bool:
        """Return whether one more record fits; the first one always does."""
        return not self.records or (self.size_bytes + size_bytes <= limit_bytes and self._parts < MAX_PARTS)

    def places(self, limit_bytes: int) -> tuple[int, int]:
        """Return how many bytes and how many records without headers more fit."""
        return limit_bytes - self.size_bytes, MAX_PARTS - self._parts

    def extend(self, records: list[Record], size_bytes: int) -> None:
        """Add records without headers."""
        self.records += records
        self._headers += [()] * len(records)
        self._parts += len(records)
        self.size_bytes += size_bytes

    def add(self, record: Record, headers: Headers, size_bytes: int) -> None:
        self.records.append(record)
        self._headers.append(headers)
        self._parts += 1 + len(headers)
        self.size_bytes += size_bytes

    def remove_first(self, count: int) -> int:
        removed = zip(self.records[:count], self._headers[:count], strict=True)
        released_bytes = sum(wire_bytes(record.key, record.value, headers) for record, headers in removed)
        del self.records[:count], self._headers[:count]
        self.size_bytes -= released_bytes
        return released_bytes

    def wire_headers(self) -> list[RecordHeader]:
        if not any(self._headers):
            return []
        return [RecordHeader(index, *header) for index, headers in enumerate(self._headers) for header in headers]


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a durable record is stored."""

    segment: SegmentId | None
    """None: the record is stored, but the leader no longer remembers where. The same holds for ``offset``."""
    offset: Offset | None
    duplicate: bool
    """Whether an earlier try had already stored the record."""
    topic_id: int | None
    """The topic that stores it, as in `TopicInfo`; None like ``segment``. A topic that was deleted and
    created again has another id, and does not contain the record."""


class RecordBatch:
    __slots__ = (
        "_expired",
        "_group_deadline",
        "_group_ends",
        "_locations",
        "_on_outcome",
        "_removed",
        "_waiters",
        "completion",
        "content",
        "deadlines",
        "outcome",
        "position",
        "previous",
        "reply",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        on_outcome: Callable[[RecordBatch, Outcome, int, int], None],
        *,
        reserved_headers: bool = False,
    ) -> None:
        """``on_outcome`` gets each outcome with the number of its records, and the bytes that are no longer needed.

        ``reserved_headers``: see `ProducerSettings`.
        """
        self.topic = topic
        self.content = BatchContent(reserved_headers=reserved_headers)
        self.deadlines: list[float] = []
        """Ascending, one per group of records: see `DEADLINE_RESOLUTION_SECONDS`."""
        self.position: SourcePosition | None = None
        self.previous: SourcePosition | None = None
        """The source position before that of its first record that has one."""
        self.outcome: Outcome | None = None
        self.reply: Committed | None = None
        self.completion: asyncio.Future[errors.HeadgateError | None] = asyncio.get_running_loop().create_future()
        self._on_outcome = on_outcome
        self._group_deadline = 0.0
        """The deadline of the first record of the last group."""
        self._group_ends: list[int] = []
        """Per group, the index after its last record."""
        self._expired: list[tuple[int, errors.HeadgateError]] = []
        """(index after the last record, error) of the records that expired, ascending."""
        self._removed = 0
        """Records that expired before the batch was sent; they were the first ones."""
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._locations: list[tuple[int, int] | None] | None = None

    @property
    def source(self) -> str | None:
        """See `Sendable`."""
        return None if self.position is None else self.topic

    def add(
        self,
        record: Record,
        size_bytes: int,
        moved: tuple[SourcePosition, SourcePosition] | None,
        deadline: float,
        headers: Headers = (),
    ) -> Delivery:
        """Append ``record``, whose outcome must be known at the loop time ``deadline``; returns its delivery.

        ``moved``: the source position before it, and its own.
        """
        self.content.add(record, headers, size_bytes)
        if moved is not None:
            before, self.position = moved
            self.previous = self.previous or before
        return Delivery(self, self._join_group(deadline) - 1)

    def extend(self, records: list[Record], size_bytes: int, deadline: float) -> tuple[RecordBatch, int, int]:
        """Append records without headers; return what `Deliveries` has of them."""
        first = len(self.content)
        self.content.extend(records, size_bytes)
        return self, first, self._join_group(deadline)

    def _join_group(self, deadline: float) -> int:
        """Give the newest records their deadline; return the index after them."""
        end = len(self.content.records)
        if self.deadlines and deadline < self._group_deadline + DEADLINE_RESOLUTION_SECONDS:
            self.deadlines[-1] = max(self.deadlines[-1], deadline)
            self._group_ends[-1] = end
        else:
            self._group_deadline = deadline
            self.deadlines.append(deadline)
            self._group_ends.append(end)
        return end

    def request(self, *, producer_id: int, producer_epoch: int, sequence: int) -> ProduceBatch:
        return ProduceBatch(
            topic=self.topic,
            records=self.content.records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            source_position=None if self.position is None else self.position.position,
            topic_id=None if self.position is None else self.position.topic_id,
            previous_position=None if self.previous is None else self.previous.position,
            headers=self.content.wire_headers(),
            reserved_headers=self.content.reserved_headers,
        )

    def expire(self, due: float, outcome: Outcome, reason: str) -> None:
        end = self._group_ends[bisect_right(self.deadlines, due) - 1]
        count = end - self._expired_end
        error = self._error(outcome, reason)
        assert error is not None, "expired records have an error"
        self._expired.append((end, error))
        released_bytes = 0
        if outcome is Outcome.FAILED:  # records that expired before, while the batch was in flight, leave it as well
            released_bytes = self.content.remove_first(end - self._removed)
            self._removed = end
        self._wake(end)
        self._on_outcome(self, outcome, count, released_bytes)

    def resolve(self, outcome: Outcome, reply: Committed | None, reason: str) -> None:
        assert self.outcome is None, "a batch was resolved twice"
        self.outcome, self.reply = outcome, reply
        self.completion.set_result(self._error(outcome, reason))
        end = self._removed + len(self.content)
        self._wake(end)
        self._on_outcome(self, outcome, end - self._expired_end, self.content.size_bytes)

    @property
    def _expired_end(self) -> int:
        return self._expired[-1][0] if self._expired else 0

    def _wake(self, end: int) -> None:
        for waiter, index in self._waiters.items():
            if index < end and not waiter.done():
                waiter.set_result(None)

    def _error(self, outcome: Outcome, reason: str) -> errors.HeadgateError | None:
        where = f"topic {self.topic!r}"
        match outcome:
            case Outcome.COMMITTED:
                return None
            case Outcome.FAILED:
                return errors.DeliveryFailedError(f"{where}: not stored: {reason}")
            case Outcome.UNKNOWN:
                return errors.DeliveryUnknownError(f"{where}: it may or may not be stored: {reason}")
            case Outcome.INVALID:
                return errors.RequestRejectedError("invalid", f"{where}: {reason}")
            case Outcome.FENCED:
                return errors.FencedError("fenced", f"{where}: {reason}; what was in flight may or may not be stored")
            case Outcome.FORGOTTEN:
                return errors.ForgottenError(
                    "forgotten", f"{where}: {reason}; what was in flight may or may not be stored"
                )

    def has_outcome(self, index: int) -> bool:
        """Return whether the outcome of a record is known. Indexes count from the first record added."""
        return self.completion.done() or index < self._expired_end

    def error(self, index: int) -> errors.HeadgateError | None:
        """Return why a record with an outcome is not committed, or None."""
        if index < self._expired_end:
            return self._expired[bisect_right(self._expired, index, key=itemgetter(0))][1]
        return self.completion.result()

    def when_known(self, index: int, callback: Callable[[errors.HeadgateError | None], object]) -> None:
        """Call ``callback`` with `error`, once record ``index`` has an outcome: in this call, or a turn after it."""
        if self.has_outcome(index):
            callback(self.error(index))
            return
        waiter = self.completion.get_loop().create_future()
        self._waiters[waiter] = index
        waiter.add_done_callback(lambda _: callback(self.error(self._waiters.pop(waiter))))

    def wait(self, index: int) -> Generator[object, None, None]:
        """Wait for the outcome of a record. Cancelling one caller does not affect the others.

        Each caller gets its own future: `asyncio.shield` over a shared one costs another turn of the loop per record.
        """
        waiter = self.completion.get_loop().create_future()
        self._waiters[waiter] = index
        try:
            yield from waiter
        finally:
            del self._waiters[waiter]

    def stored(self, index: int) -> RecordMetadata:
        """Return where record ``index`` of this committed batch is stored."""
        assert self.outcome is Outcome.COMMITTED, f"the batch is {self.outcome}"
        reply = self.reply
        if reply is None:
            return RecordMetadata(None, None, duplicate=True, topic_id=None)
        if self._locations is None and reply.placements is not None:
            self._locations = record_locations(self.content.records, reply.placements)
        location = None if self._locations is None else self._locations[index - self._removed]
        if location is None:
            return RecordMetadata(None, None, reply.duplicate, reply.topic_id)
        return RecordMetadata(SegmentId(location[0]), Offset(location[1]), reply.duplicate, reply.topic_id)


def record_locations(records: list[Record], placements: list[Placement]) -> list[tuple[int, int] | None]:
    """Return (segment, offset) of each record.

    Inside a placement offsets rise by one in batch order. None for a record that no placement
    covers. No leader replies so, but the commit counts anyway.
    """
    next_offsets = {placement.segment: placement.first_offset for placement in placements}
    if len(placements) == 1:
        segment, first = placements[0].segment, placements[0].first_offset
        return [(segment, first + index) for index in range(len(records))]
    found: list[tuple[int, int] | None] = []
    for record in records:
        hashed = segment_hash(record.key)
        placement = next((p for p in placements if p.first_hash <= hashed <= p.last_hash), None)
        if placement is None:
            found.append(None)
            continue
        found.append((placement.segment, next_offsets[placement.segment]))
        next_offsets[placement.segment] += 1
    return found


class Delivery:
    """The outcome of one record. Await it for a `RecordMetadata`, repeatedly if you like, or never.

    Raises:
        DeliveryFailedError: the record is certainly not stored.
        DeliveryUnknownError: the delivery timeout expired while the record was in flight.
        RequestRejectedError: the leader rejected its batch for good.
        FencedError: a newer producer of the same name is running.
        ForgottenError: the named producer was deleted while it ran.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: RecordBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Return whether the outcome is known, so that awaiting it does not wait."""
        return self._batch.has_outcome(self._index)

    def when_known(self, callback: Callable[[errors.HeadgateError | None], object]) -> None:
        """Call ``callback`` once the outcome is known, in the event loop: with what awaiting it raises, or None."""
        self._batch.when_known(self._index, callback)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch = self._batch
        if not batch.has_outcome(self._index):
            yield from batch.wait(self._index)
        error = batch.error(self._index)
        if error is not None:
            raise error
        return self._batch.stored(self._index)

    @property
    def part(self) -> tuple[RecordBatch, int, int]:
        """What `Deliveries` has of it.

        :meta private:
        """
        return self._batch, self._index, self._index + 1


class Deliveries:
    """The outcomes of records that were sent together, in their order.

    Await it: it returns once all are durable, and raises what the `Delivery` of the first one raises that is not. An
    iteration yields the `Delivery` of each.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[RecordBatch, int, int]]) -> None:
        """``parts``: (batch, first index, end index) of consecutive records."""
        self._parts = parts

    def __len__(self) -> int:
        return sum(end - first for _, first, end in self._parts)

    def __iter__(self) -> Iterator[Delivery]:
        return (Delivery(batch, index) for batch, first, end in self._parts for index in range(first, end))

    def done(self) -> bool:
        """Return whether all outcomes are known."""
        return all(batch.has_outcome(end - 1) for batch, _, end in self._parts)

    def __await__(self) -> Generator[object, None, None]:
        for batch, first, end in self._parts:
            if not batch.has_outcome(end - 1):
                yield from batch.wait(end - 1)
            # Of a batch, the first records expire first, and the others share their outcome.
            if (error := batch.error(first)) is not None:
                raise error
