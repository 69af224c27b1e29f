"""Gather one consumer's acknowledgements and bring them to the leader, through a producer session like any batch.

STREAM is cumulative: per segment only the furthest end is kept, so what waits is bounded by the number of segments.
QUEUE keeps offsets and merges neighbours into ranges when they leave. At most one batch queues; the rest gathers.

Checkpoints (of external topics) travel with the acknowledgements of their segment; only the newest of each is kept.

What could not be brought in time is gathered again: an acknowledgement may be repeated. What the leader refuses (the
segment has been given to somebody else) is counted and logged, and is no error: at every handover some come too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import structlog

from headgate.client.connection import Client
from headgate.client.decisions.session_types import Outcome
from headgate.client.shard_session import ShardSession
from headgate.model.entries import SubscriptionType
from headgate.protocol import messages as m

GATHERED_AT_MOST: Final = 1000
"""Acknowledgements that leave without waiting for the interval."""
RANGES_PER_BATCH: Final = 5000
IN_FLIGHT: Final = 8
REQUEST_TIMEOUT_SECONDS: Final = 5.0
DELIVERY_TIMEOUT_SECONDS: Final = 30.0
WAITING_AT_MOST: Final = 100_000
"""QUEUE acknowledgements that may wait; beyond that `room` blocks."""

log = structlog.get_logger(__name__)


class _AcknowledgementBatch:
    """See `headgate.client.shard_session.Sendable`."""

    def __init__(self, owner: Acknowledger, deadline: float, acknowledgements: list[m.Acknowledgement]) -> None:
        self.deadline = deadline
        self.acknowledgements = acknowledgements
        # Taken now, for a batch is never rebuilt.
        self._checkpoints = owner.checkpoints_of(acknowledgements)
        self._owner = owner

    def request(
        self, *, request_id: int, leader_epoch: int, producer_id: int, producer_epoch: int, sequence: int
    ) -> m.Request:
        return m.AcknowledgeBatch(
            request_id=request_id,
            client_id=self._owner.client.client_id,
            leader_epoch=leader_epoch,
            topic=self._owner.topic,
            subscription=self._owner.subscription,
            consumer=self._owner.consumer,
            incarnation=self._owner.incarnation,
            acknowledgements=self.acknowledgements,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            checkpoints=self._checkpoints,
        )

    def resolve(self, outcome: Outcome, reply: m.Committed | None, reason: str) -> None:
        self._owner.settled(self, outcome, reply, reason)


class Acknowledger:
    """Acknowledgements of one consumer on their way."""

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
        on_fenced: Callable[[str], None],
    ) -> None:
        self.client = client
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer
        self.incarnation = incarnation
        self.committed = 0
        self.refused = 0
        self._kind = kind
        self._interval_seconds = interval_seconds
        self._on_fenced = on_fenced
        self._loop = asyncio.get_running_loop()
        self._ends: dict[tuple[int, int], int] = {}
        """STREAM: (segment, generation) → end offset."""
        self._offsets: dict[tuple[int, int], set[int]] = {}
        """QUEUE: (segment, generation) → offsets."""
        self._checkpoints: dict[int, tuple[int, str]] = {}
        """Segment → (generation, newest checkpoint)."""
        self._waiting = 0
        self._in_flight: set[_AcknowledgementBatch] = set()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closing = False
        self._session = ShardSession(
            client,
            shard,
            max_in_flight=IN_FLIGHT,
            request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            on_progress=self._offer_due,
        )

    async def start(self) -> None:
        """Follow the leader."""
        await self._session.start()

    async def close(self, timeout_seconds: float) -> None:
        """Bring what is gathered, for at most ``timeout_seconds``."""
        await self.flush(timeout_seconds)
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._session.close()

    def acknowledge(self, segment: int, generation: int, offset: int) -> None:
        """Take one acknowledgement; for STREAM it speaks for all offsets before."""
        place = (segment, generation)
        if self._kind == "STREAM":
            self._ends[place] = max(self._ends.get(place, 0), offset + 1)
        else:
            self._offsets.setdefault(place, set()).add(offset)
        self._gathered()

    def acknowledge_range(self, segment: int, generation: int, first_offset: int, end_offset: int) -> None:
        """Take records that were gone past, because they are in key buckets of others; STREAM ignores the first."""
        place = (segment, generation)
        if self._kind == "STREAM":
            self._ends[place] = max(self._ends.get(place, 0), end_offset)
        else:
            self._offsets.setdefault(place, set()).update(range(first_offset, end_offset))
        self._gathered()

    def checkpoint(self, segment: int, generation: int, end_offset: int, checkpoint: str | None) -> None:
        """Take how far the reader of an external segment is: everything below ``end_offset``, and a mark of its own."""
        place = (segment, generation)
        self._ends[place] = max(self._ends.get(place, 0), end_offset)
        if checkpoint is not None:
            self._checkpoints[segment] = (generation, checkpoint)
        self._gathered()

    def checkpoints_of(self, acknowledgements: list[m.Acknowledgement]) -> dict[int, str]:
        """Return the newest checkpoint of each acknowledged segment, also for a batch that is gathered again."""
        found = {}
        for part in acknowledgements:
            generation, checkpoint = self._checkpoints.get(part.segment, (-1, ""))
            if generation == part.generation:
                found[part.segment] = checkpoint
        return found

    async def room(self) -> None:
        """Wait while too many acknowledgements wait."""
        while self._waiting > WAITING_AT_MOST and self._kind == "QUEUE":
            await self._next_settled()

    async def flush(self, timeout_seconds: float) -> bool:
        """Bring everything that was gathered; False if it could not be done in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._ends or self._offsets or self._in_flight:
                    self._due = True
                    self._offer_due()
                    if self._in_flight:
                        await self._next_settled()
        except TimeoutError:
            return False
        return True

    async def _next_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    def _gathered(self) -> None:
        self._waiting += 1
        if self._waiting >= GATHERED_AT_MOST:
            self._due = True
            self._offer_due()
        elif self._timer is None and not self._due:
            self._timer = self._loop.call_later(self._interval_seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._due = True
        self._offer_due()

    def _offer_due(self) -> None:
        """Offer a batch if it is time and nothing queues."""
        while self._due and not self._closing and self._session.wants_batch:
            acknowledgements = list(islice(self._take(), RANGES_PER_BATCH))
            if not acknowledgements:
                self._due = False
                self._waiting = 0
                return
            batch = _AcknowledgementBatch(self, self._loop.time() + DELIVERY_TIMEOUT_SECONDS, acknowledgements)
            self._in_flight.add(batch)
            self._session.offer(batch)

    def _take(self) -> Iterator[m.Acknowledgement]:
        """Yield what is gathered; each is taken out as it is yielded."""
        while self._ends:
            (segment, generation), end = self._ends.popitem()
            yield m.Acknowledgement(segment, generation, 0, end)
        while self._offsets:
            place = next(iter(self._offsets))
            offsets = self._offsets[place]
            for first, end in ranges(offsets):
                offsets.difference_update(range(first, end))
                if not offsets:
                    del self._offsets[place]
                yield m.Acknowledgement(*place, first, end)

    def settled(self, batch: _AcknowledgementBatch, outcome: Outcome, reply: m.Committed | None, reason: str) -> None:
        """Take a batch's outcome."""
        self._in_flight.discard(batch)
        match outcome:
            case Outcome.COMMITTED:
                refused = reply.refused if reply is not None else []
                self.committed += len(batch.acknowledgements) - len(refused)
                self._count_refused(len(refused), refused[0][1] if refused else "")
            case Outcome.INVALID:
                self._count_refused(len(batch.acknowledgements), reason)
            case Outcome.FENCED:
                self._on_fenced(reason)
            case Outcome.UNKNOWN | Outcome.NOT_STORED if not self._closing:
                self._gather_again(batch.acknowledgements)
        self._settled.set()

    def _count_refused(self, count: int, reason: str) -> None:
        self.refused += count
        if count:
            log.info(
                "acknowledgements.refused",
                topic=self.topic,
                subscription=self.subscription,
                count=count,
                reason=reason,
            )

    def _gather_again(self, acknowledgements: list[m.Acknowledgement]) -> None:
        for again in acknowledgements:
            place = (again.segment, again.generation)
            if self._kind == "STREAM":
                self._ends[place] = max(self._ends.get(place, 0), again.end_offset)
            else:
                self._offsets.setdefault(place, set()).update(range(again.first_offset, again.end_offset))
        self._gathered()


def ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return ``offsets`` as (first, end) ranges, rising."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
