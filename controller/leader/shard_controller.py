"""One daemon's role in one shard: follow the ledger, contend, lead and hand over.

controller.leadership.policy.transitions decides. This module performs its actions and posts its events.
While following, it keeps reading the ledger, so that a new term only has to read the chunks of the
last second; of a shard whose state does not fit into the daemon's `StandbyMemory`, it follows the terms.

A damaged, foreign or missing object of the ledger fails this shard only: `ShardController.fault`
names it. The daemon reads it again with pauses, as a follower, and contends when it can be read.
A topic of another shard ends the daemon: it would store new topics where they do not belong.

`run` returns after a requested stop, and raises what a bug raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import structlog

from controller.backup.check import misplaced
from controller.chunk_writer.group_commit import TermEndedError
from controller.leader.leader import ShardLeader
from controller.leader.standby_memory import StandbyMemory
from controller.leader.term_chunk import first_chunk
from controller.leader.term_tail import TermTail
from controller.leader.transfer import Transfer
from controller.leadership.election import Elections
from controller.leadership.policy import safety
from controller.leadership.policy.transitions import Action, Event, Leadership, Role
from controller.snapshots.restore import apply_new_chunks, catch_up, load_newest_snapshot
from headgate.backoff import Backoff
from headgate.errors import ConfigError, LedgerError, OutcomeUnknownError, StoreUnavailableError
from headgate.ledger.ledger import Ledger
from metrics import events
from metrics.label_values import StoreOperation, TransferReason
from shard.state.shard_state import ShardState
from shard.state.size import estimated_bytes
from shard.steps import ResultT, Steps, TakeSteps

TAIL_INTERVAL_SECONDS = 1.0
"""How often a follower reads new chunks."""
LISTING_INTERVAL_SECONDS = 300.0
"""How often an idle follower lists the ledger: the chunk it expects next may have been deleted."""
WRITE_TIMEOUT_SECONDS = 10.0
HANDOVER_TIMEOUT_SECONDS = 5.0
"""Longest wait for the last commit during a handover."""
TRANSFER_TIMEOUT_SECONDS = 10.0
"""Longest wait until a successor has read the ledger, and then until its term has begun."""
FOLLOW_INTERVAL_SECONDS = 0.02
"""How often a daemon that has passed the lock on looks for the next term."""
PREPARE_INTERVAL_SECONDS = 0.01
"""How often a nominated successor reads new chunks."""
CONTEND_BACKOFF = Backoff(first_seconds=0.25, longest_seconds=5.0, jitter=0)
"""Pause before the second and each later consecutive attempt to start a term."""
UNREADABLE_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=60.0, jitter=0)
"""Pause before an unreadable ledger is read again: a whole snapshot and the chunks after it, at worst."""

log = structlog.get_logger(__name__)


class ShardController:
    """Follows, contends for and leads one shard."""

    terms_ended = 0
    """How many terms of this daemon have ended in this shard."""
    _restoring = False  # Whether the decoding of the state has begun.

    def __init__(
        self,
        *,
        ledger: Ledger,
        shards: int,
        instance: str,
        elections: Elections,
        new_leader: Callable[[ShardState, Callable[[], bool]], ShardLeader],
        standby: StandbyMemory,
        unready: Callable[[], str | None],
        observer: events.Observer,
        now_ms: Callable[[], int],
        new_term_id: Callable[[], int],
        require_ledger: Callable[[], Awaitable[None]],
        take_steps: TakeSteps,
    ) -> None:
        """``new_leader`` gets a state with its term chunk. ``unready`` says why this daemon could not lead."""
        self.shard = ledger.shard
        self.leadership = Leadership()
        self.leader: ShardLeader | None = None
        self.following_chunk = 0
        """Newest chunk that was read as a follower."""
        self.following_epoch = 0
        self.following_leader = ""
        """Instance of the newest term that was read as a follower."""
        self.led_since: float | None = None
        """When the present term started, by the loop's clock; None: this daemon does not lead."""
        self.transfer: Transfer | None = None
        self.read_to_end_at = 0.0
        """When this daemon last knew the end of the ledger, or began to read it; by the loop's clock."""
        self.fault: str | None = None
        """Why the ledger cannot be read; the text names the object. None if it can be read."""
        self._ledger = ledger
        self._shards = shards
        self._instance = instance
        self._elections = elections
        self._new_leader = new_leader
        self._standby = standby
        self._unready = unready
        self._observer = observer
        self._first_chunk = partial(first_chunk, instance=instance, now_ms=now_ms, new_term_id=new_term_id)
        self._require_ledger = require_ledger
        self._take_steps = take_steps  # Those of decoding a snapshot. All shards of a daemon share it.
        self._log = log.bind(shard=self.shard)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._state = ShardState(self.shard)
        self._terms: TermTail | None = None
        """Follows the ledger while the state is not in memory."""
        self._reading = asyncio.Lock()
        self._serving: asyncio.Task[str | None] | None = None
        """Serves the term. Its result says why the term failed; None if it has not."""
        self._catching_up: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._attempts = 0
        """Attempts to start a term since the last successful one."""
        self._unreadable = 0
        """How often in a row the ledger could not be read."""

    @property
    def keeps_state(self) -> bool:
        """Whether the state of the shard is in memory, so that a new term can start at once."""
        return self.leader is not None or self._terms is None

    @property
    def replay_lag_seconds(self) -> float:
        """How long this daemon has not known the end of the ledger; 0 if it leads."""
        return 0.0 if self.leader is not None else asyncio.get_running_loop().time() - self.read_to_end_at

    @property
    def waits_to_restore(self) -> bool:
        """Whether a term waits for a state whose decoding has not begun."""
        return self.leadership.role is Role.CATCHING_UP and not self._state.chunk and not self._restoring

    def post(self, event: Event) -> None:
        """Queue ``event``; never blocks. Each external event is posted once, so the queue stays short."""
        self._events.put_nowait(event)

    def start_transfer(
        self, successor: str, reason: TransferReason, timeout_seconds: float = TRANSFER_TIMEOUT_SECONDS
    ) -> asyncio.Future[str | None]:
        """Transfer the shard to another daemon. Returns `Transfer.done`; a repeated call joins the first one."""
        if self.transfer is not None and self.transfer.successor == successor:
            return self.transfer.done
        transfer = Transfer(self.shard, successor, reason, timeout_seconds, self.post)
        if self.transfer is not None:
            transfer.done.set_result(f"shard {self.shard} is being transferred to daemon {self.transfer.successor!r}")
        elif self.leadership.role is not Role.LEADING:
            transfer.done.set_result(f"daemon {self._instance!r} does not lead shard {self.shard}")
        else:
            self.transfer = transfer
            self.post(Event.TRANSFER_REQUESTED)
        return transfer.done

    async def run(self) -> None:
        """Follow, contend and lead until a requested stop is complete."""
        self.read_to_end_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            tail = tasks.create_task(self._tail(), name=f"tail-{self.shard}")
            self._elections.contend(self.shard)
            while self.leadership.role is not Role.STOPPED:
                event = await self._events.get()
                before = self.leadership
                self.leadership, actions = before.on(event)
                if actions:
                    self._log.info(
                        "leadership.changed",
                        event_seen=event.value,
                        before=before.role.value,
                        after=self.leadership.role.value,
                    )
                for action in actions:
                    await self._perform(action, event, tasks)
                if not self.leadership.transferring and (before.transferring or self.leader is None):
                    self._end_transfer(event)
            tail.cancel()
            self._stop_preparing()

    async def _perform(self, action: Action, event: Event, tasks: asyncio.TaskGroup) -> None:
        match action:
            case Action.CATCH_UP:
                self._restoring = self._reading.locked()
                self._catching_up = tasks.create_task(self._start_term(), name=f"catch-up-{self.shard}")
            case Action.SERVE:
                assert self.leader is not None, "no leader to serve"
                self._serving = tasks.create_task(self._serve(self.leader), name=f"leader-{self.shard}")
            case Action.END_TERM:
                orderly = event in (Event.SUCCESSOR_READY, Event.STOP_REQUESTED)
                await self._end_term("handover" if orderly else event.value)
            case Action.HAND_OVER:
                await self._hand_over(event)
            case Action.NOMINATE | Action.PASS_ON | Action.FORGET:
                self._perform_transfer(action, tasks)
            case Action.PREPARE:
                self._stop_preparing()
                self._standby.nominated(self.shard)
                self._preparing = tasks.create_task(self._prepare(), name=f"prepare-{self.shard}")
            case Action.WITHDRAW:
                self._elections.withdraw(self.shard)
            case Action.CONTEND:
                await asyncio.sleep(CONTEND_BACKOFF.bound_seconds(self._attempts - 1) if self._attempts else 0)
                self._attempts += 1
                self._elections.contend(self.shard)

    # Following

    async def _tail(self) -> None:
        """Keep up with the ledger while another daemon leads, or until it can be read again."""
        loop = asyncio.get_running_loop()
        listed_at = loop.time()
        while True:
            failures = self._unreadable
            await asyncio.sleep(UNREADABLE_BACKOFF.bound_seconds(failures - 1) if failures else TAIL_INTERVAL_SECONDS)
            if not self._follows():
                continue
            keeps = self._standby.keeps(self.shard, estimated_bytes(self._state))
            async with AsyncExitStack() as held:
                if keeps and not self._state.chunk:
                    # Before the lock: a term must be able to start while this waits for the states of other shards.
                    await held.enter_async_context(self._standby.turn_to_read())
                await held.enter_async_context(self._reading)
                if not self._follows():
                    continue
                try:
                    # Only a listing shows that a missing chunk, which looks like the end, is there again.
                    found = 0 if self.fault is not None else await self._follow(keeps=keeps)
                    if self.fault is not None or (not found and loop.time() - listed_at > LISTING_INTERVAL_SECONDS):
                        listed_at = loop.time()
                        if self._terms is None or self.fault is not None or await self._terms.lost(self._ledger):
                            await self._catch_up()
                except StoreUnavailableError as error:
                    self._observer.observe(events.StoreOperationFailed(operation="read", reason=str(error)))
                    self._log.warning("ledger.unreachable", error=str(error))
                except LedgerError as error:
                    self._fail(error)
                else:
                    self._observer.observe(events.StoreOperationSucceeded(operation="read"))
                    self._recover()

    def _follows(self) -> bool:
        """Return whether to read the ledger as a follower. A successor that prepares reads it more often.

        It must keep the state whatever the memory for followed states permits.
        """
        prepares = self._preparing is not None and not self._preparing.done()
        return self.leadership.role in (Role.FOLLOWING, Role.FAILED) and self.leader is None and not prepares

    def _fail(self, error: LedgerError) -> None:
        self._unreadable += 1
        if self.fault != str(error):
            self.fault = str(error)
            self._log.error("ledger.unreadable", reason=self.fault)

    def _recover(self) -> None:
        if self.fault is not None:
            self._log.info("ledger.readable", was=self.fault)
        self.fault, self._unreadable = None, 0
        if self.leadership.role is Role.FAILED:
            self.post(Event.LEDGER_READABLE)

    async def _prepare(self) -> None:
        """Keep up with the ledger as closely as possible until this daemon gets the lock, and confirm it once.

        Without the broker, or a store that accepts writes, it does not confirm: clients would wait until it can lead.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSFER_TIMEOUT_SECONDS
        problem: str | None = "the ledger was not read in time"
        try:
            while loop.time() < deadline:
                async with self._reading:
                    if self.fault is not None:
                        problem = self.fault
                        return
                    if self.leadership.role is not Role.FOLLOWING or self.leader is not None:
                        problem = None
                        return
                    await self._apply_new_chunks()
                if problem is not None:
                    problem = self._unready()
                    if problem is None:
                        self._elections.confirm(self.shard)
                await asyncio.sleep(PREPARE_INTERVAL_SECONDS)
        except (StoreUnavailableError, LedgerError) as error:
            problem = str(error)
        finally:  # Also when the leader withdraws the nomination: its log refers to this line.
            if problem is not None:
                self._log.warning("transfer.not_prepared", reason=problem)

    def _stop_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()

    async def _follow(self, *, keeps: bool) -> int:
        """Read new chunks by number; return how many. Begin or stop keeping the state."""
        if not keeps:
            if self._terms is None and self._state.chunk:
                state, self._state = self._state, ShardState(self.shard)
                self._terms = TermTail(state.chunk, state.leader_epoch, state.leader_instance)
                self._log.info("standby.released", chunk=state.chunk)
            if self._terms is None:
                self._terms = await TermTail.at_end(self._ledger)
                return 0 if self._terms is None else self._record_progress(self._terms.chunk, self._terms)
            return self._record_progress(await self._terms.read(self._ledger), self._terms)
        return await self._apply_new_chunks()

    async def _apply_new_chunks(self) -> int:
        """Apply new chunks by number; return how many."""
        if self._state.chunk == 0:
            self._state = await load_newest_snapshot(self._ledger, self._report_unusable_snapshot, self._decode)
        self._terms = None
        return self._record_progress(await apply_new_chunks(self._ledger, self._state), self._state)

    async def _catch_up(self, *, urgent: bool = False) -> int:
        """Apply all chunks up to the end of the ledger by a listing; return how many. ``urgent``: clients wait."""
        reading = catch_up(self._ledger, self._state, self._report_unusable_snapshot, self._decode, urgent=urgent)
        refused, found = await asyncio.gather(self._require_ledger(), reading, return_exceptions=True)
        if refused is not None:
            self._state = ShardState(self.shard)  # It may include chunks of another ledger.
            raise refused
        if isinstance(found, BaseException):
            raise found
        self._state, read = found
        self._terms = None
        return self._record_progress(read, self._state)

    async def _decode(self, steps: Steps[ResultT]) -> ResultT:
        def begun() -> Steps[ResultT]:
            self._restoring = True
            return (yield from steps)

        return await self._take_steps(begun())

    def _report_unusable_snapshot(self, shard: int) -> None:
        self._observer.observe(events.SnapshotRejected(shard=shard))

    def _record_progress(self, read: int, end: ShardState | TermTail) -> int:
        self.read_to_end_at = asyncio.get_running_loop().time()
        if read:
            self.following_chunk, self.following_epoch = end.chunk, end.leader_epoch
            self.following_leader = end.leader_instance
            self._observer.observe(events.HeadAdvanced(shard=self.shard, chunk=end.chunk))
        return read

    def _require_own_topics(self) -> None:
        """Raise ConfigError, which ends the daemon, if the ledger was written with another number of shards.

        Another number that places every topic alike is harmless. A cluster started before all shards had
        leaders looks like one with fewer, so the folders of shards prove nothing.
        """
        for problem in misplaced(self.shard, self._shards, self._state.topics):
            raise ConfigError(
                f"cluster.shards is {self._shards}, but {problem}. Use that number, and another cluster.name if "
                "this one was fixed in ZooKeeper"
            )

    async def _start_term(self) -> None:
        """Read the ledger to its end, and try to write the next number as the term chunk."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        operation: StoreOperation = "read"
        async with self._reading:
            try:
                # A missing number may be a hole and not the end: writing into it would fork the ledger.
                chunks = await self._catch_up(urgent=True)
                self._require_own_topics()
                operation = "create"
                await self._write_term_chunk()
            except safety.FAILURES as error:
                self._report_failed_start(error, operation)
                self.post(safety.failure(error))
            else:
                self._recover()
                self._standby.stop_following(self.shard)
                # The leader's state may be ahead of the ledger: this one begins again from durable chunks.
                state, self._state = self._state, ShardState(self.shard)
                self.leader = self._new_leader(state, lambda: safety.yields_to_contender(self.leadership))
                self._attempts = 0
                self.led_since = loop.time()
                seconds = loop.time() - began
                self._observer.observe(events.LedgerRestored(shard=self.shard, seconds=seconds, chunks=chunks))
                self._observer.observe(events.TermStarted(shard=self.shard, leader_epoch=state.leader_epoch))
                self._log.info(
                    "term.started",
                    leader_epoch=state.leader_epoch,
                    chunk=state.chunk,
                    topics=len(state.topics),
                    restore_seconds=round(seconds, 3),
                )
                self.post(Event.TERM_STARTED)

    def _report_failed_start(self, error: Exception, operation: StoreOperation) -> None:
        match error:
            case LedgerError():
                self._fail(error)
            case StoreUnavailableError():
                self._observer.observe(events.StoreOperationFailed(operation=operation, reason=str(error)))
                self._log.warning("ledger.unreachable", error=str(error))
            case OutcomeUnknownError() | TimeoutError():
                self._log.warning("term.outcome_unknown", error=str(error))

    async def _write_term_chunk(self) -> None:
        chunk = self._first_chunk(self._state)
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await self._ledger.append(chunk.number, chunk.data)
            if safety.starts_no_term(chunk.number, await self._ledger.snapshots()):
                self._state = ShardState(self.shard)
                raise OutcomeUnknownError(f"chunk {chunk.number} was created, but a snapshot includes that number")
        self._state.apply_all((chunk.entry,), chunk=chunk.number, at_ms=chunk.at_ms)

    # Leading

    async def _serve(self, leader: ShardLeader) -> str | None:
        try:
            await leader.serve()
        except TermEndedError as error:
            if error.event is Event.LEDGER_UNREADABLE:
                self._fail(LedgerError(str(error)))
            self.post(error.event)
            return str(error)
        return None

    async def _hand_over(self, event: Event) -> None:
        assert self.leader is not None, "no leader to hand over"
        if self.transfer is not None and event is Event.SUCCESSOR_READY:
            self.transfer.end_wait()
            self.transfer.stopped_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(HANDOVER_TIMEOUT_SECONDS):
                await self.leader.hand_over()
        except TimeoutError:
            # Uncommitted requests were not answered: their clients send them to the next leader.
            self._log.warning("handover.incomplete", limit_seconds=HANDOVER_TIMEOUT_SECONDS)

    def _perform_transfer(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        transfer, leader = self.transfer, self.leader
        assert transfer is not None, "no transfer"
        if action is Action.NOMINATE:
            self._elections.nominate(self.shard, transfer.successor)
            transfer.wait()
        elif action is Action.PASS_ON:
            assert leader is not None, "no term to follow"
            self._elections.pass_on(self.shard, fixed=transfer.reason == "operator")
            following = self._follow_term(TermTail(leader.commit.durable, leader.leader_epoch, self._instance))
            transfer.wait(tasks.create_task(following, name=f"successor-{self.shard}"))
        else:
            self._elections.nominate(self.shard, "")

    async def _follow_term(self, tail: TermTail) -> None:
        """Report the term that follows the one of ``tail``. The transfer limits the wait."""
        ended = tail.leader_epoch
        while tail.leader_epoch == ended:
            await asyncio.sleep(FOLLOW_INTERVAL_SECONDS)
            with suppress(StoreUnavailableError, LedgerError):  # `_tail` reports them.
                await tail.read(self._ledger)
        self._record_progress(1, tail)
        self.post(Event.TERM_FOLLOWED)

    def _end_transfer(self, event: Event) -> None:
        transfer, self.transfer = self.transfer, None
        if transfer is None:
            return
        transfer.end_wait()
        problem = transfer.problem(event, self.following_leader)
        now = asyncio.get_running_loop().time()
        seconds = 0.0 if transfer.stopped_at is None else now - transfer.stopped_at
        self._observer.observe(
            events.TransferEnded(
                shard=self.shard,
                reason=transfer.reason,
                outcome="completed" if problem is None else "abandoned",
                seconds=seconds,
            )
        )
        ended = self._log.bind(successor=transfer.successor, reason=transfer.reason)
        if problem is None:
            ended.info("transfer.completed", handover_seconds=round(seconds, 4))
        else:
            ended.warning("transfer.abandoned", problem=problem)
        if not transfer.done.done():
            transfer.done.set_result(problem)

    async def _end_term(self, reason: str) -> None:
        for task in (self._catching_up, self._serving):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self.leader is not None:
            self._observer.observe(events.TermEnded(shard=self.shard, reason=reason))
            ended = self._log.bind(leader_epoch=self.leader.leader_epoch, reason=reason)
            serving = self._serving
            detail = None if serving is None or serving.cancelled() else serving.result()
            if detail is None:
                ended.info("term.ended")
            else:
                ended.warning("term.ended", detail=detail)
            self.leader.state.release()
            self.leader = None
            self.terms_ended += 1
        self._catching_up = self._serving = None  # A task refers to its leader, also when it is done.
        self.led_since = None
