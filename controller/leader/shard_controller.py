"""One daemon's role in one shard: follow the ledger, contend, lead and hand over.

controller.leadership.policy.transitions decides. This module performs its actions and posts its events: `Follower`
reads the ledger, `Term` is this daemon's own term, and `Transfer` gives the shard to another daemon.

`run` returns after a requested stop, and raises what a bug raised.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from controller.leader.follower import Follower, ShardContext, TermTail
from controller.leader.leader import ShardLeader
from controller.leader.term import Term
from controller.leadership.policy.safety import yields_to_contender
from controller.leadership.policy.transitions import Action, Event, Leadership, Role
from headgate.backoff import Backoff
from headgate.errors import LedgerError, StoreUnavailableError
from metrics import events
from metrics.label_values import TransferReason

TRANSFER_TIMEOUT_SECONDS = 10.0
"""Longest wait until a successor has read the ledger."""
BEGIN_TIMEOUT_SECONDS = 3.0
"""Longest wait until the term of a successor that was ready has begun: the shard has no leader."""
FOLLOW_INTERVAL_SECONDS = 0.02
"""How often a daemon that has passed the lock on looks for the next term."""
PREPARE_INTERVAL_SECONDS = 0.01
"""How often a nominated successor reads new chunks."""
CONTESTED_SECONDS = 120.0
"""Two nodes with one ledger take a shard from each other every few seconds."""
CONTEND_BACKOFF = Backoff(first_seconds=0.25, longest_seconds=5.0, jitter=0)
"""Pause before the second and each later consecutive attempt to start a term."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer in progress: until the successor's term is in the ledger, or until it has failed.

    ``done``: None once that term is in the ledger, otherwise why the transfer has failed.
    """

    shard: int
    successor: str
    reason: TransferReason
    timeout_seconds: float
    """Longest wait until the successor is ready."""
    post: Callable[[Event], None]
    done: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stopped_at: float | None = None
    """When the leader stopped accepting requests for a successor that was ready, by the loop's clock; None: not yet."""
    read_at: float = -math.inf
    """When the ledger was last read to its end after the lock was passed on."""
    _waits: list[asyncio.TimerHandle | asyncio.Task[None]] = field(default_factory=list)

    def wait(self, following: asyncio.Task[None] | None = None) -> None:
        """Limit the wait for the successor. ``following`` looks for its term, and ends with the wait."""
        loop, seconds = asyncio.get_running_loop(), self.timeout_seconds if following is None else BEGIN_TIMEOUT_SECONDS
        self._waits.append(loop.call_later(seconds, self.post, Event.TRANSFER_ABANDONED))
        if following is not None:
            self._waits.append(following)

    def end_wait(self) -> None:
        while self._waits:
            self._waits.pop().cancel()

    def problem(self, event: Event, leader: str) -> str | None:
        """Return why the transfer has failed, which ended with ``event``. ``leader`` began the newest known term.

        The text states what this daemon has seen: it may be the slow one.
        """
        successor, seconds = f"daemon {self.successor!r}", f"{self.timeout_seconds:g} s"
        if self.stopped_at is None:
            if event is Event.SUCCESSOR_LEFT:
                left = f"{successor} does not contend for shard {self.shard} any more"
                return f"{left}: it has ended, lost its session in ZooKeeper, or cannot read the ledger"
            if event is Event.TRANSFER_ABANDONED:
                seen = f"this daemon has not seen within {seconds} that {successor} is ready to lead shard"
                return f"{seen} {self.shard}: see transfer.not_prepared in its log"
            return f"the term ended: {event.value.replace('_', ' ')}"
        if event is Event.TERM_FOLLOWED and leader == self.successor:
            return None
        given = f"{successor} was ready, and was given the lock of shard {self.shard}"
        if event is Event.TRANSFER_ABANDONED and not self.sees_terms:
            unread = f"this daemon could not read the ledger to its end for {BEGIN_TIMEOUT_SECONDS:g} s"
            return f"{given}; {unread}, so it does not know of a term: see ledger.unreachable in its own log"
        why = {
            Event.TERM_FOLLOWED: f"daemon {leader!r} has begun the newest term",
            Event.TRANSFER_ABANDONED: f"it began no term within {BEGIN_TIMEOUT_SECONDS:g} s",
            Event.LOCK_ACQUIRED: "this daemon has the lock again, and has seen no term of it",
        }.get(event, f"this daemon stopped waiting for its term ({event.value.replace('_', ' ')})")
        return f"{given}; {why}: see ledger.unreachable, term.outcome_unknown or ledger.unreadable in its log"

    @property
    def sees_terms(self) -> bool:
        """Whether the ledger was read to its end a moment ago: a term that had begun would be known."""
        return asyncio.get_running_loop().time() - self.read_at < BEGIN_TIMEOUT_SECONDS / 3


