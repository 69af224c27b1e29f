"""Number the batches of a producer session, send them, and decide the outcome of each, with its values. Pure.

A batch is queued, then in flight under a sequence, and at last resolved. What is queued is certainly not
stored. A batch is *proven* if a later one is committed: it is durable, and only its offsets are missing.
headgate.client.decisions.producer_session decides when to send, and states the rules. This module applies
those about batches:

* A proven batch whose own reply does not follow shortly is sent again once, then reported without offsets (7).
* Each record has its own deadline; a batch expires with its last record (8). One that cannot be answered
  before its deadline is not sent (14).
* An opening decides every batch in flight: what is not stored returns to the queue, unless a copy of it
  was refused (9).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

from headgate.backoff import Backoff
from headgate.protocol.replies import Committed, Verdict
from headgate.protocol.requests import AnyRequestBody

RETRY_BACKOFF: Final = Backoff(first_seconds=0.025, longest_seconds=1.0, jitter=1.0, shortest_seconds=0.0125)
REMEMBERED_SECONDS: Final = 30.0
"""For this long after an answer no producer is forgotten for being idle: half of the least
``ingest.producer_idle_seconds``."""
OVERDUE_REPLY_SECONDS: Final = 0.25
"""A leader that announces itself again replies within this time to what reached it: longer than most commits take."""
MISSING_REPLY_TIMEOUT_SECONDS: Final = 0.1
"""How long a batch's own reply may arrive after the commit of a later one."""
SHARE: Final = 4
"""What part of the unanswered bytes a batch gets. With 8, the batches of small records hardly grew."""
GROWTH: Final = 16
"""How many times ``batch_bytes`` the largest batch has. A larger one saves little, and stops the loop of a leader."""


class Outcome(StrEnum):
    COMMITTED = "committed"
    FAILED = "failed"
    """Certainly not stored."""
    UNKNOWN = "unknown"
    INVALID = "invalid"
    FENCED = "fenced"
    FORGOTTEN = "forgotten"
    """The named producer was deleted."""


class Sendable(Protocol):
    """A batch that a session can send."""

    @property
    def deadlines(self) -> Sequence[float]:
        """Loop times, ascending, at which the outcomes of its records must be known."""

    @property
    def source(self) -> str | None:
        """The topic in which it moves a source position; None: its records have none."""

    def request(self, *, producer_id: int, producer_epoch: int, sequence: int) -> AnyRequestBody:
        """Return the body of one send. Its other fields are the same in every send."""

    def expire(self, due: float, outcome: Outcome, reason: str) -> None:
        """Receive the outcome of the records with a deadline up to ``due``; others follow.

        FAILED: none of these records is stored, and no request may contain them from now on.
        """

    def resolve(self, outcome: Outcome, reply: Committed | None, reason: str) -> None:
        """Receive the outcome of all records that have none yet. Called exactly once."""


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A producer's name, and which of the programs that used it this one is."""

    name: str
    incarnation: int
    """Rises with each start; the highest one holds the name."""
    secret: str = ""
    """What programs of other users can take over the name with; empty: they cannot."""


@dataclass(frozen=True, slots=True)
class SendBatch:
    batch: Sendable
    request_id: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenIdentity:
    request_id: int
    leader_epoch: int
    token: str
    producer_id: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Report the outcome of ``batch``; with ``reply`` if it is committed and its offsets are known."""

    batch: Sendable
    outcome: Outcome
    reply: Committed | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """Report the outcome of those records of ``batch`` whose deadline is ``due`` or earlier."""

    batch: Sendable
    due: float
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetRequests:
    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Identified:
    """The leader granted an identity. ``created``: the producer did not exist before."""

    created: bool


@dataclass(frozen=True, slots=True)
class IdentityRejected:
    verdict: Verdict
    reason: str


Command = SendBatch | OpenIdentity | Expire | Resolve | ForgetRequests | Identified | IdentityRejected


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Time from a request to its answer, smoothed as in RFC 6298. 0: not measured yet."""

    seconds: float = 0.0

    def measured(self, seconds: float) -> RoundTrip:
        return RoundTrip(self.seconds + (seconds - self.seconds) / 8 if self.seconds else seconds)

    def needed(self, life_seconds: float) -> float:
        """Return how long before its deadline a batch has to be sent. ``life_seconds``: from its offer to its deadline.

        Two round trips, because an answer can be late. At most half of its life, so that a fresh batch is
        always sent and measures again.
        """
        return min(2 * self.seconds, life_seconds / 2)


