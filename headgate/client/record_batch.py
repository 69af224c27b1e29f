"""One batch of records: filled, sealed, sent under one sequence, and resolved for all its records.

A sealed batch is never rebuilt. Offsets are computed when a caller first awaits a delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass

from headgate.client.decisions.session_types import Outcome
from headgate.errors import (
    DeliveryFailedError,
    DeliveryUnknownError,
    FencedError,
    ForgottenError,
    HeadgateError,
    RequestRejectedError,
)
from headgate.model.entries import Placement
from headgate.model.hashing import segment_hash
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol import messages as m

RECORD_OVERHEAD_BYTES = 24
"""Most bytes of a record on the wire besides its key and value."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a durable record is stored."""

    segment: SegmentId | None
    """None: the record is stored, but the leader no longer remembers where. The same holds for
    ``offset``."""
    offset: Offset | None
    duplicate: bool
    """Whether an earlier try had already stored the record."""
    topic_id: int | None
    """The topic that stores it, as in `TopicInfo`; None like ``segment``. A topic that was deleted and
    created again has another id, and does not contain the record."""


class RecordBatch:
    """Records of one topic; implements `Sendable`."""

    __slots__ = (
        "_locations",
        "_on_completed",
        "_waiters",
        "completion",
        "deadline",
        "outcome",
        "records",
        "reply",
        "size_bytes",
        "source_position",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        deadline: float,
        on_completed: Callable[[RecordBatch], None],
    ) -> None:
        """``deadline`` is the loop time at which the first record expires."""
        self.topic = topic
        self.deadline = deadline
        self.records: list[m.Record] = []
        self.size_bytes = 0
        self.source_position: bytes | None = None
        self.outcome: Outcome | None = None
        self.reply: m.Committed | None = None
        self.completion: asyncio.Future[HeadgateError | None] = asyncio.get_running_loop().create_future()
        self._on_completed = on_completed
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._locations: list[tuple[int, int] | None] | None = None

    def fits(self, size_bytes: int, limit_bytes: int) -> bool:
        """Return whether one more record fits; the first one always does."""
        return not self.records or (
            self.size_bytes + size_bytes <= limit_bytes and len(self.records) < m.MAX_BATCH_RECORDS
        )

    def add(self, record: m.Record, size_bytes: int, source_position: bytes | None) -> Delivery:
        """Append ``record``; returns its delivery."""
        self.records.append(record)
        self.size_bytes += size_bytes
        if source_position is not None:
            self.source_position = source_position
        return Delivery(self, len(self.records) - 1)

    def request(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
    ) -> m.ProduceBatch:
        return m.ProduceBatch(
            topic=self.topic,
            records=self.records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            source_position=self.source_position,
        )

    def resolve(self, outcome: Outcome, reply: m.Committed | None, reason: str) -> None:
        assert self.outcome is None, "a batch was resolved twice"
        self.outcome, self.reply = outcome, reply
        self.completion.set_result(self._error(outcome, reason))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._on_completed(self)

    def _error(self, outcome: Outcome, reason: str) -> HeadgateError | None:
        where = f"topic {self.topic!r}"
        match outcome:
            case Outcome.COMMITTED:
                return None
            case Outcome.FAILED:
                return DeliveryFailedError(f"{where}: not stored: {reason}")
            case Outcome.UNKNOWN:
                return DeliveryUnknownError(f"{where}: it may or may not be stored: {reason}")
            case Outcome.INVALID:
                return RequestRejectedError("invalid", f"{where}: {reason}")
            case Outcome.FENCED:
                return FencedError("fenced", f"{where}: {reason}; what was in flight may or may not be stored")
            case Outcome.FORGOTTEN:
                return ForgottenError("forgotten", f"{where}: {reason}; what was in flight may or may not be stored")

    def wait(self) -> Generator[object, None, None]:
        """Wait for the outcome. Cancelling one caller does not affect the others.

        Each caller gets its own future: `asyncio.shield` over a shared one costs another turn of
        the loop per record.
        """
        waiter = self.completion.get_loop().create_future()
        self._waiters[waiter] = None
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
            self._locations = record_locations(self.records, reply.placements)
        location = None if self._locations is None else self._locations[index]
        if location is None:
            return RecordMetadata(None, None, reply.duplicate, reply.topic_id)
        return RecordMetadata(SegmentId(location[0]), Offset(location[1]), reply.duplicate, reply.topic_id)


def record_locations(records: list[m.Record], placements: list[Placement]) -> list[tuple[int, int] | None]:
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
        return self._batch.completion.done()

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch = self._batch
        if not batch.completion.done():
            yield from batch.wait()
        error = batch.completion.result()
        if error is not None:
            raise error
        return self._batch.stored(self._index)
