"""Decides what ends a term, when none may begin, and when a leader pauses: the rules of leadership safety. Pure.

A chunk is created by put-if-absent, so each number has one writer. One daemon leads at a time if every daemon follows
these rules; `controller.leadership.policy.transitions` says what it does after each event.

1. **Number taken.** Another's chunk has the number: another term has begun. A leader's term ends, and nothing more is
   written or sent. A contender reads that chunk, and tries the next number. A daemon's own chunk is recognized by its
   bytes (`headgate.ledger.ledger.Ledger.append`).
2. **Unknown outcome.** A chunk that may or may not exist ends the term, or the attempt to start one: the state in
   memory may be wrong. The next term reads the truth.
3. **Not written.** A leader repeats a write that has certainly not happened, until the limit of rule 7. A contender
   leaves the lock at once: another daemon may reach the store.
4. **A snapshot includes the number.** The numbers of trimmed chunks are free again. A contender that was suspended
   after it had read the end may create one. Trimmed chunks are in a snapshot and the end is not: no term has begun.
5. **A hole or the end.** A missing number is the end if no later chunk exists. Otherwise the chunk was trimmed, and a
   snapshot includes it; or it is a hole, and no daemon writes: a chunk in a hole forks the ledger.
6. **A successor of an idle leader.** An idle leader writes nothing that could find its number taken, so it looks for
   the next chunk: each second while a contender may begin a term, and otherwise with pauses that grow while it is
   idle. The one that it finds is another's if it has written none during the look. If a look has no answer when the
   next one is due, the leader writes an empty chunk instead: rules 1, 2 and 7 limit how long that takes.
7. **Unreachable.** Without the broker, or a store that accepts writes, for longer than ``ingest.unreachable_seconds``
   (15 s), a term ends: another daemon may reach them.
   A contender writes its term chunk once it reaches the broker. When it had to wait, its lock may be another's by now:
   the loss of the lock ends the attempt, and without contact to ZooKeeper it waits on.
8. **Yield to a contender.** Losing ZooKeeper or the lock ends no term. But a contender may be entitled to begin one, so
   the leader pauses between commits, and the contender can create the next number.
"""

from collections.abc import Sequence
from typing import Final

from controller.leadership.policy.transitions import Event, Leadership, Role
from headgate.backoff import Backoff
from headgate.errors import LedgerError, ObjectExistsError, OutcomeUnknownError, StoreUnavailableError

YIELD_SECONDS: Final = 0.5
"""Pause between commits of rule 8: long enough for a contender to read the last chunks and create the next one."""
LOOKS: Final = Backoff(first_seconds=1.0, longest_seconds=240.0, jitter=0)
"""Pauses between looks for the next chunk, by how many have found none (rule 6); a store may charge for each."""
FAILURES: Final = (ObjectExistsError, OutcomeUnknownError, TimeoutError, StoreUnavailableError, LedgerError)
"""How a commit, or an attempt to start a term, may fail; anything else is a bug."""


def failure(error: Exception) -> Event:
    """Return what one of `FAILURES` means (rules 1 to 3); no daemon writes after an object that it cannot read."""
    match error:
        case ObjectExistsError():
            return Event.NUMBER_TAKEN
        case OutcomeUnknownError() | TimeoutError():
            return Event.OUTCOME_UNKNOWN
        case StoreUnavailableError():
            return Event.STORE_UNREACHABLE
    return Event.LEDGER_UNREADABLE


def repeats_write(failed: Event, trying_seconds: float, unreachable_seconds: float) -> bool:
    """Return whether a leader writes the same chunk again (rules 1 to 3)."""
    return failed is Event.STORE_UNREACHABLE and not unreachable_too_long(trying_seconds, unreachable_seconds)


def unreachable_too_long(away_seconds: float, unreachable_seconds: float) -> bool:
    """Return whether the broker or the store was away for too long (rule 7)."""
    return away_seconds > unreachable_seconds


def begins_term(leadership: Leadership, *, reaches_broker: bool, waited: bool) -> bool:
    """Return whether a contender that has read the ledger writes its term chunk (rule 7)."""
    return reaches_broker and (leadership.in_contact or not waited)


def starts_no_term(number: int, snapshots: Sequence[int]) -> bool:
    """Return whether a term chunk that was created has the number of a trimmed one (rule 4)."""
    return any(included >= number for included in snapshots)


def is_end(read_to: int, listed: Sequence[int]) -> bool:
    """Return whether a ledger ends at ``read_to``, if the number after it is missing (rule 5). ``listed`` rises."""
    return not listed or listed[-1] <= read_to


def is_hole(read_to: int, snapshot: int) -> bool:
    """Return whether the number after ``read_to``, missing before the end, is in no snapshot (rule 5)."""
    return snapshot <= read_to


def is_successors(number: int, *, durable: int, idle: bool) -> bool:
    """Return whether a chunk that a leader found is another's (rule 6), by what it has written when it knows."""
    return number == durable + 1 and idle


def look_pause_seconds(looks: int, *, contended: bool) -> float:
    """Return when an idle leader looks again that has looked ``looks`` times since it was busy (rule 6)."""
    return LOOKS.bound_seconds(0 if contended else looks)


def yields_to_contender(leadership: Leadership) -> bool:
    """Return whether a leader pauses between commits (rule 8)."""
    return leadership.role is Role.LEADING and not (leadership.holds_lock and leadership.in_contact)
