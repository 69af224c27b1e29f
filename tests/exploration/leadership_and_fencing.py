"""Daemons that contend for one shard: the transition table of leadership, a lock service and a ledger.

The code is the product's: `Leadership` and its table. The lock service, the ledger and what a daemon does for an action
are models:

1. The lock service has a queue. It may end a daemon's session at any time; the daemon learns it later, or leads on.
2. The ledger has numbered chunks. Creating a number that exists fails. A write may take effect after its result is lost,
   and after its daemon has stopped leading.
3. A daemon has one write in flight: its term chunk, or a chunk with a request. It replies when the write has succeeded.
4. A daemon learns of everything by events, in the order in which they happened to it, and at any later time.
5. A daemon may find damage when it reads the ledger, or an old chunk missing while it leads.
6. A daemon may leave its term to the other one before it has read the ledger.
7. A leader may be asked for a transfer to the other daemon, which confirms when it has prepared. The leader may give up,
   and does so when it learns that the other daemon has left the queue. After it has passed the lock on it looks for the
   term of the other daemon.

Promises: what was replied to is in the ledger, once and under the term that replied; the chunks of a term follow its
term chunk without a chunk of another term between them; a handover discards no request; once faults end, one daemon leads and can
commit, and every daemon contends or has stopped as it was asked to, with nothing under way; then a transfer succeeds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from controller.leadership.policy.transitions import TRANSITIONS, Action, Event, Leadership, Role, Transitions
from tests.simulation.broken_promise import BrokenPromiseError

SETTLING_STEPS = 60


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the environment may do each of its worst, and how many requests there are."""

    requests: int = 1
    expired_sessions: int = 1
    lost_contacts: int = 0
    lost_results: int = 1
    unreadable: int = 0
    lost_stores: int = 0
    lost_brokers: int = 0
    stops: int = 0
    left_terms: int = 0
    transfers: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    daemon: str
    epoch: int
    request: int | None
    """None: the term chunk."""


@dataclass
class Daemon:
    """One process."""

    leadership: Leadership = field(default_factory=Leadership)
    events: list[Event] = field(default_factory=list)
    contends: bool = True
    reads: bool = False
    """It has been asked to catch up, and has not read yet."""
    head: int = 0
    """The newest chunk that it has read or written."""
    epoch: int = 0
    serving: bool = False
    in_term: bool = False
    """It serves, or has not yet ended a term that failed."""
    put: tuple[int, Chunk] | None = None
    """The write in flight."""
    stored: bool | None = None
    """Its effect, which the daemon does not know yet."""
    late: list[tuple[int, Chunk]] = field(default_factory=list)
    """Writes that it no longer waits for, and that may still take effect."""
    unreadable: bool = False
    lost_contact: bool = False
    stop_requested: bool = False
    nominates: bool = False
    """It waits for the other daemon to confirm, and may give up."""
    awaits: bool = False
    """It has passed the lock on, and waits for the term of the other daemon, and may give up."""
    prepares: bool = False
    """It was asked to confirm."""


