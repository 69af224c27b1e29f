"""Group commit: write one chunk while the next one collects entries.

Accepted entries are applied at once; replies wait until their chunk is durable. A chunk is written as soon as the
previous write completes, but not sooner than ``ingest.commit_interval_ms`` after that began, unless only barriers need
it (`EmptyChunkLimit`). When `GroupCommit.run` raises `TermEndedError`, the caller must discard the state, because it
may be ahead of the ledger.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from controller.chunk_writer.builder import ChunkBuilder
from controller.context.leader_context import LeaderContext, OnDurable
from controller.leadership.policy import safety
from controller.leadership.policy.transitions import Event
from headgate.errors import HeadgateError, StoreUnavailableError
from headgate.ledger.chunk import RecordColumns
from headgate.model import entries as e
from metrics import events
from shard.state.shard_state import ShardState

EMPTY_CHUNK_BURST = 16
EMPTY_CHUNK_INTERVAL_SECONDS = 1.0
"""A leader writes this many empty chunks for barriers at once, then one per interval, the longest wait of a refusal."""
SPARE_SECONDS = (EMPTY_CHUNK_BURST - 1) * EMPTY_CHUNK_INTERVAL_SECONDS
MAX_WAITING_BARRIERS = 1000
"""Callbacks that wait for a shared empty chunk. One more, and it is written at once."""
RETRY_SECONDS = 0.25
"""Pause before a write that certainly did not happen is repeated."""


class TermEndedError(HeadgateError):
    """This leader's term is over; ``event`` says why."""

    def __init__(self, event: Event, reason: str) -> None:
        super().__init__(reason)
        self.event = event


class EmptyChunkLimit:
    """A token bucket of `EMPTY_CHUNK_BURST` empty chunks that gains one per `EMPTY_CHUNK_INTERVAL_SECONDS`.

    Without it, a client that repeats a wrong request would add an object to the ledger for each refusal.
    """

    def __init__(self) -> None:
        self._spent_until = 0.0

    def wait_seconds(self, now: float) -> float:
        """Return how long the next empty chunk must wait; 0 if it may be written."""
        return max(0.0, self._spent_until - SPARE_SECONDS - now)

    def spend(self, now: float) -> None:
        """Count an empty chunk. One that was not allowed makes the next one wait, but not longer than the interval."""
        longest = now + SPARE_SECONDS + EMPTY_CHUNK_INTERVAL_SECONDS
        self._spent_until = min(max(self._spent_until, now) + EMPTY_CHUNK_INTERVAL_SECONDS, longest)


