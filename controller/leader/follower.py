"""Follows the ledger of one shard while another daemon leads, or until it can be read again.

It keeps reading, so that a new term only has to read the chunks of the last second. While there are none, it asks more
seldom, because a store may charge for each request: after 30 s it subscribes to the announcements of new chunks, the
next of which ends its pause, of up to five minutes. It stays at 30 s once it has found a chunk that was not announced.
A term is not: while another daemon holds the lock whose term was not read, it reads every second.
It follows only the terms of a shard whose state does not fit into the daemon's `StandbyMemory`.

A damaged, foreign or missing object of the ledger fails this shard only: `Follower.fault` names it. The ledger is read
again with pauses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self

import structlog

from controller.context.step_driver import SerialSteps
from controller.leader.leader import ShardLeader
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.election import Elections
from controller.leadership.policy import safety
from controller.leadership.policy.standby import estimated_bytes
from controller.leadership.policy.transitions import Event
from controller.snapshots.restore import apply_new_chunks, catch_up, load_newest_snapshot
from headgate.backoff import Backoff
from headgate.errors import LedgerError, StoreUnavailableError, TransportError
from headgate.ledger.ledger import Ledger, if_exists
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.model.layout import ShardMap
from headgate.protocol.codec import head_topic
from headgate.transport.port import Transport
from metrics import events
from metrics.label_values import StoreOperation
from shard.state.shard_state import ShardState
from shard.steps import ResultT, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContext:
    """What the controller of a shard needs from its daemon, in one value."""

    ledger: Ledger
    shards: Callable[[], ShardMap]
    """Returns the shards that the daemon knows of."""
    found_shards: Callable[[ShardMap], None]
    """Gets a list that the ledger has and the daemon does not know."""
    cluster: str
    instance: str
    elections: Elections
    transport: Transport
    new_leader: Callable[[ShardState, Callable[[], bool]], ShardLeader]
    """Gets a state with its term chunk, and whether to yield to a contender."""
    standby: StandbyMemory
    unready: Callable[[], str | None]
    """Returns why this daemon could not lead; None: it could."""
    observer: events.Observer
    now_ms: Callable[[], int]
    new_term_id: Callable[[], int]
    require_ledger: Callable[[], Awaitable[None]]
    """Raises unless the ledger is that of the cluster."""
    restoring: SerialSteps
    """Decodes snapshots. All shards of a daemon share it."""


@dataclass(slots=True)
class TermTail:
    """Follows the terms of a ledger without its state, for a shard that a daemon does not keep in memory.

    It starts at the end of the ledger, with the newest term. Then it reads the header of every chunk, and keeps
    nothing but the newest number and term. Only the first chunk of a term is decoded: each daemon follows all shards
    of the cluster, so every daemon does this for every chunk. A chunk that was trimmed before it was read is noticed
    by a listing only; `lost` says so, and the whole state must be read once.
    """

    chunk: int
    leader_epoch: int
    leader_instance: str

    @classmethod
    def of(cls, state: ShardState) -> Self:
        return cls(state.chunk, state.term.leader_epoch, state.term.instance)

    @classmethod
    async def at_end(cls, ledger: Ledger) -> Self | None:
        """Return the end of a ledger after a few reads; None: chunks were trimmed meanwhile. Raises like `read`."""
        numbers = await ledger.numbers()
        newest = await if_exists(ledger.header, numbers[-1]) if numbers else None
        if newest is None:
            return None if numbers else cls(0, 0, "")
        low, high = 0, len(numbers) - 1
        while low < high:  # Epochs rise with the numbers: search the first chunk of the newest term.
            middle = (low + high) // 2
            header = await if_exists(ledger.header, numbers[middle])
            if header is None:
                return None
            low, high = (low, middle) if header.leader_epoch == newest.leader_epoch else (middle + 1, high)
        tail = cls(newest.number, 0, "")
        await tail._note_term(ledger, numbers[low])
        return tail

    async def read(self, ledger: Ledger) -> int:
        """Read new chunks; return how many. Raises StoreUnavailableError or LedgerError."""
        before = self.chunk
        while (header := await if_exists(ledger.header, self.chunk + 1)) is not None:
            if header.leader_epoch > self.leader_epoch:
                await self._note_term(ledger, header.number)
            self.chunk = header.number
        return self.chunk - before

    async def lost(self, ledger: Ledger) -> bool:
        """Return whether later chunks exist although the next one does not. Raises StoreUnavailableError."""
        return not safety.is_end(self.chunk, await ledger.numbers(after=self.chunk))

    async def _note_term(self, ledger: Ledger, number: int) -> None:
        if (first := await if_exists(ledger.read, number)) is None:
            raise LedgerError(f"{chunk_path(ledger.shard, number)} began a term, is never trimmed, and is missing")
        for entry in first.entries:
            if isinstance(entry, e.TermStarted):
                self.leader_epoch, self.leader_instance = entry.leader_epoch, entry.instance


LISTING_INTERVAL_SECONDS = 300.0
"""How often an idle follower lists the ledger: the chunk it expects next may have been deleted."""
READS = Backoff(first_seconds=1.0, longest_seconds=LISTING_INTERVAL_SECONDS, jitter=0)
"""Pauses between reads, by how many have found nothing. What is not read yet costs a failover time."""
UNHEARD_SECONDS = 30.0
"""The longest pause without a subscription to announcements."""
UNREADABLE_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=60.0, jitter=0)
"""Pause before an unreadable ledger is read again: a whole snapshot and the chunks after it, at worst."""


class Follower:
    def __init__(self, context: ShardContext, post: Callable[[Event], None], follows: Callable[[], bool]) -> None:
        """``follows``: whether to read now; if not, this daemon leads, or is to lead soon."""
        self.end = TermTail(0, 0, "")
        """The newest chunk and term that were read."""
        self.fault: str | None = None
        """Why the ledger cannot be read; the text names the object. None if it can be read."""
        self.state = ShardState(context.ledger.shard)
        self.terms: TermTail | None = None
        """Follows the ledger while the state is not in memory."""
        self.reading = asyncio.Lock()
        self.restoring = False
        """Whether the decoding of the state has begun."""
        self._context = context
        self._follows = follows
        self._post = post
        self._log = structlog.get_logger(__name__).bind(shard=context.ledger.shard)
        self._read_to_end_at = asyncio.get_running_loop().time()
        """When this daemon last knew the end of the ledger, or began to read it; by the loop's clock."""
        self._failures = 0
        """How often in a row the ledger could not be read."""
        self._subscribed = False
        self._received = False
        """Whether a chunk was announced since the last read."""
        self._receives = True
        """False: a chunk was not announced, or the broker refuses the subscription."""

    @property
    def keeps_state(self) -> bool:
        """Whether the state of the shard is in memory, so that a new term can start at once."""
        return self.terms is None

    @property
    def lag_seconds(self) -> float:
        """How long this daemon has not known the end of the ledger, nor would have heard of a new chunk."""
        if self._subscribed and self._receives and self.fault is None and self._context.transport.connected:
            return 0.0
        return asyncio.get_running_loop().time() - self._read_to_end_at

    async def run(self) -> None:
        """Keep up with the ledger until cancelled."""
        observer, standby, shard = self._context.observer, self._context.standby, self.state.shard
        loop = asyncio.get_running_loop()
        listed_at = loop.time()
        looks = 0
        """How many reads in a row have found nothing."""
        while True:
            failures = self._failures
            pause = UNREADABLE_BACKOFF.bound_seconds(failures - 1) if failures else await self._pause_seconds(looks)
            await standby.pause(shard, pause)
            if not self._follows():
                looks = 0
                continue
            keeps = standby.keeps(shard, estimated_bytes(self.state))
            async with AsyncExitStack() as held:
                if keeps and not self.state.chunk:
                    # Before the lock: a term must be able to start while this waits for the states of other shards.
                    await held.enter_async_context(standby.turn_to_read())
                await held.enter_async_context(self.reading)
                if not self._follows():
                    continue
                try:
                    # Only a listing shows that a missing chunk, which looks like the end, is there again.
                    awaited = self._awaits_term()
                    found = 0 if self.fault is not None else await self._follow(keeps=keeps or self.state.chunk > 0)
                    if found and self._subscribed and not awaited:
                        self._receives, self._received = self._received, False
                    # The chunk of an idle leader ends no pauses: announcements of others still do.
                    looks = looks + 1 if not found or (self._subscribed and found == 1) else 0
                    if self.fault is not None or (not found and loop.time() - listed_at > LISTING_INTERVAL_SECONDS):
                        listed_at = loop.time()
                        if self.terms is None or self.fault is not None or await self.terms.lost(self._context.ledger):
                            looks = 0 if await self.catch_up() else looks
                except (StoreUnavailableError, LedgerError) as error:
                    looks = 0
                    self.report(error, "read")
                else:
                    observer.observe(events.StoreOperationSucceeded(operation="read"))
                    self.recover()
                # The size of a state is known once it was read.
                if self.state.chunk and self._follows() and not standby.keeps(shard, estimated_bytes(self.state)):
                    self._release()

    def report(self, error: Exception, operation: StoreOperation) -> None:
        """Note why the ledger cannot be read, or that the store is away."""
        match error:
            case LedgerError():
                self._failures += 1
                if self.fault != str(error):
                    self.fault = str(error)
                    self._log.error("ledger.unreadable", reason=self.fault)
            case StoreUnavailableError():
                self._context.observer.observe(events.StoreOperationFailed(operation=operation, reason=str(error)))
                self._log.warning("ledger.unreachable", error=str(error))

    def recover(self) -> None:
        if self.fault is not None:
            self._log.info("ledger.readable", was=self.fault)
            self._post(Event.LEDGER_READABLE)
        self.fault, self._failures = None, 0

    def take_state(self) -> ShardState:
        """Return the state, and begin again with durable chunks: a leader's may be ahead of the ledger."""
        state, self.state = self.state, ShardState(self.state.shard)
        return state

    async def apply_new_chunks(self) -> int:
        ledger = self._context.ledger
        if self.state.chunk == 0:
            self.state = await load_newest_snapshot(ledger, self._report_unusable_snapshot, self._decode)
        self.terms = None
        return self.record_progress(await apply_new_chunks(ledger, self.state), TermTail.of(self.state))

    async def catch_up(self, *, urgent: bool = False) -> int:
        """Apply all chunks up to the end of the ledger by a listing; return how many. ``urgent``: clients wait."""
        ledger, unusable = self._context.ledger, self._report_unusable_snapshot
        reading = catch_up(ledger, self.state, unusable, self._decode, urgent=urgent)
        refused, found = await asyncio.gather(self._context.require_ledger(), reading, return_exceptions=True)
        if refused is not None:
            self.take_state()  # It may include chunks of another ledger.
            raise refused
        if isinstance(found, BaseException):
            raise found
        self.state, read = found
        self.terms = None
        return self.record_progress(read, TermTail.of(self.state))

    def record_progress(self, read: int, end: TermTail) -> int:
        """Note that the ledger was read to ``end``, and that ``read`` chunks were new, which is returned."""
        self._read_to_end_at = asyncio.get_running_loop().time()
        self.end = replace(end)  # A snapshot may include the end.
        return read

    async def _pause_seconds(self, looks: int) -> float:
        """Return how long to pause, after ``looks`` reads that have found nothing. For long, if a new chunk ends it."""
        context, seconds = self._context, READS.bound_seconds(looks)
        if (seconds > UNHEARD_SECONDS) != self._subscribed:
            topic = head_topic(context.cluster, self.state.shard)
            self._subscribed = not self._subscribed
            if not self._subscribed:
                await context.transport.unsubscribe(topic)
            else:
                try:
                    await context.transport.subscribe(topic, self._on_announcement)
                except TransportError as error:
                    self._receives = False
                    self._log.warning("announcements.refused", reason=str(error))
                return 0.0  # A chunk may have been announced before.
        if self._awaits_term():
            return READS.first_seconds
        return seconds if self._receives and context.transport.connected else min(seconds, UNHEARD_SECONDS)

    def _awaits_term(self) -> bool:
        """Return whether another daemon holds the lock whose term was not read."""
        queue = self._context.elections.queue(self.state.shard)
        return queue is not None and queue.holder not in (self._context.instance, self.end.leader_instance)

    def wake(self) -> None:
        """End the pause: a chunk was announced, or the lock was passed on, and its new holder begins a term."""
        self._context.standby.wake(self.state.shard)

    def _on_announcement(self, *_: object) -> None:
        self._received = True
        self.wake()

    async def _follow(self, *, keeps: bool) -> int:
        """Read new chunks by number; return how many."""
        if keeps:
            return await self.apply_new_chunks()
        if self.terms is None:
            self.terms = await TermTail.at_end(self._context.ledger)
            return 0 if self.terms is None else self.record_progress(self.terms.chunk, self.terms)
        return self.record_progress(await self.terms.read(self._context.ledger), self.terms)

    def _release(self) -> None:
        self.terms = TermTail.of(self.take_state())
        self._log.info("standby.released", chunk=self.terms.chunk)

    async def _decode(self, steps: Steps[ResultT]) -> ResultT:
        def begun() -> Steps[ResultT]:
            self.restoring = True
            return (yield from steps)

        self.restoring = False
        return await self._context.restoring.complete(begun(), lambda: not self._follows())

    def _report_unusable_snapshot(self, shard: int) -> None:
        self._context.observer.observe(events.SnapshotRejected(shard=shard))