class LeadershipAndFencing:
    """Two daemons and one shard. A `tests.exploration.search.Model`."""

    def __init__(self, budget: Budget, table: Transitions = TRANSITIONS) -> None:
        self._budget = budget
        self._table = table
        self._tries_transfers = budget.transfers > 0
        self._requests = 0
        self._ledger: list[Chunk] = []
        self._queue: list[str] = []
        self._daemons = {"a": Daemon(), "b": Daemon()}
        self._replied: set[tuple[int, int]] = set()
        """(request, epoch)."""
        for name in self._daemons:
            self._join(name)

    # The search

    def choices(self) -> Sequence[str]:
        found: list[str] = []
        for name, daemon in self._daemons.items():
            budget, leads = self._budget, daemon.leadership.role is Role.LEADING and daemon.serving
            possible = {
                "learns": bool(daemon.events),
                "reads": daemon.reads,
                "finds damage": (leads or daemon.reads) and budget.unreadable > 0,
                "leaves its term": daemon.reads and budget.left_terms > 0 and len(self._queue) > 1,
                "can read again": daemon.unreadable,
                "writes": leads and daemon.put is None and budget.requests > 0,
                "takes effect": daemon.put is not None and daemon.stored is None,
                "gets the result": daemon.stored is not None,
                "loses the result": daemon.put is not None and budget.lost_results > 0,
                "takes effect late": bool(daemon.late),
                "loses its session": name in self._queue and budget.expired_sessions > 0,
                "is asked for a transfer": leads and budget.transfers > 0 and len(self._queue) > 1,
                "confirms": daemon.prepares,
                "gives up its successor": daemon.nominates or daemon.awaits,
                "sees the next term": daemon.awaits and self._ledger[-1].daemon != name,
                "queues again": daemon.contends and name not in self._queue,
                "loses contact": not daemon.lost_contact and budget.lost_contacts > 0,
                "has contact again": daemon.lost_contact,
                "loses the store": (leads or daemon.reads) and budget.lost_stores > 0,
                "loses the broker": leads and budget.lost_brokers > 0,
                "is stopped": daemon.leadership.role is not Role.STOPPED and budget.stops > 0,
            }
            found += [f"{name} {what}" for what, is_possible in possible.items() if is_possible]
        return found

    def take(self, choice: str) -> None:
        name, _, what = choice.partition(" ")
        daemon = self._daemons[name]
        match what:
            case "learns":
                self._learn(name, daemon, daemon.events.pop(0))
            case "reads":
                daemon.reads = False
                daemon.head, newest = len(self._ledger), self._ledger[-1:]
                daemon.epoch = newest[0].epoch + 1 if newest else 1
                daemon.put = daemon.head + 1, Chunk(name, daemon.epoch, None)
            case "leaves its term":
                self._spend("left_terms")
                daemon.events.append(Event.TERM_LEFT)
            case "can read again":
                daemon.unreadable = False
                daemon.events.append(Event.LEDGER_READABLE)
            case "writes":
                self._spend("requests")
                self._requests += 1
                daemon.put = daemon.head + 1, Chunk(name, daemon.epoch, self._requests)
            case "takes effect":
                assert daemon.put is not None, "no write is in flight"
                daemon.stored = self._create(*daemon.put)
            case "takes effect late":
                self._create(*daemon.late.pop(0))
            case "gets the result":
                self._finish(daemon)
            case "is asked for a transfer":
                self._spend("transfers")
                daemon.events.append(Event.TRANSFER_REQUESTED)
            case "confirms":
                daemon.prepares = False
                if self._other(name).nominates:
                    self._other(name).events.append(Event.SUCCESSOR_READY)
            case "gives up its successor":
                daemon.nominates = daemon.awaits = False
                daemon.events.append(Event.TRANSFER_ABANDONED)
            case "sees the next term":
                daemon.awaits = False
                daemon.events.append(Event.TERM_FOLLOWED)
            case "queues again":
                self._join(name)
            case "has contact again":
                daemon.lost_contact = False
                daemon.events.append(Event.CONTACT_REGAINED)
            case _:
                self._suffer(name, daemon, what)
        self._check()

    def _suffer(self, name: str, daemon: Daemon, fault: str) -> None:
        match fault:
            case "finds damage":
                self._spend("unreadable")
                self._forget_write(daemon)
                daemon.serving, daemon.reads, daemon.unreadable = False, False, True
                daemon.events.append(Event.LEDGER_UNREADABLE)
            case "loses the result":
                self._spend("lost_results")
                self._forget_write(daemon)
                daemon.serving = False
                daemon.events.append(Event.OUTCOME_UNKNOWN)
            case "loses its session":
                self._spend("expired_sessions")
                self._leave(name)
                daemon.events.append(Event.LOCK_LOST)
            case "loses contact":
                self._spend("lost_contacts")
                daemon.lost_contact = True
                daemon.events.append(Event.CONTACT_LOST)
            case "loses the store" | "loses the broker":
                lost_store = fault == "loses the store"
                self._spend("lost_stores" if lost_store else "lost_brokers")
                self._forget_write(daemon)
                daemon.serving = daemon.reads = False
                daemon.events.append(Event.STORE_UNREACHABLE if lost_store else Event.BROKER_UNREACHABLE)
            case "is stopped":
                self._spend("stops")
                daemon.stop_requested = True
                daemon.events.append(Event.STOP_REQUESTED)

    def key(self) -> Hashable:
        return (
            self._budget,
            tuple(self._ledger),
            tuple(self._queue),
            frozenset(self._replied),
            tuple(repr(each) for each in self._daemons.values()),
        )

    def check_end(self) -> None:
        """End the faults: daemons learn everything, writes end, and a leader commits one more request."""
        self._budget = Budget(requests=1, expired_sessions=0, lost_results=0)
        self._settle()
        for name, daemon in self._daemons.items():
            if daemon.stop_requested is not (daemon.leadership.role is Role.STOPPED):
                raise BrokenPromiseError(f"daemon {name} is {daemon.leadership.role.value} after a request to stop")
        alive = [each for each in self._daemons.values() if each.leadership.role is not Role.STOPPED]
        if not all(each.contends for each in alive):
            raise BrokenPromiseError("a daemon does not contend any more, and was not stopped")
        leaders = [each for each in alive if each.leadership.role is Role.LEADING and each.serving]
        if alive and not leaders:
            raise BrokenPromiseError(f"no daemon leads: {[each.leadership.role.value for each in alive]}")
        if alive and self._budget.requests:
            raise BrokenPromiseError("no leader has committed the last request")
        self._check_waits()
        if self._tries_transfers and len(alive) > 1:
            self._check_transfers(leaders[0])

    def _check_waits(self) -> None:
        if any(each.leadership.transferring for each in self._daemons.values()):
            raise BrokenPromiseError("a daemon waits for a successor, and nothing ends the wait")

    def _check_transfers(self, leader: Daemon) -> None:
        """Transfer the shard to the other daemon and back; each of them commits a request. One sees no later term."""
        for unseen in ("", "sees the next term"):
            leader.events.append(Event.TRANSFER_REQUESTED)
            self._settle(unseen)
            self._check_waits()
            self._budget = replace(self._budget, requests=1)
            self._settle()
            (successor,) = (each for each in self._daemons.values() if each is not leader)
            if successor.leadership.role is not Role.LEADING or not successor.serving or self._budget.requests:
                raise BrokenPromiseError("a transfer has made no other daemon the leader")
            leader = successor

    def _settle(self, without: str = "") -> None:
        """Take all steps that are not faults. No daemon gives up before the other one had the time to confirm."""
        for _ in range(SETTLING_STEPS):
            possible = [each for each in self.choices() if not without or not each.endswith(without)]
            choices = sorted(possible, key=lambda choice: choice.endswith("gives up its successor"))
            if not choices:
                break
            self.take(choices[0])

    # Daemons

    def _spend(self, name: str) -> None:
        self._budget = replace(self._budget, **{name: getattr(self._budget, name) - 1})

    def _learn(self, name: str, daemon: Daemon, event: Event) -> None:
        before, in_flight = daemon.leadership, daemon.put
        orderly = before.role is Role.LEADING and daemon.serving
        daemon.leadership, actions = before.on(event, self._table)
        for action in actions:
            self._perform(action, name, daemon)
        daemon.awaits = daemon.awaits and daemon.leadership.transferring
        if orderly and event in (Event.STOP_REQUESTED, Event.SUCCESSOR_READY) and in_flight in daemon.late:
            raise BrokenPromiseError(f"daemon {name} has discarded a request in a handover")
        if event is Event.TERM_LEFT and before.role is Role.CATCHING_UP and (daemon.reads or self._queue[0] == name):
            raise BrokenPromiseError(f"daemon {name} has not left its term to the daemon that waits")
        if event is Event.LOCK_LOST and before.role is Role.CATCHING_UP and (daemon.reads or daemon.put is not None):
            raise BrokenPromiseError(f"daemon {name} continues to begin a term after it has lost the lock")
        if event is Event.SUCCESSOR_LEFT and before.transferring and daemon.nominates:
            raise BrokenPromiseError(f"daemon {name} waits for a successor that has left the queue")
        if daemon.leadership.role is Role.STOPPED and daemon.in_term:
            raise BrokenPromiseError(f"daemon {name} has stopped, and has not ended its term")
        if daemon.leadership.role is Role.STOPPED and (daemon.reads or daemon.put is not None or name in self._queue):
            raise BrokenPromiseError(f"daemon {name} has stopped, and has not finished or left the queue")

    def _perform(self, action: Action, name: str, daemon: Daemon) -> None:
        match action:
            case Action.CATCH_UP:
                self._forget_write(daemon)
                daemon.reads = True
            case Action.SERVE:
                if daemon.in_term:
                    raise BrokenPromiseError(f"daemon {name} begins a term before it has ended the last one")
                daemon.serving = daemon.in_term = True
            case Action.END_TERM:
                self._end_term(daemon)
            case Action.HAND_OVER:
                if daemon.put is not None:
                    daemon.stored = self._create(*daemon.put) if daemon.stored is None else daemon.stored
                    self._finish(daemon)
                daemon.serving = False
            case Action.WITHDRAW:
                daemon.contends = False
                self._leave(name)
            case Action.NOMINATE:
                daemon.nominates = True
                if len(self._queue) > 1:
                    self._other(name).events.append(Event.NOMINATED)
            case Action.PREPARE:
                daemon.prepares = True
            case Action.PASS_OVER:
                sees_no_term = self._ledger[-1].daemon == name
                if sees_no_term and not daemon.lost_contact and self._queue[0] != name and name in self._queue:
                    self._other(name).events.append(Event.LOCK_LOST)
                    self._queue.reverse()
                    self._report_first(name)
            case Action.FORGET:
                daemon.nominates = False
            case Action.PASS_ON:
                daemon.contends, daemon.awaits = False, True
                self._leave(name)
            case Action.CONTEND:
                daemon.contends = True
                self._join(name)

    def _end_term(self, daemon: Daemon) -> None:
        daemon.serving = daemon.reads = daemon.in_term = daemon.nominates = False
        self._forget_write(daemon)

    def _forget_write(self, daemon: Daemon) -> None:
        if daemon.put is not None and daemon.stored is None:
            daemon.late.append(daemon.put)
        daemon.put = daemon.stored = None

    def _finish(self, daemon: Daemon) -> None:
        assert daemon.put is not None, "a result without a write"
        (number, chunk), stored = daemon.put, daemon.stored
        daemon.put = daemon.stored = None
        if not stored:
            daemon.serving = False
            daemon.events.append(Event.NUMBER_TAKEN)
            return
        daemon.head = number
        if chunk.request is None:
            daemon.events.append(Event.TERM_STARTED)
        else:
            self._replied.add((chunk.request, chunk.epoch))

    # The lock service and the ledger

    def _other(self, name: str) -> Daemon:
        return self._daemons["b" if name == "a" else "a"]

    def _join(self, name: str) -> None:
        if name not in self._queue:
            self._queue.append(name)
            self._report_first(name)

    def _leave(self, name: str) -> None:
        if name in self._queue:
            was_first = self._queue[0] == name
            self._queue.remove(name)
            if was_first and self._queue:
                self._report_first(self._queue[0])
            if self._other(name).nominates:
                self._other(name).events.append(Event.SUCCESSOR_LEFT)

    def _report_first(self, name: str) -> None:
        if self._queue[0] == name:
            self._daemons[name].events.append(Event.LOCK_ACQUIRED)

    def _create(self, number: int, chunk: Chunk) -> bool:
        if number != len(self._ledger) + 1:
            return False
        self._ledger.append(chunk)
        return True

    def _check(self) -> None:
        epoch, owner, requests = 0, "", set[int]()
        for number, chunk in enumerate(self._ledger, 1):
            if chunk.request is None:
                if chunk.epoch <= epoch:
                    raise BrokenPromiseError(f"chunk {number} starts term {chunk.epoch} after term {epoch}")
                epoch, owner = chunk.epoch, chunk.daemon
                continue
            if (chunk.epoch, chunk.daemon) != (epoch, owner):
                raise BrokenPromiseError(f"chunk {number} is of term {chunk.epoch}, within term {epoch}")
            requests.add(chunk.request)
        lost = {request for request, _ in self._replied} - requests
        if lost:
            raise BrokenPromiseError(f"requests {sorted(lost)} were replied to, and are not in the ledger")