@dataclass(slots=True)
class _PendingChunk:
    number: int
    at_ms: int
    builder: ChunkBuilder = field(default_factory=ChunkBuilder)
    size_bytes: int = 0
    batches: int = 0
    accepted_at: list[float] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class GroupCommit:
    """The end of one shard's ledger during one term."""

    def __init__(
        self,
        context: LeaderContext,
        state: ShardState,
        *,
        yields_to_contender: Callable[[], bool],
        on_durable: OnDurable,
        on_records: Callable[[RecordColumns], None],
    ) -> None:
        """Start after the newest chunk in ``state``, which must be the term chunk.

        ``on_records`` gets the records of each chunk that has some, before it is written. ``on_durable`` gets the
        number and the object of each chunk that became durable, after the callbacks of that chunk have run.
        """
        self.durable = state.chunk
        self._context = context
        self._state = state
        self.yields_to_contender = yields_to_contender
        """Returns whether another daemon may be entitled to begin a term."""
        if context.trace_commits is not None:
            on_records, on_durable = context.trace_commits(state.shard, on_records, on_durable)
        self._on_durable = on_durable
        self._on_records = on_records
        self._pending: _PendingChunk | None = None
        self._writing: _PendingChunk | None = None
        self._empty_chunks = EmptyChunkLimit()
        self._waiting: list[Callable[[], None]] = []
        """Callbacks of barriers that wait for the next chunk, whatever opens it."""
        self._barrier_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def term_id(self) -> int:
        return self._state.terms.newest_id

    def now_ms(self) -> int:
        """Return the ledger's time now, in milliseconds since 1970: not before that of the newest chunk."""
        return max(self._context.now_ms(), self._state.at_ms)

    @property
    def queued_bytes(self) -> int:
        return 0 if self._pending is None else self._pending.size_bytes

    @property
    def queued_batches(self) -> int:
        """Batches of records that are accepted and not durable yet."""
        return sum(chunk.batches for chunk in (self._pending, self._writing) if chunk is not None)

    @property
    def is_idle(self) -> bool:
        """Whether no chunk is open or being written."""
        return self._idle.is_set()

    @property
    def newest(self) -> int:
        """The newest chunk that holds an accepted entry, durable or not."""
        return self._state.chunk

    def propose(self, *entries: e.AnyEntry) -> None:
        """Apply ``entries`` to the state now, and add them to the next commit."""
        pending = self._open_chunk()
        for entry in entries:
            self._state.apply(entry)
            topic = self._state.topic_of(entry)
            pending.builder.add(entry, None if topic is None else topic.layout)

    def propose_records(self, entry: e.RecordsStored, records: RecordColumns) -> None:
        """Apply the ``entry`` of a batch now, and add it to the next commit together with its ``records``."""
        pending = self._open_chunk()
        self._state.apply(entry)
        pending.builder.add(entry, self._state.topics_by_id[entry.topic_id].layout)
        pending.builder.extend(records, entry.size_bytes)
        if pending.builder.has_many_waiting:
            # In the next turn, because routing them has taken most of this one.
            asyncio.get_running_loop().call_soon(self._encode_ahead, pending)
        pending.size_bytes += entry.size_bytes
        pending.batches += 1

    def _encode_ahead(self, pending: _PendingChunk) -> None:
        """Encode the records of a chunk that still collects: once it is written, a thread does it."""
        if pending is self._pending and pending.builder.has_many_waiting:
            pending.builder.encode_records()

    def barrier(self) -> int:
        """Return the number of a chunk that will be created after this moment; it may be empty.

        Once that chunk is durable, no other leader had taken over before this call.
        """
        return self._open_chunk().number

    def after_barrier(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once a chunk is durable that was created after this moment.

        An empty chunk is limited by `EmptyChunkLimit`: the callback may have to wait for it, or for the next entry.
        """
        now = asyncio.get_running_loop().time()
        wait_seconds = 0.0 if self._pending is not None else self._empty_chunks.wait_seconds(now)
        if not wait_seconds or len(self._waiting) == MAX_WAITING_BARRIERS:
            if self._pending is None:
                self._empty_chunks.spend(now)
            self.when_durable(self.barrier(), callback)
            return
        self._context.observer.observe(events.BarrierDelayed(shard=self._state.shard))
        self._waiting.append(callback)
        if self._barrier_timer is None:
            self._barrier_timer = asyncio.get_running_loop().call_later(wait_seconds, self._open_for_barriers)

    def when_durable(self, chunk: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once ``chunk`` is durable; at once if it is. Callbacks of one chunk keep their order."""
        if chunk <= self.durable:
            callback()
            return
        in_flight = self._writing if self._writing is not None and self._writing.number == chunk else self._pending
        assert in_flight is not None, f"chunk {chunk} is not in flight"
        assert in_flight.number == chunk, f"chunk {chunk} is not in flight"
        in_flight.callbacks.append(callback)

    def batch_accepted(self) -> None:
        """Record the time at which a batch was accepted, to report how long it takes to become durable."""
        if self._pending is not None:
            self._pending.accepted_at.append(asyncio.get_running_loop().time())

    async def flush(self) -> None:
        """Wait until everything accepted is durable, and every barrier; requires that `run` is running."""
        if self._waiting:
            self._open_for_barriers()
        await self._idle.wait()

    async def run(self) -> None:
        """Write chunk after chunk until the term ends; raises TermEndedError."""
        try:
            await self._write_chunks()
        finally:
            self._cancel_barrier_timer()

    async def _write_chunks(self) -> None:
        loop = asyncio.get_running_loop()
        began = -math.inf
        while True:
            await self._wake.wait()
            if (pause_seconds := began + self._context.ingest.commit_interval_ms / 1000 - loop.time()) > 0:
                await asyncio.sleep(pause_seconds)
            self._wake.clear()
            assert self._pending is not None, "woken without a chunk to write"
            self._writing, self._pending = self._pending, None
            writing = self._writing
            if len(records := writing.builder.records):
                self._on_records(records)
            began = loop.time()
            data = await self._commit(writing)
            durable_at = loop.time()
            self._writing = None
            for callback in writing.callbacks:
                callback()
            self._on_durable(self.durable, data)
            # In the next turn of the loop, when the replies have been written to the socket: clients wait for those.
            loop.call_soon(self._report_commit, writing, began, durable_at, len(data))
            if self._pending is None:
                self._idle.set()
            if self.yields_to_contender():
                await asyncio.sleep(safety.YIELD_SECONDS)

    async def check_for_successor(self) -> None:
        """Raise TermEndedError if another leader has written the next number while this one was idle."""
        number = self.durable + 1
        if not self._idle.is_set():
            return
        try:
            taken = await self._context.ledger.exists(number)
        except StoreUnavailableError as error:
            self._context.observer.observe(events.StoreOperationFailed(operation="read", reason=str(error)))
            return
        self._context.observer.observe(events.StoreOperationSucceeded(operation="read"))
        if taken and safety.is_successors(number, durable=self.durable, idle=self.is_idle):
            raise TermEndedError(Event.NUMBER_TAKEN, f"chunk {number} was written by another leader")

    def _open_chunk(self) -> _PendingChunk:
        if self._pending is None:
            self._state.begin_chunk(self._state.chunk + 1, self._context.now_ms())
            self._pending = _PendingChunk(self._state.chunk, self._state.at_ms, callbacks=self._waiting)
            self._waiting = []
            self._cancel_barrier_timer()
            self._idle.clear()
            self._wake.set()
        return self._pending

    def _open_for_barriers(self) -> None:
        self._empty_chunks.spend(asyncio.get_running_loop().time())
        self._open_chunk()

    def _cancel_barrier_timer(self) -> None:
        if self._barrier_timer is not None:
            self._barrier_timer.cancel()
            self._barrier_timer = None

    async def _commit(self, pending: _PendingChunk) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        number = pending.number
        term = {"leader_epoch": self._state.term.leader_epoch, "term_id": self.term_id}
        encode = partial(pending.builder.encode, shard=self._state.shard, number=number, at_ms=pending.at_ms, **term)
        # A thread would delay a small chunk, and a large one would delay heartbeats and other shards.
        data = await asyncio.to_thread(encode) if pending.builder.is_large else encode()
        while True:
            try:
                async with asyncio.timeout(self._context.ingest.write_timeout_seconds):
                    await self._context.ledger.append(number, data)
            except safety.FAILURES as error:
                failed = safety.failure(error)
                if failed is not Event.NUMBER_TAKEN:
                    self._context.observer.observe(events.StoreOperationFailed(operation="create", reason=str(error)))
                if not safety.repeats_write(failed, loop.time() - began, self._context.ingest.unreachable_seconds):
                    late = "no answer in time (ingest.write_timeout_seconds)"
                    raise TermEndedError(failed, f"chunk {number}: {str(error) or late}") from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self.durable = number
        return data

    def _report_commit(self, written: _PendingChunk, began: float, durable_at: float, size_bytes: int) -> None:
        shard, records = self._state.shard, len(written.builder.records)
        self._context.observer.observe(events.StoreOperationSucceeded(operation="create"))
        self._context.observer.observe(
            events.ChunkCommitted(shard=shard, seconds=durable_at - began, size_bytes=size_bytes, records=records)
        )
        for accepted_at in written.accepted_at:
            self._context.observer.observe(events.BatchCommitted(shard=shard, seconds=durable_at - accepted_at))
