"""Leadership of a shard as a transition table. Pure.

An event that a state does not list has no effect.

1. The lock decides which daemon may try. Creating the term chunk makes it the leader.
2. The events that end a term, or an attempt to start one, are those of `controller.leadership.policy.safety`.
3. Losing ZooKeeper does not end it: each reply waits for a put-if-absent, which fails if a newer term exists.
4. After a term the daemon releases the lock before it contends again.
5. A daemon that cannot read the ledger does not contend until it can: another may have another disk
   or network. No daemon writes after an object that it cannot read.
6. A transfer begins with the nomination of a successor. The leader serves until the successor has read
   the ledger and reaches the broker; then it commits what it has accepted, and passes the lock on to it. If the
   successor is not ready in time, or leaves, the leader continues. The transfer is complete when the successor's term
   is in the ledger. It has failed if that does not happen in time, if another term follows, or if the lock comes back.
   A successor that is not in time may be frozen while its session lives, so the lock passes to the one behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self


class Role(StrEnum):
    FOLLOWING = "following"
    CATCHING_UP = "catching_up"
    LEADING = "leading"
    FAILED = "failed"
    """An object of the ledger is damaged, foreign or missing; it is read again with pauses."""
    STOPPED = "stopped"


class Event(StrEnum):
    LOCK_ACQUIRED = "lock_acquired"
    LOCK_LOST = "lock_lost"
    CONTACT_LOST = "contact_lost"
    CONTACT_REGAINED = "contact_regained"
    TERM_LEFT = "term_left"
    """The term has not begun, and another daemon can begin it earlier."""
    TERM_STARTED = "term_started"
    NUMBER_TAKEN = "number_taken"
    OUTCOME_UNKNOWN = "outcome_unknown"
    STORE_UNREACHABLE = "store_unreachable"
    BROKER_UNREACHABLE = "broker_unreachable"
    LEDGER_UNREADABLE = "ledger_unreadable"
    LEDGER_READABLE = "ledger_readable"
    NOMINATED = "nominated"
    """The leader intends to transfer the shard to this daemon."""
    TRANSFER_REQUESTED = "transfer_requested"
    SUCCESSOR_READY = "successor_ready"
    SUCCESSOR_LEFT = "successor_left"
    TRANSFER_ABANDONED = "transfer_abandoned"
    """The successor is not ready in time, or its term has not begun in time."""
    TERM_FOLLOWED = "term_followed"
    """After this daemon has passed the lock on, the ledger contains a later term."""
    STOP_REQUESTED = "stop_requested"


class Action(StrEnum):
    CATCH_UP = "catch_up"
    """Read the ledger to its end and write the term chunk."""
    SERVE = "serve"
    """Announce the leader and accept requests."""
    END_TERM = "end_term"
    """Stop accepting requests; discard what is not durable."""
    HAND_OVER = "hand_over"
    """Stop accepting requests and commit the accepted ones."""
    WITHDRAW = "withdraw"
    """Release the lock, or leave the queue for it."""
    PASS_ON = "pass_on"  # noqa: S105 - a lock
    """Release the lock to the nominated successor."""
    CONTEND = "contend"
    """Queue for the lock."""
    PREPARE = "prepare"
    """Read the ledger without pauses, and confirm that this daemon is ready."""
    NOMINATE = "nominate"
    """Ask the successor to prepare, and limit the time for it."""
    PASS_OVER = "pass_over"  # noqa: S105 - a lock
    """Let the contender behind the successor be the first one."""
    FORGET = "forget"


_STEP_DOWN = (Action.END_TERM, Action.WITHDRAW, Action.CONTEND)
_RETRY = (Action.WITHDRAW, Action.CONTEND)
_OF_A_TRANSFER = (Event.SUCCESSOR_READY, Event.SUCCESSOR_LEFT, Event.TRANSFER_ABANDONED, Event.TERM_FOLLOWED)

Transitions = Mapping[Role, Mapping[Event, tuple[Role, tuple[Action, ...]]]]

TRANSITIONS: Transitions = {
    Role.FOLLOWING: {
        Event.LOCK_ACQUIRED: (Role.CATCHING_UP, (Action.CATCH_UP,)),
        Event.NOMINATED: (Role.FOLLOWING, (Action.PREPARE,)),
        Event.TERM_FOLLOWED: (Role.FOLLOWING, (Action.FORGET,)),
        Event.TRANSFER_ABANDONED: (Role.FOLLOWING, (Action.PASS_OVER, Action.FORGET)),
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.WITHDRAW,)),
    },
    Role.CATCHING_UP: {
        Event.TERM_STARTED: (Role.LEADING, (Action.SERVE,)),
        # The previous term was still writing: read its chunks and try the next number.
        Event.NUMBER_TAKEN: (Role.CATCHING_UP, (Action.CATCH_UP,)),
        # The term chunk may or may not exist: read on, and lead under a later epoch.
        Event.OUTCOME_UNKNOWN: (Role.FOLLOWING, _RETRY),
        Event.STORE_UNREACHABLE: (Role.FOLLOWING, _RETRY),
        Event.LEDGER_UNREADABLE: (Role.FAILED, (Action.WITHDRAW,)),
        Event.TERM_LEFT: (Role.FOLLOWING, _STEP_DOWN),
        Event.LOCK_LOST: (Role.FOLLOWING, (Action.END_TERM,)),  # It has queued again.
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.END_TERM, Action.WITHDRAW)),
    },
    Role.LEADING: {
        Event.NUMBER_TAKEN: (Role.FOLLOWING, _STEP_DOWN),
        Event.OUTCOME_UNKNOWN: (Role.FOLLOWING, _STEP_DOWN),
        Event.STORE_UNREACHABLE: (Role.FOLLOWING, _STEP_DOWN),
        Event.BROKER_UNREACHABLE: (Role.FOLLOWING, _STEP_DOWN),
        # An old chunk is missing, which is looked for during the term.
        Event.LEDGER_UNREADABLE: (Role.FAILED, (Action.END_TERM, Action.WITHDRAW)),
        Event.TRANSFER_REQUESTED: (Role.LEADING, (Action.NOMINATE,)),
        Event.SUCCESSOR_READY: (Role.FOLLOWING, (Action.HAND_OVER, Action.PASS_ON, Action.END_TERM, Action.CONTEND)),
        Event.SUCCESSOR_LEFT: (Role.LEADING, (Action.FORGET,)),
        Event.TRANSFER_ABANDONED: (Role.LEADING, (Action.FORGET,)),
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.HAND_OVER, Action.WITHDRAW, Action.END_TERM)),
    },
    Role.FAILED: {Event.LEDGER_READABLE: (Role.FOLLOWING, (Action.CONTEND,)), Event.STOP_REQUESTED: (Role.STOPPED, ())},
    Role.STOPPED: {},
}


@dataclass(frozen=True, slots=True)
class Leadership:
    role: Role = Role.FOLLOWING
    holds_lock: bool = False
    in_contact: bool = True
    transferring: bool = False
    """This daemon has nominated a successor, whose term is not in the ledger yet."""

    def on(self, event: Event, table: Transitions = TRANSITIONS) -> tuple[Self, tuple[Action, ...]]:
        """Return the state after ``event``, and the actions to perform in order."""
        if event in _OF_A_TRANSFER and not self.transferring:
            return self, ()  # It belongs to an earlier transfer.
        known = replace(
            self,
            holds_lock=_flag(event, Event.LOCK_ACQUIRED, Event.LOCK_LOST, self.holds_lock),
            in_contact=_flag(event, Event.CONTACT_REGAINED, Event.CONTACT_LOST, self.in_contact),
        )
        role, actions = table[self.role].get(event, (self.role, ()))
        if Action.WITHDRAW in actions or Action.PASS_ON in actions:
            known = replace(known, holds_lock=False)
        stays = Action.FORGET not in actions and (role is self.role or Action.PASS_ON in actions)
        transferring = Action.NOMINATE in actions or (self.transferring and stays)
        return replace(known, role=role, transferring=transferring), actions


def _flag(event: Event, sets: Event, clears: Event, before: bool) -> bool:
    return event is sets or (before and event is not clears)


class ShardLeaders:
    """Which shards have a leader now, as one daemon knows it.

    A shard has a leader if this daemon leads it, or if the daemon that holds its lock is the one that started the
    newest term in the ledger. The term alone does not suffice: it outlives its leader. Neither does the lock: its
    holder may be unable to start a term. Announcements are not considered: any program that can publish to their
    topic can forge one.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._holders: dict[int, str] = {}

    def lock_held(self, shard: int, instance: str) -> None:
        self._holders[shard] = instance

    def leader_of(self, shard: int, role: Role, leader: str) -> str | None:
        """Return the daemon that leads ``shard``, if one does; the arguments are those of `without_leader`."""
        if role is Role.LEADING:
            return self._instance
        if role is Role.FAILED:
            return self._holders.get(shard)
        return leader if self._reason(shard, role, leader) is None else None

    def without_leader(self, shards: Sequence[tuple[Role, str]]) -> dict[int, str]:
        """Return the shards without a leader, with the reason.

        ``shards``: for each, the role of this daemon, and the instance of the newest term that it has
        read in the ledger. A daemon that cannot read the ledger of a shard does not contend for it, and does not know.
        """
        return {
            shard: reason
            for shard, (role, leader) in enumerate(shards)
            if role not in (Role.LEADING, Role.FAILED) and (reason := self._reason(shard, role, leader)) is not None
        }

    def _reason(self, shard: int, role: Role, leader: str) -> str | None:
        holder = self._holders.get(shard)
        if holder is None:
            return "no daemon is known to hold its lock in ZooKeeper"
        if holder == self._instance:
            known = "holds its lock and has begun no term" if role is Role.CATCHING_UP else "has given its lock up"
            return f"this daemon {known}: see its log"
        if leader == holder:
            return None
        return f"daemon {holder!r} holds its lock, and this daemon has read no term of it: see the log of that daemon"