class ShardController:
    def __init__(self, context: ShardContext) -> None:
        self.shard = context.ledger.shard
        self.leadership = Leadership()
        self.follower = Follower(context, self.post, self._follows)
        self.term = Term(context, self.follower, self.post, lambda: self.leadership)
        self.transfer: Transfer | None = None
        self._context = context
        self._log = structlog.get_logger(__name__).bind(shard=self.shard)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._preparing: asyncio.Task[None] | None = None
        self._contending: asyncio.Task[None] | None = None
        self._taken_at = deque((-math.inf, -math.inf), maxlen=2)
        """When the last two terms ended that another node took with the lock in this daemon's hands."""

    @property
    def is_contested(self) -> bool:
        """Whether a node that does not ask this ZooKeeper for the lock takes the shard again and again."""
        return asyncio.get_running_loop().time() - self._taken_at[0] < CONTESTED_SECONDS

    @property
    def leader(self) -> ShardLeader | None:
        """The leader of this daemon's term; None: it does not lead."""
        return self.term.leader

    @property
    def waits_to_restore(self) -> bool:
        """Whether a term waits for a state whose decoding has not begun."""
        follower = self.follower
        return self.leadership.role is Role.CATCHING_UP and not follower.state.chunk and not follower.restoring

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
            transfer.done.set_result(f"daemon {self._context.instance!r} does not lead shard {self.shard}")
        else:
            self.transfer = transfer
            self.post(Event.TRANSFER_REQUESTED)
        return transfer.done

    async def run(self) -> None:
        """Follow, contend and lead until a requested stop is complete."""
        async with asyncio.TaskGroup() as tasks:
            tail = tasks.create_task(self.follower.run(), name=f"tail-{self.shard}")
            self._context.elections.contend(self.shard)
            while self.leadership.role is not Role.STOPPED:
                event = await self._events.get()
                before = self.leadership
                if event is Event.NUMBER_TAKEN and before.role is Role.LEADING and not yields_to_contender(before):
                    self._taken_at.append(asyncio.get_running_loop().time())
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
                self.term.start(tasks)
            case Action.SERVE:
                self.term.serve(tasks)
            case Action.END_TERM:
                orderly = event in (Event.SUCCESSOR_READY, Event.STOP_REQUESTED)
                await self.term.end("handover" if orderly else event.value)
            case Action.HAND_OVER:
                if self.transfer is not None and event is Event.SUCCESSOR_READY:
                    self.transfer.end_wait()
                    self.transfer.stopped_at = asyncio.get_running_loop().time()
                await self.term.hand_over()
            case Action.NOMINATE | Action.PASS_ON | Action.PASS_OVER | Action.FORGET:
                self._perform_transfer(action, tasks)
            case Action.PREPARE:
                self._stop_preparing()
                self._context.standby.nominated(self.shard)
                self._preparing = tasks.create_task(self._prepare(), name=f"prepare-{self.shard}")
            case Action.WITHDRAW:
                if self._contending is not None:
                    self._contending.cancel()
                self._context.elections.withdraw(self.shard)
            case Action.CONTEND:
                self._contending = tasks.create_task(self._contend(), name=f"contend-{self.shard}")

    async def _contend(self) -> None:
        attempts = self.term.attempts
        await asyncio.sleep(CONTEND_BACKOFF.bound_seconds(attempts - 1) if attempts else 0)
        self.term.attempts += 1
        self._context.elections.contend(self.shard)

    def _follows(self) -> bool:
        """Return whether to read the ledger as a follower. A successor that prepares reads it more often.

        It must keep the state whatever the memory for followed states permits.
        """
        prepares = self._preparing is not None and not self._preparing.done()
        return self.leadership.role in (Role.FOLLOWING, Role.FAILED) and self.leader is None and not prepares

    async def _prepare(self) -> None:
        """Keep up with the ledger as closely as possible until this daemon gets the lock, and confirm it once.

        Without the broker, or a store that accepts writes, it does not confirm: clients would wait until it can lead.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSFER_TIMEOUT_SECONDS
        problem: str | None = "the ledger was not read in time"
        try:
            while loop.time() < deadline:
                async with self.follower.reading:
                    if self.leadership.role not in (Role.FOLLOWING, Role.FAILED) or self.leader is not None:
                        problem = None
                        return
                    if self.follower.fault is None:
                        await self.follower.apply_new_chunks()
                    else:  # It may have been repaired since.
                        await self.follower.catch_up()
                        self.follower.recover()
                if problem is not None:
                    problem = self._context.unready()
                    if problem is None:
                        self._context.elections.confirm(self.shard)
                await asyncio.sleep(PREPARE_INTERVAL_SECONDS)
        except (StoreUnavailableError, LedgerError) as error:
            problem = str(error)
        finally:  # Also when the leader withdraws the nomination: its log refers to this line.
            if problem is not None:
                self._log.warning("transfer.not_prepared", reason=problem)

    def _stop_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()

    def _perform_transfer(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        transfer, leader = self.transfer, self.leader
        assert transfer is not None, "no transfer"
        if action is Action.NOMINATE:
            self._context.elections.nominate(self.shard, transfer.successor)
            transfer.wait()
        elif action is Action.PASS_ON:
            assert leader is not None, "no term to follow"
            self._context.elections.pass_on(self.shard, fixed=transfer.reason == "operator")
            tail = TermTail(leader.commit.durable, leader.leader_epoch, self._context.instance)
            transfer.wait(tasks.create_task(self._follow_term(transfer, tail), name=f"successor-{self.shard}"))
        elif action is Action.PASS_OVER:
            # A daemon that cannot read the ledger must not disturb a successor that leads.
            if transfer.sees_terms:
                self._log.warning("transfer.passed_over", successor=transfer.successor)
                self._context.elections.pass_over(self.shard, transfer.successor)
        else:
            self._context.elections.nominate(self.shard, "")

    async def _follow_term(self, transfer: Transfer, tail: TermTail) -> None:
        """Report the term that follows the one of ``tail``. The transfer limits the wait."""
        ended = tail.leader_epoch
        while tail.leader_epoch == ended:
            await asyncio.sleep(FOLLOW_INTERVAL_SECONDS)
            with suppress(StoreUnavailableError, LedgerError):  # the follower reports them.
                await tail.read(self._context.ledger)
                transfer.read_at = asyncio.get_running_loop().time()
        self.follower.record_progress(1, tail)
        self.post(Event.TERM_FOLLOWED)

    def _end_transfer(self, event: Event) -> None:
        transfer, self.transfer = self.transfer, None
        if transfer is None:
            return
        transfer.end_wait()
        problem = transfer.problem(event, self.follower.end.leader_instance)
        now = asyncio.get_running_loop().time()
        seconds = 0.0 if transfer.stopped_at is None else now - transfer.stopped_at
        self._context.observer.observe(
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