@dataclass(slots=True, eq=False)
class SessionBatch:
    """One batch. ``sequence`` and ``attempt`` have a meaning once it is in flight."""

    payload: Sendable
    deadlines: deque[float]
    """Those of the records without an outcome, ascending; empty once it is resolved by expiry."""
    life_seconds: float
    """From its offer to its last deadline."""
    source: str | None = None
    sequence: int = 0
    attempt: int = 0
    """The attempt in which it was last sent."""
    sent_at: float = 0.0
    resend_at: float | None = None
    """When a proven batch is sent again; None: it was."""
    request_ids: list[int] = field(default_factory=list)
    """Requests that carried it under its present sequence."""
    refusal: str | None = None
    """Why the leader refused a copy of it for good. Another copy may be stored until the epoch is closed."""
    ever_sent: bool = False
    resolved: bool = False


@dataclass(slots=True)
class SentRequest:
    """A request that may still be answered. ``batch`` None: it asks for the identity."""

    batch: SessionBatch | None
    attempt: int
    leader_epoch: int
    sent_at: float


@dataclass(slots=True)
class LeaderView:
    connected: bool = False
    epoch: int | None = None
    """The epoch of the leader that the client believes in; None: it knows none."""
    window: int = 1

    @property
    def reachable(self) -> bool:
        return self.connected and self.epoch is not None


@dataclass(slots=True)
class Attempt:
    """A sequence of sends to one leader epoch, until a refusal or a loss ends it."""

    number: int = 0
    leader_epoch: int = 0
    failures: int = 0
    retry_at: float = 0.0
    overdue_at: float = math.inf
    """When the attempt ends unless there is a reply, because the leader has announced itself again."""
    refusal: str = ""
    """The last refusal since the last commit, for people."""


@dataclass(slots=True)
class Identity:
    producer: tuple[int, int] | None = None
    """(producer id, producer epoch); None: none was granted yet."""
    open: bool = False
    """Whether another batch can be numbered. Otherwise the identity has to be opened, at its next epoch."""
    token: str | None = None
    wanted: bool = False
    """Requested before there is a batch."""
    requested_at: float = 0.0


