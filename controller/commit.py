"""Group commit: one chunk is being written while the next one gathers.

What is accepted is folded into the state at once and joins the chunk in the making; what may be said about it waits
until that chunk is durable. There is no artificial wait: a chunk is written as soon as the one before it stands.

This module decides nothing about requests. It ends by raising `ReignEndedError`: a number that was taken, an outcome
that is unknown, or a store that stayed out of reach. Whoever runs it must then throw the state away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from controller.leadership.transitions import Event
from controller.state.shard_state import ShardState
from headgate.errors import HeadgateError, ObjectExistsError, OutcomeUnknownError, StoreUnavailableError
from headgate.ledger.chunk import ChunkBuilder
from headgate.ledger.ledger import Ledger
from headgate.ledger.record_columns import RecordColumns
from headgate.model import entries as e

ROOM_SECONDS = 0.5
"""Pause between commits of a leader that must make room: long enough to read a short tail and create one chunk."""
RETRY_SECONDS = 0.25
"""Pause before a write that certainly did not happen is tried again."""


class ReignEndedError(HeadgateError):
    """This reign is over; ``event`` says why."""

    def __init__(self, event: Event, reason: str) -> None:
        super().__init__(reason)
        self.event = event


class CommitObserver(Protocol):
    """Who is told of commits (metrics)."""

    def chunk_committed(self, shard: int, seconds: float, size_bytes: int, records: int) -> None:
        """Tell that a chunk is durable."""

    def batch_durable(self, shard: int, seconds: float) -> None:
        """Tell how long an accepted batch took from judging to durable."""

    def queue_size(self, shard: int, size_bytes: int) -> None:
        """Tell how many bytes of values wait in the chunk in the making."""

    def store_error(self, operation: str) -> None:
        """Tell that the object store failed."""

    def store_answered(self) -> None:
        """Tell that the object store did what was asked."""


@dataclass(slots=True)
class _Making:
    """A chunk that is not durable yet."""

    number: int
    at_ms: int
    builder: ChunkBuilder = field(default_factory=ChunkBuilder)
    size_bytes: int = 0
    batches: int = 0
    judged_at: list[float] = field(default_factory=list)
    releases: list[Callable[[], None]] = field(default_factory=list)


class GroupCommit:
    """The tail of one shard's ledger during one reign."""

    def __init__(
        self,
        ledger: Ledger,
        state: ShardState,
        *,
        now_ms: Callable[[], int],
        observer: CommitObserver,
        write_timeout_seconds: float,
        unreachable_seconds: float,
        makes_room: Callable[[], bool],
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
        self._makes_room = makes_room
        self._on_durable = on_durable
        self._on_records = on_records
        self._making: _Making | None = None
        self._writing: _Making | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes of records in the chunk in the making."""
        return 0 if self._making is None else self._making.size_bytes

    @property
    def queued_batches(self) -> int:
        """Batches of records that are accepted and not durable yet."""
        return sum(waiting.batches for waiting in (self._making, self._writing) if waiting is not None)

    @property
    def newest(self) -> int:
        """The newest chunk that holds something accepted, durable or not."""
        return self._state.chunk

    def records(self) -> RecordColumns:
        """Return the columns of the chunk in the making, to be filled by `controller.decisions.placement.place`."""
        return self.prove().builder.records

    def propose(self, *entries: e.AnyEntry) -> None:
        """Fold ``entries`` into the state now and make them part of the next commit."""
        making = self.prove()
        for entry in entries:
            self._state.apply(entry)
            topic = self._state.topic_of(entry)
            making.builder.add(entry, None if topic is None else topic.layout)
            if isinstance(entry, e.RecordsStored):
                making.size_bytes += entry.size_bytes
                making.batches += 1
        self._observer.queue_size(self._state.shard, making.size_bytes)

    def prove(self) -> _Making:
        """Make sure that a chunk will be created after this moment, be it an empty one, and return it."""
        if self._making is None:
            self._state.begin_chunk(self._state.chunk + 1, self._now_ms())
            self._making = _Making(self._state.chunk, self._state.at_ms)
            self._idle.clear()
            self._wake.set()
        return self._making

    def when_durable(self, chunk: int, release: Callable[[], None]) -> None:
        """Call ``release`` once ``chunk`` is durable; at once if it is. Releases of one chunk keep their order."""
        if chunk <= self.durable:
            release()
            return
        waiting = self._writing if self._writing is not None and self._writing.number == chunk else self._making
        assert waiting is not None, f"chunk {chunk} is not in flight"
        assert waiting.number == chunk, f"chunk {chunk} is not in flight"
        waiting.releases.append(release)

    def judged(self) -> None:
        """Note that a batch was folded just now, for whoever is told how long it takes until it is durable."""
        if self._making is not None:
            self._making.judged_at.append(asyncio.get_running_loop().time())

    async def flush(self) -> None:
        """Wait until everything accepted is durable; needs `run` to be running."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write chunk after chunk until the reign ends; raises ReignEndedError."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            assert self._making is not None, "woken without a chunk to write"
            self._writing, self._making = self._making, None
            writing = self._writing
            self._on_records(writing.builder.records)
            began = loop.time()
            size_bytes = await self._commit(writing)
            durable_at = loop.time()
            self._writing = None
            for release in writing.releases:
                release()
            self._on_durable(self.durable)
            # A turn later: the replies are on the socket then, and somebody waits for those.
            loop.call_later(0, self._account, writing, began, durable_at, size_bytes)
            if self._making is None:
                self._idle.set()
            if self._makes_room():
                await asyncio.sleep(ROOM_SECONDS)

    def _account(self, written: _Making, began: float, durable_at: float, size_bytes: int) -> None:
        shard = self._state.shard
        self._observer.store_answered()
        self._observer.chunk_committed(shard, durable_at - began, size_bytes, len(written.builder.records))
        for judged_at in written.judged_at:
            self._observer.batch_durable(shard, durable_at - judged_at)

    async def look_for_successor(self) -> None:
        """Look whether somebody took the next number while we were idle; raises ReignEndedError if so."""
        number = self.durable + 1
        if not self._idle.is_set():
            return
        try:
            taken = await self._ledger.exists(number)
        except StoreUnavailableError:
            self._observer.store_error("read")
            return
        self._observer.store_answered()
        # Only if it cannot have been ours: nothing was begun and nothing finished while we looked.
        if taken and self.durable + 1 == number and self._idle.is_set():
            raise ReignEndedError(Event.NUMBER_TAKEN, f"chunk {number} was written by another reign")

    async def _commit(self, making: _Making) -> int:
        """Write one chunk and return its size in bytes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        data = making.builder.encode(
            shard=self._state.shard,
            number=making.number,
            leader_epoch=self._state.leader_epoch,
            at_ms=making.at_ms,
        )
        while True:
            try:
                async with asyncio.timeout(self._write_timeout_seconds):
                    await self._ledger.append(making.number, data)
            except ObjectExistsError:
                raise ReignEndedError(
                    Event.NUMBER_TAKEN, f"chunk {making.number} was written by another reign"
                ) from None
            except (OutcomeUnknownError, TimeoutError) as error:
                self._observer.store_error("create")
                reason = f"chunk {making.number} may or may not have been written: {str(error) or 'no answer in time'}"
                raise ReignEndedError(Event.OUTCOME_UNKNOWN, reason) from error
            except StoreUnavailableError as error:
                self._observer.store_error("create")
                if loop.time() - began > self._unreachable_seconds:
                    raise ReignEndedError(Event.STORE_UNREACHABLE, str(error)) from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self.durable = making.number
        return len(data)
