"""Who leads a shard, as a table: what each event obliges one contender to do.

Every transition stands in `TRANSITIONS`; an event that a state does not list changes nothing. Nothing here knows of
ZooKeeper, MQTT, chunks or time.

The rules:

1. The lock says who may try. Creating the reign chunk is what makes a leader.
2. A taken number or an unknown outcome ends a reign at once: what was in memory may no longer be the truth.
3. So does a broker or store that stays out of reach: a leader that cannot serve leaves the shard to one that can.
4. Losing ZooKeeper ends nothing: every reply waits for a put-if-absent that a newer reign would have taken. But a
   leader without contact, or without the lock, makes room, so that a contender can win a number.
5. Whoever ends a reign lets go of the lock before contending again, so that others get their turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Role(StrEnum):
    """What this daemon is for one shard."""

    FOLLOWING = "following"
    CATCHING_UP = "catching_up"
    LEADING = "leading"
    STOPPED = "stopped"


class Event(StrEnum):
    """What happened to it."""

    LOCK_ACQUIRED = "lock_acquired"
    LOCK_LOST = "lock_lost"
    CONTACT_LOST = "contact_lost"
    CONTACT_REGAINED = "contact_regained"
    TERM_STARTED = "term_started"
    NUMBER_TAKEN = "number_taken"
    OUTCOME_UNKNOWN = "outcome_unknown"
    STORE_UNREACHABLE = "store_unreachable"
    BROKER_UNREACHABLE = "broker_unreachable"
    STOP_REQUESTED = "stop_requested"


class Action(StrEnum):
    """What it must do now, in the order given."""

    CATCH_UP = "catch_up"
    """Read the ledger to its end and write the reign chunk."""
    SERVE = "serve"
    """Announce itself and take requests."""
    END_TERM = "end_term"
    """Stop taking requests; throw away what is not durable."""
    HAND_OVER = "hand_over"
    """Commit what was accepted, then stop taking requests."""
    WITHDRAW = "withdraw"
    """Give up the lock, or the place in the queue for it."""
    CONTEND = "contend"
    """Queue for the lock."""


_STEP_DOWN = (Action.END_TERM, Action.WITHDRAW, Action.CONTEND)
_RETRY = (Action.WITHDRAW, Action.CONTEND)

TRANSITIONS: dict[Role, dict[Event, tuple[Role, tuple[Action, ...]]]] = {
    Role.FOLLOWING: {
        Event.LOCK_ACQUIRED: (Role.CATCHING_UP, (Action.CATCH_UP,)),
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.WITHDRAW,)),
    },
    Role.CATCHING_UP: {
        Event.TERM_STARTED: (Role.LEADING, (Action.SERVE,)),
        # The last reign was not quite over: read what it wrote, and try the next number.
        Event.NUMBER_TAKEN: (Role.CATCHING_UP, (Action.CATCH_UP,)),
        # Ours may be the reign chunk that was written, or not: reading on tells, under a later epoch.
        Event.OUTCOME_UNKNOWN: (Role.FOLLOWING, _RETRY),
        Event.STORE_UNREACHABLE: (Role.FOLLOWING, _RETRY),
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.END_TERM, Action.WITHDRAW)),
    },
    Role.LEADING: {
        Event.NUMBER_TAKEN: (Role.FOLLOWING, _STEP_DOWN),
        Event.OUTCOME_UNKNOWN: (Role.FOLLOWING, _STEP_DOWN),
        Event.STORE_UNREACHABLE: (Role.FOLLOWING, _STEP_DOWN),
        Event.BROKER_UNREACHABLE: (Role.FOLLOWING, _STEP_DOWN),
        Event.STOP_REQUESTED: (Role.STOPPED, (Action.HAND_OVER, Action.WITHDRAW)),
    },
    Role.STOPPED: {},
}


@dataclass(frozen=True, slots=True)
class Leadership:
    """Where one contender stands."""

    role: Role = Role.FOLLOWING
    holds_lock: bool = False
    in_contact: bool = True

    @property
    def yields_to_contender(self) -> bool:
        """Whether a leader must pause between its commits for whoever may be entitled to the next number."""
        return self.role is Role.LEADING and not (self.holds_lock and self.in_contact)

    def on(self, event: Event) -> tuple[Leadership, tuple[Action, ...]]:
        """Return where ``event`` leads to, and what must be done."""
        known = replace(
            self,
            holds_lock=_flag(event, Event.LOCK_ACQUIRED, Event.LOCK_LOST, self.holds_lock),
            in_contact=_flag(event, Event.CONTACT_REGAINED, Event.CONTACT_LOST, self.in_contact),
        )
        role, actions = TRANSITIONS[self.role].get(event, (self.role, ()))
        if Action.WITHDRAW in actions:
            known = replace(known, holds_lock=False)
        return replace(known, role=role), actions


def _flag(event: Event, sets: Event, clears: Event, before: bool) -> bool:
    return True if event is sets else False if event is clears else before