class SessionBatches:
    def __init__(self, commands: list[Command], request_ids: Iterator[int], request_timeout_seconds: float) -> None:
        self.in_flight: deque[SessionBatch] = deque()
        """Batches with a sequence and no proof of what became of them, in the order of their sequences. The
        present attempt has sent the first ones. An expired one stays until its attempt has ended."""
        self.proven: list[SessionBatch] = []
        """Rule 7: durable, and their offsets may still arrive."""
        self.queue: deque[SessionBatch] = deque()
        self.next_deadline = math.inf
        """No deadline is earlier; recomputed when it is due, because most batches end long before theirs."""
        self.requests: dict[int, SentRequest] = {}
        """Request id → what it carried; requests that may still be answered."""
        self.round_trip = RoundTrip()
        self.resent = 0
        self.interrupted: dict[str, bool] = {}
        """Topic in which a record with a source position is not known to be stored → whether one may be; rule 15."""
        self._next_sequence = 0
        self._commands = commands
        self._request_ids = request_ids
        self._request_timeout_seconds = request_timeout_seconds

    def all_answered(self, attempt: int) -> bool:
        """Return whether no batch that ``attempt`` has sent waits for its answer."""
        return not self.in_flight or self.in_flight[0].attempt != attempt

    def timeout(self, attempt: int) -> float:
        """Return when the oldest unanswered send of ``attempt`` times out."""
        return math.inf if self.all_answered(attempt) else self.in_flight[0].sent_at + self._request_timeout_seconds

    # Requests

    def add(self, payload: Sendable, deadlines: Sequence[float], now: float, source: str | None = None) -> None:
        """Queue a batch. ``deadlines``, ascending: when the outcomes of its records must be known."""
        batch = SessionBatch(payload, deque(deadlines), deadlines[-1] - now, source)
        if self._is_cut_off(batch):
            return
        self.queue.append(batch)
        self.next_deadline = min(self.next_deadline, deadlines[0])

    def _is_cut_off(self, batch: SessionBatch) -> bool:
        """Return whether rule 15 forbids to send ``batch``, which is then reported."""
        cut_off = batch.source in self.interrupted
        if cut_off:
            reason = (
                "an earlier record of its source was not stored: open the topic again, which says where to continue"
            )
            self._resolve(batch, Outcome.FAILED, reason)
        return cut_off

    def add_request(self, batch: SessionBatch | None, attempt: Attempt, now: float) -> int:
        """Expect the answer to a request that carries ``batch``, or that asks for the identity; return its id."""
        request_id = next(self._request_ids)
        self.requests[request_id] = SentRequest(batch, attempt.number, attempt.leader_epoch, now)
        return request_id

    def measure(self, request: SentRequest, now: float) -> None:
        self.round_trip = self.round_trip.measured(now - request.sent_at)

    def send(self, attempt: Attempt, producer: tuple[int, int], limit: int, now: float) -> None:
        """Send what is due, with at most ``limit`` batches unanswered. ``producer``: its id and epoch."""
        for batch in self.proven:
            if batch.resend_at is not None and now >= batch.resend_at:
                batch.resend_at = None
                self._send(batch, attempt, producer, now)
        if self.in_flight and self.in_flight[-1].attempt != attempt.number:
            for batch in islice(self.in_flight, limit):
                if batch.attempt != attempt.number:
                    self._send(batch, attempt, producer, now)
        while self.queue and len(self.in_flight) < limit:
            batch = self.queue.popleft()
            self._expire_hopeless(batch, now)
            if not batch.resolved:
                batch.sequence = self._next_sequence
                self._next_sequence += 1
                self.in_flight.append(batch)
                self._send(batch, attempt, producer, now)

    def _send(self, batch: SessionBatch, attempt: Attempt, producer: tuple[int, int], now: float) -> None:
        self.resent += batch.ever_sent
        request_id = self.add_request(batch, attempt, now)
        batch.request_ids.append(request_id)
        batch.ever_sent, batch.attempt, batch.sent_at = True, attempt.number, now
        self._commands.append(
            SendBatch(batch.payload, request_id, attempt.leader_epoch, *producer, batch.sequence, attempt.number)
        )

    # Commits

    def commit(self, batch: SessionBatch, reply: Committed, now: float) -> None:
        """Report that ``batch`` is durable; rules 5 to 7."""
        if batch in self.proven:
            self.proven.remove(batch)
        else:
            while (earlier := self.in_flight.popleft()) is not batch:
                self._prove(earlier, now)
        self._settle(batch, reply)

    def _prove(self, batch: SessionBatch, now: float) -> None:
        if batch.resolved:
            self._forget_requests(batch)
        else:
            batch.resend_at = now + MISSING_REPLY_TIMEOUT_SECONDS
            self.proven.append(batch)

    def _settle(self, batch: SessionBatch, reply: Committed | None) -> None:
        self._resolve(batch, Outcome.COMMITTED, reply=reply)
        self._forget_requests(batch)

    def settle_proven(self, now: float = math.inf) -> None:
        """Report the proven batches whose offsets have not arrived by ``now``; rule 7. Default: all of them."""
        late = [x for x in self.proven if now == math.inf or (x.resend_at is None and now >= self.settled_by(x))]
        self.proven = [batch for batch in self.proven if batch not in late]
        for batch in late:
            self._settle(batch, None)

    def settled_by(self, batch: SessionBatch) -> float:
        """Return when to send a proven batch again, or to report it without offsets."""
        return batch.sent_at + self._request_timeout_seconds if batch.resend_at is None else batch.resend_at

    # Deadlines

    def expire(self, now: float, obstacle: str) -> None:
        """Report records whose deadline has passed; rule 8. ``obstacle``: what prevents a commit, for people."""
        for batch in self.in_flight:
            self._expire_records(
                batch, now, Outcome.UNKNOWN, f"the delivery timeout has passed: it was sent; {obstacle}"
            )
        for batch in self.queue:
            past = "no copy of it was stored" if batch.ever_sent else "it was never sent"
            self._expire_records(batch, now, Outcome.FAILED, f"the delivery timeout has passed: {past}; {obstacle}")
        for batch in self.proven:
            if batch.deadlines[0] <= now:
                self._settle(batch, None)
        self.proven = [batch for batch in self.proven if not batch.resolved]
        self.queue = deque(batch for batch in self.queue if not batch.resolved)
        waiting = (*self.in_flight, *self.queue, *self.proven)
        self.next_deadline = min((batch.deadlines[0] for batch in waiting if not batch.resolved), default=math.inf)

    def _expire_hopeless(self, batch: SessionBatch, now: float) -> None:
        """Report the records of a queued batch that cannot be answered before their deadline; rule 14."""
        needed = self.round_trip.needed(batch.life_seconds)
        if batch.deadlines[0] <= now + needed:
            self._expire_records(
                batch,
                now + needed,
                Outcome.FAILED,
                f"it was not sent, because the delivery timeout ends within {needed:.3f} s: an answer of its leader "
                f"takes {self.round_trip.seconds:.3f} s",
            )

    def _expire_records(self, batch: SessionBatch, now: float, outcome: Outcome, reason: str) -> None:
        due = None
        if batch.resolved:
            return
        if outcome is Outcome.FAILED and batch.source is not None and batch.deadlines[0] <= now:
            now = math.inf
        while batch.deadlines and batch.deadlines[0] <= now:
            due = batch.deadlines.popleft()
        if due is None:
            return
        if batch.deadlines:
            self._commands.append(Expire(batch.payload, due, outcome, reason))
        else:
            self._resolve(batch, outcome, reason)

    def expired_in_flight(self) -> bool:
        """Return whether a batch in flight has expired, whose attempt has ended; forget them if all of them have."""
        expired = sum(batch.resolved for batch in self.in_flight)
        if expired and expired == len(self.in_flight):
            for batch in self.in_flight:
                self._forget_requests(batch)
            self.in_flight.clear()
        return expired > 0

    # Openings

    def decide(self, reached: int | None) -> None:
        """Decide every batch in flight; rule 9. ``reached``: the sequence that its epoch reached; None: not known."""
        self._forget_all_requests()
        unsent: list[SessionBatch] = []
        for batch in self.in_flight:
            batch.request_ids.clear()
            if reached is None:
                self._resolve(batch, Outcome.UNKNOWN, "it was sent, and the leader has forgotten this producer since")
            elif batch.sequence < reached:
                self._resolve(batch, Outcome.COMMITTED)
            elif batch.refusal is not None:
                self._resolve(batch, Outcome.INVALID, batch.refusal)
            elif not batch.resolved and not self._is_cut_off(batch):
                unsent.append(batch)
        self.in_flight.clear()
        self.queue.extendleft(reversed(unsent))
        self._next_sequence = 0

    def resolve_all(self, in_flight: Outcome, queued: Outcome, reason: str) -> None:
        self.settle_proven()
        for batch in self.in_flight:
            self._resolve(batch, in_flight, reason)
        for batch in self.queue:
            self._resolve(batch, queued, reason)
        self.in_flight.clear()
        self.queue.clear()
        self._forget_all_requests()

    def _resolve(self, batch: SessionBatch, outcome: Outcome, reason: str = "", reply: Committed | None = None) -> None:
        if not batch.resolved:
            batch.resolved = True
            self._commands.append(Resolve(batch.payload, outcome, reply, reason))
            if outcome is not Outcome.COMMITTED and batch.source is not None:
                unknown = self.interrupted.get(batch.source)
                self.interrupted[batch.source] = bool(unknown) or outcome is Outcome.UNKNOWN
                for later in self.queue if unknown is None else ():
                    self._is_cut_off(later)

    def _forget_requests(self, batch: SessionBatch) -> None:
        for request_id in batch.request_ids:
            del self.requests[request_id]
        self._commands.append(ForgetRequests(tuple(batch.request_ids)))
        batch.request_ids.clear()

    def _forget_all_requests(self) -> None:
        self._commands.append(ForgetRequests(tuple(self.requests)))
        self.requests.clear()


