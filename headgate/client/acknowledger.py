"""Collect one consumer's acknowledgements and send them to the leader.

* STREAM is cumulative: one end offset per segment is kept, so memory is bounded. QUEUE keeps
  ranges.
* At most one batch is queued; further acknowledgements are collected meanwhile.
* Of each segment only the newest checkpoint is sent.
* Acknowledgements whose delivery timed out are collected again: repeating one is harmless.
* Refused ones are counted and logged, not raised: at a handover some arrive too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from headgate.client.connection import Client
from headgate.client.decisions.session_types import Outcome
from headgate.client.shard_session import ShardSession
from headgate.event_log import get_logger
from headgate.model.entries import SubscriptionType
from headgate.model.offset_ranges import OffsetRanges
from headgate.protocol import messages as m
from headgate.reading.known_history import KnownHistory

FLUSH_THRESHOLD: Final = 1000
"""This many acknowledgements are sent without waiting for the interval."""
MAX_IN_FLIGHT: Final = 8
REQUEST_TIMEOUT_SECONDS: Final = 5.0
DELIVERY_TIMEOUT_SECONDS: Final = 30.0
MAX_PENDING_ACKNOWLEDGEMENTS: Final = 100_000
"""Most QUEUE acknowledgements that are collected; beyond it `wait_for_capacity` waits."""

log = get_logger(__name__)


class _AcknowledgementBatch:
    """Implements `Sendable`."""

    def __init__(self, owner: Acknowledger, deadline: float, acknowledgements: list[m.Acknowledgement]) -> None:
        self.deadlines = (deadline,)
        self.acknowledgements = acknowledgements
        # Fixed here, because a batch is never rebuilt.
        self._checkpoints = owner.checkpoints_of(acknowledgements)
        self._history = owner.history.points
        self._owner = owner

    def request(self, *, producer_id: int, producer_epoch: int, sequence: int) -> m.AcknowledgeBatch:
        return m.AcknowledgeBatch(
            topic=self._owner.topic,
            subscription=self._owner.subscription,
            consumer=self._owner.consumer,
            incarnation=self._owner.incarnation,
            acknowledgements=self.acknowledgements,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            checkpoints=self._checkpoints,
            history=self._history,
        )

    def expire(self, due: float, outcome: Outcome, reason: str) -> None:
        raise AssertionError(f"a batch with one deadline was {outcome} in part up to {due}: {reason}")

    def resolve(self, outcome: Outcome, reply: m.Committed | None, reason: str) -> None:
        self._owner.on_batch_completed(self, outcome, reply, reason)


class Acknowledger:
    def __init__(
        self,
        client: Client,
        shard: int,
        *,
        topic: str,
        subscription: str,
        consumer: str,
        incarnation: int,
        kind: SubscriptionType,
        interval_seconds: float,
        history: KnownHistory,
        on_fenced: Callable[[str], None],
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer
        self.incarnation = incarnation
        self.committed = 0
        self.rejected = 0
        self._kind = kind
        self._interval_seconds = interval_seconds
        self.history = history
        self._on_fenced = on_fenced
        self._loop = asyncio.get_running_loop()
        self._ends: dict[tuple[int, int], int] = {}
        """STREAM: (segment, generation) → end offset."""
        self._ranges: dict[tuple[int, int], OffsetRanges] = {}
        """QUEUE: (segment, generation) → offsets."""
        self._checkpoints: dict[int, tuple[int, str]] = {}
        """Segment → (generation, newest checkpoint)."""
        self._pending_count = 0
        self._in_flight: set[_AcknowledgementBatch] = set()
        self._batch_completed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closing = False
        self._session = ShardSession(
            client,
            shard,
            max_in_flight=MAX_IN_FLIGHT,
            request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            on_progress=self._offer_due,
        )

    async def start(self) -> None:
        await self._session.start()

    async def close(self, timeout_seconds: float) -> None:
        """Send what is collected, for at most ``timeout_seconds``, and close."""
        await self.flush(timeout_seconds)
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._session.close()

    def acknowledge(self, segment: int, generation: int, offset: int) -> None:
        """Add one acknowledgement; for STREAM it covers all earlier offsets."""
        self.acknowledge_range(segment, generation, offset, offset + 1)

    def acknowledge_range(self, segment: int, generation: int, first_offset: int, end_offset: int) -> None:
        """Acknowledge the offsets below ``end_offset``: QUEUE from ``first_offset`` on, STREAM all."""
        self._add(m.Acknowledgement(segment, generation, first_offset, end_offset))
        self._schedule_flush()

    def checkpoint(self, segment: int, generation: int, end_offset: int, checkpoint: str | None) -> None:
        """Acknowledge an external segment up to ``end_offset``, with its checkpoint."""
        if checkpoint is not None:
            self._checkpoints[segment] = (generation, checkpoint)
        self.acknowledge_range(segment, generation, 0, end_offset)

    def checkpoints_of(self, acknowledgements: list[m.Acknowledgement]) -> dict[int, str]:
        """Return the newest checkpoint of each acknowledged segment, also for a repeated batch."""
        found = {}
        for acknowledgement in acknowledgements:
            generation, checkpoint = self._checkpoints.get(acknowledgement.segment, (-1, ""))
            if generation == acknowledgement.generation:
                found[acknowledgement.segment] = checkpoint
        return found

    async def wait_for_capacity(self) -> None:
        while self._pending_count > MAX_PENDING_ACKNOWLEDGEMENTS and self._kind == SubscriptionType.QUEUE:
            await self._wait_for_completion()

    async def flush(self, timeout_seconds: float) -> bool:
        """Send everything that is collected; False if it is not durable in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._ends or self._ranges or self._in_flight:
                    self._due = True
                    self._offer_due()
                    if self._in_flight:
                        await self._wait_for_completion()
        except TimeoutError:
            return False
        return True

    async def _wait_for_completion(self) -> None:
        self._batch_completed.clear()
        await self._batch_completed.wait()

    def _schedule_flush(self) -> None:
        self._pending_count += 1
        if self._pending_count >= FLUSH_THRESHOLD:
            self._due = True
            self._offer_due()
        elif self._timer is None and not self._due:
            self._timer = self._loop.call_later(self._interval_seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._due = True
        self._offer_due()

    def _offer_due(self) -> None:
        while self._due and not self._closing and self._session.ready_for_batch:
            acknowledgements = list(islice(self._pop_pending(), m.MAX_BATCH_ACKNOWLEDGEMENTS))
            if not acknowledgements:
                self._due = False
                self._pending_count = 0
                return
            batch = _AcknowledgementBatch(self, self._loop.time() + DELIVERY_TIMEOUT_SECONDS, acknowledgements)
            self._in_flight.add(batch)
            self._session.offer(batch)

    def _pop_pending(self) -> Iterator[m.Acknowledgement]:
        while self._ends:
            (segment, generation), end = self._ends.popitem()
            yield m.Acknowledgement(segment, generation, 0, end)
        while self._ranges:
            key, ranges = next(iter(self._ranges.items()))
            first, end = ranges.pop_first()
            if not ranges:
                del self._ranges[key]
            yield m.Acknowledgement(*key, first, end)

    def on_batch_completed(
        self, batch: _AcknowledgementBatch, outcome: Outcome, reply: m.Committed | None, reason: str
    ) -> None:
        self._in_flight.discard(batch)
        match outcome:
            case Outcome.COMMITTED:
                rejected = reply.rejected if reply is not None else []
                self.committed += len(batch.acknowledgements) - len(rejected)
                self._count_rejected(len(rejected), rejected[0][1] if rejected else "")
            case Outcome.INVALID:
                self._count_rejected(len(batch.acknowledgements), reason)
            case Outcome.FENCED | Outcome.FORGOTTEN:
                self._on_fenced(reason)
            case Outcome.UNKNOWN | Outcome.FAILED if not self._closing:
                self._requeue(batch.acknowledgements)
        self._batch_completed.set()

    def _count_rejected(self, count: int, reason: str) -> None:
        self.rejected += count
        if count:
            log.info(
                "acknowledgements.rejected",
                topic=self.topic,
                subscription=self.subscription,
                count=count,
                reason=reason,
            )

    def _requeue(self, acknowledgements: list[m.Acknowledgement]) -> None:
        for acknowledgement in acknowledgements:
            self._add(acknowledgement)
        self._schedule_flush()

    def _add(self, acknowledgement: m.Acknowledgement) -> None:
        key = (acknowledgement.segment, acknowledgement.generation)
        if self._kind == SubscriptionType.STREAM:
            self._ends[key] = max(self._ends.get(key, 0), acknowledgement.end_offset)
        else:
            ranges = self._ranges.setdefault(key, OffsetRanges())
            ranges.add(acknowledgement.first_offset, acknowledgement.end_offset)
