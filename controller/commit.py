"""Group commit: one chunk is being written while the next one gathers.

What is accepted is folded into the state at once and joins the chunk in the making; what may be said about it waits
until that chunk is durable. There is no artificial wait: a chunk is written as soon as the one before it stands.

This module decides nothing about requests. It ends by raising `TermEndedError`: a number that was taken, an outcome
that is unknown, or a store that stayed out of reach. Whoever runs it must then throw the state away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.leadership.transitions import Event
from controller.state.shard_state import ShardState
from headgate.errors import HeadgateError, ObjectExistsError, OutcomeUnknownError, StoreUnavailableError
from headgate.ledger.chunk import ChunkBuilder
from headgate.ledger.ledger import Ledger
from headgate.ledger.record_columns import RecordColumns
from headgate.model import entries as e
from metrics import events

YIELD_SECONDS = 0.5
"""Pause between commits of a leader that must make room: long enough to read a short tail and create one chunk."""
RETRY_SECONDS = 0.25
"""Pause before a write that certainly did not happen is tried again."""


class TermEndedError(HeadgateError):
    """This reign is over; ``event`` says why."""

    def __init__(self, event: Event, reason: str) -> None:
        super().__init__(reason)
        self.event = event


@dataclass(slots=True)
class _PendingChunk:
    """A chunk that is not durable yet."""

    number: int
    at_ms: int
    builder: ChunkBuilder = field(default_factory=ChunkBuilder)
    size_bytes: int = 0
    batches: int = 0
    accepted_at: list[float] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class GroupCommit:
    """The tail of one shard's ledger during one reign."""

    def __init__(
        self,
        ledger: Ledger,
        state: ShardState,
        *,
        now_ms: Callable[[], int],
        observer: events.Observer,
        write_timeout_seconds: float,
        unreachable_seconds: float,
        yields_to_contender: Callable[[], bool],
        on_durable: Callable[[int], None],
        on_records: Callable[[RecordColumns], None],
    ) -> None:
        """Begin after the newest chunk in ``state``, which must be the reign chunk.

        ``on_records`` is shown the records of each chunk before it is written.
        ``on_durable`` is called with each number that has become durable, after what waited for it was released.
        """
        self.durable = state.chunk
        self._ledger = ledger
        self._state = state
        self._now_ms = now_ms
        self._observer = observer
        self._write_timeout_seconds = write_timeout_seconds
        self._unreachable_seconds = unreachable_seconds
        self._yields_to_contender = yields_to_contender
        self._on_durable = on_durable
        self._on_records = on_records
        self._pending: _PendingChunk | None = None
        self._writing: _PendingChunk | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes of records in the chunk in the pending."""
        return 0 if self._pending is None else self._pending.size_bytes

    @property
    def queued_batches(self) -> int:
        """Batches of records that are accepted and not durable yet."""
        return sum(waiting.batches for waiting in (self._pending, self._writing) if waiting is not None)

    @property
    def newest(self) -> int:
        """The newest chunk that holds something accepted, durable or not."""
        return self._state.chunk

    def records(self) -> RecordColumns:
        """Return the columns of the open chunk, for `route_batch` to fill."""
        return self.barrier().builder.records

    def propose(self, *entries: e.AnyEntry) -> None:
        """Fold ``entries`` into the state now and make them part of the next commit."""
        pending = self.barrier()
        for entry in entries:
            self._state.apply(entry)
            topic = self._state.topic_of(entry)
            pending.builder.add(entry, None if topic is None else topic.layout)
            if isinstance(entry, e.RecordsStored):
                pending.size_bytes += entry.size_bytes
                pending.batches += 1
        self._observer.observe(events.IngestQueueResized(shard=self._state.shard, size_bytes=pending.size_bytes))

    def barrier(self) -> _PendingChunk:
        """Make sure that a chunk will be created after this moment, be it an empty one, and return it."""
        if self._pending is None:
            self._state.begin_chunk(self._state.chunk + 1, self._now_ms())
            self._pending = _PendingChunk(self._state.chunk, self._state.at_ms)
            self._idle.clear()
            self._wake.set()
        return self._pending

    def when_durable(self, chunk: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once ``chunk`` is durable; at once if it is. Releases of one chunk keep their order."""
        if chunk <= self.durable:
            callback()
            return
        waiting = self._writing if self._writing is not None and self._writing.number == chunk else self._pending
        assert waiting is not None, f"chunk {chunk} is not in flight"
        assert waiting.number == chunk, f"chunk {chunk} is not in flight"
        waiting.callbacks.append(callback)

    def batch_accepted(self) -> None:
        """Note that a batch was folded just now, for whoever is told how long it takes until it is durable."""
        if self._pending is not None:
            self._pending.accepted_at.append(asyncio.get_running_loop().time())

    async def flush(self) -> None:
        """Wait until everything accepted is durable; needs `run` to be running."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write chunk after chunk until the reign ends; raises TermEndedError."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            assert self._pending is not None, "woken without a chunk to write"
            self._writing, self._pending = self._pending, None
            writing = self._writing
            self._on_records(writing.builder.records)
            began = loop.time()
            size_bytes = await self._commit(writing)
            durable_at = loop.time()
            self._writing = None
            for callback in writing.callbacks:
                callback()
            self._on_durable(self.durable)
            # A turn later: the replies are on the socket then, and somebody waits for those.
            loop.call_later(0, self._report_commit, writing, began, durable_at, size_bytes)
            if self._pending is None:
                self._idle.set()
            if self._yields_to_contender():
                await asyncio.sleep(YIELD_SECONDS)

    def _report_commit(self, written: _PendingChunk, began: float, durable_at: float, size_bytes: int) -> None:
        shard = self._state.shard
        self._observer.observe(events.StoreOperationSucceeded())
        self._observer.observe(
            events.ChunkCommitted(
                shard=shard,
                seconds=durable_at - began,
                size_bytes=size_bytes,
                records=len(written.builder.records),
            )
        )
        for accepted_at in written.accepted_at:
            self._observer.observe(events.BatchCommitted(shard=shard, seconds=durable_at - accepted_at))

    async def check_for_successor(self) -> None:
        """Look whether somebody took the next number while we were idle; raises TermEndedError if so."""
        number = self.durable + 1
        if not self._idle.is_set():
            return
        try:
            taken = await self._ledger.exists(number)
        except StoreUnavailableError:
            self._observer.observe(events.StoreOperationFailed(operation="read"))
            return
        self._observer.observe(events.StoreOperationSucceeded())
        # Only if it cannot have been ours: nothing was begun and nothing finished while we looked.
        if taken and self.durable + 1 == number and self._idle.is_set():
            raise TermEndedError(Event.NUMBER_TAKEN, f"chunk {number} was written by another reign")

    async def _commit(self, pending: _PendingChunk) -> int:
        """Write one chunk and return its size in bytes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        data = pending.builder.encode(
            shard=self._state.shard,
            number=pending.number,
            leader_epoch=self._state.leader_epoch,
            at_ms=pending.at_ms,
        )
        while True:
            try:
                async with asyncio.timeout(self._write_timeout_seconds):
                    await self._ledger.append(pending.number, data)
            except ObjectExistsError:
                raise TermEndedError(
                    Event.NUMBER_TAKEN, f"chunk {pending.number} was written by another reign"
                ) from None
            except (OutcomeUnknownError, TimeoutError) as error:
                self._observer.observe(events.StoreOperationFailed(operation="create"))
                reason = f"chunk {pending.number} may or may not have been written: {str(error) or 'no answer in time'}"
                raise TermEndedError(Event.OUTCOME_UNKNOWN, reason) from error
            except StoreUnavailableError as error:
                self._observer.observe(events.StoreOperationFailed(operation="create"))
                if loop.time() - began > self._unreachable_seconds:
                    raise TermEndedError(Event.STORE_UNREACHABLE, str(error)) from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self.durable = pending.number
        return len(data)