class BatchGrowth:
    """How large a batch of records gets: follows from the bytes of one shard.

    A message costs a leader and its client as much as some 25 records of 1 KB, whatever it carries. So the batches of a
    shard get larger, the more of its bytes are unanswered:

    1. A batch is full at a quarter of what is unanswered when it opens, and not below ``batch_bytes``. An idle leader
       gets small batches at once, and a busy one gets few large ones.
    2. While the window has no space for it, it grows to the largest size.
    3. A batch that may exceed ``batch_bytes`` does not leave because it has lingered. It leaves when it is full, or
       when as many bytes were answered since it opened. At a steady rate each takes a quarter of a round trip.
    """

    def __init__(self, batch_bytes: int) -> None:
        self.least_bytes = self.most_bytes = self._wanted_bytes = batch_bytes
        self.offered_bytes = 0
        """The bytes of all batches that were handed to the session."""
        self.answered_bytes = 0
        """Those of them that have an outcome."""

    def limit(self, accepted_bytes: int) -> None:
        """Let no batch of several records exceed ``accepted_bytes``, which the broker accepts."""
        self.least_bytes = min(self._wanted_bytes, accepted_bytes)
        self.most_bytes = min(self._wanted_bytes * GROWTH, accepted_bytes)

    def full_bytes(self) -> int:
        """Return the size at which a batch is full that opens now; rule 1."""
        return max(self.least_bytes, min((self.offered_bytes - self.answered_bytes) // SHARE, self.most_bytes))

    def leaves_at(self, full_bytes: int) -> int:
        """Return the `answered_bytes` from which a batch leaves that opens now and has lingered; rule 3."""
        return 0 if full_bytes <= self.least_bytes else self.answered_bytes + full_bytes
