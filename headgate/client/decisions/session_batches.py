"""The batches of a producer session, from the queue to their outcomes, and the requests that carried them. Pure.

A batch is queued, then in flight, and at last resolved. A batch is *proven* if a later one is committed:
it is durable, and only its offsets are missing. Rules, with their numbers in
headgate.client.decisions.producer_session:

* A proven batch whose own reply does not follow shortly is sent again once, then reported without
  offsets (7).
* Each record has its own deadline; a batch expires with its last record (8).
* What is certainly not stored returns to the front of the queue and gets another sequence (12, 13).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from headgate.client.decisions.session_types import (
    MISSING_REPLY_TIMEOUT_SECONDS,
    Command,
    Expire,
    ForgetRequests,
    Outcome,
    Resolve,
    Sendable,
    SentRequest,
    SessionBatch,
)
from headgate.protocol import messages as m


class SessionBatches:
    """The unresolved batches of one session. Outcomes are appended to ``commands``."""

    def __init__(self, commands: list[Command], request_timeout_seconds: float) -> None:
        self.in_flight: deque[SessionBatch] = deque()
        """Batches with a sequence and no outcome, in the order of their sequences. An expired one stays."""
        self.proven: list[SessionBatch] = []
        """Rule 7: durable, and their offsets may still arrive."""
        self.queue: deque[SessionBatch] = deque()
        self.next_deadline = math.inf
        """No deadline is earlier; recomputed when it is due, because most batches end long before theirs."""
        self.requests: dict[int, SentRequest] = {}
        """Request id → what it carried; requests that may still be answered."""
        self._commands = commands
        self._request_timeout_seconds = request_timeout_seconds

    @property
    def unresolved(self) -> int:
        """Number of batches whose owner waits for the outcome."""
        return len(self.queue) + len(self.proven) + sum(not batch.resolved for batch in self.in_flight)

    def unanswered(self, attempt: int) -> Iterator[SessionBatch]:
        """Yield the batches in flight that ``attempt`` has sent."""
        return (batch for batch in self.in_flight if batch.attempt == attempt)

    def timeouts(self, attempt: int) -> Iterator[float]:
        """Yield when the unanswered sends of ``attempt`` time out."""
        return (batch.sent_at + self._request_timeout_seconds for batch in self.unanswered(attempt))

    def add(self, payload: Sendable, deadlines: Sequence[float]) -> None:
        """Queue a batch. ``deadlines``, ascending: when the outcomes of its records must be known."""
        self.queue.append(SessionBatch(payload, deque(deadlines)))
        self.next_deadline = min(self.next_deadline, deadlines[0])

    def number_next(self, sequence: int) -> SessionBatch:
        """Move the head of the queue into flight under ``sequence``, and return it."""
        batch = self.queue.popleft()
        batch.sequence = sequence
        self.in_flight.append(batch)
        return batch

    def record_send(self, batch: SessionBatch, request_id: int, request: SentRequest, now: float) -> None:
        batch.ever_sent = True
        batch.request_ids.append(request_id)
        batch.unrejected_request_ids.add(request_id)
        batch.attempt, batch.sent_at = request.attempt, now
        self.requests[request_id] = request

    # Commits

    def commit(self, batch: SessionBatch, reply: m.Committed, now: float) -> None:
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

    def _settle(self, batch: SessionBatch, reply: m.Committed | None) -> None:
        self._resolve(batch, Outcome.COMMITTED, reply=reply)
        self._forget_requests(batch)

    def settle_proven(self, now: float = math.inf) -> None:
        """Report the proven batches whose offsets have not arrived by ``now``; rule 7. Default: all of them."""
        late = [each for each in self.proven if now == math.inf or self._is_late(each, now)]
        self.proven = [batch for batch in self.proven if batch not in late]
        for batch in late:
            self._settle(batch, None)

    def _is_late(self, batch: SessionBatch, now: float) -> bool:
        return batch.resend_at is None and now >= self.settled_by(batch)

    def settled_by(self, batch: SessionBatch) -> float:
        """Return when to send a proven batch again, or to report it without offsets."""
        return batch.sent_at + self._request_timeout_seconds if batch.resend_at is None else batch.resend_at

    # Deadlines

    def expire(self, now: float, obstacle: str) -> None:
        """Report records whose deadline has passed; rule 8. ``obstacle``: what prevents a commit, for people."""
        for batch in self.in_flight:
            self._expire_records(batch, now, Outcome.UNKNOWN, f"it was sent, but {obstacle}")
        for batch in self.queue:
            if batch.ever_sent:
                self._expire_records(batch, now, Outcome.UNKNOWN, f"a copy of it was refused, and then {obstacle}")
            else:
                self._expire_records(batch, now, Outcome.FAILED, f"it was never sent, because {obstacle}")
        for batch in self.proven:
            if batch.deadlines[0] <= now:
                self._settle(batch, None)
        self.proven = [batch for batch in self.proven if not batch.resolved]
        self.queue = deque(batch for batch in self.queue if not batch.resolved)
        waiting = (*self.in_flight, *self.queue, *self.proven)
        self.next_deadline = min((batch.deadlines[0] for batch in waiting if not batch.resolved), default=math.inf)

    def _expire_records(self, batch: SessionBatch, now: float, outcome: Outcome, reason: str) -> None:
        due = None
        if batch.resolved:
            return
        while batch.deadlines and batch.deadlines[0] <= now:
            due = batch.deadlines.popleft()
        if due is None:
            return
        reason = f"the delivery timeout has passed: {reason}"
        if batch.deadlines:
            self._commands.append(Expire(batch.payload, due, outcome, reason))
        else:
            self._resolve(batch, outcome, reason)

    def forget_expired_window(self) -> bool:
        """Give up what is in flight if all of it has expired; return whether sequences remain unfilled. Rule 9."""
        if not self.in_flight or not all(batch.resolved for batch in self.in_flight):
            return False
        for batch in self.in_flight:
            self._forget_requests(batch)
        self.in_flight.clear()
        return True

    # Refusals

    def fail(self, batch: SessionBatch, reason: str) -> None:
        """Report a batch in flight as invalid, and renumber those behind it; rule 13."""
        self._resolve(batch, Outcome.INVALID, reason)
        self._forget_requests(batch)
        behind: list[SessionBatch] = []
        while (last := self.in_flight.pop()) is not batch:
            behind.append(last)
        self._renumber(behind)

    def fail_queue(self, reason: str) -> None:
        """Report every queued batch as invalid."""
        for batch in self.queue:
            self._resolve(batch, Outcome.INVALID, reason)
        self.queue.clear()

    def restart_history(self, reason: str) -> bool:
        """Renumber what is certainly not stored; rule 12. Return whether that leaves sequences unfilled.

        Otherwise the probe will be sent once more; the next call reports what is in flight as unknown.
        """
        probe = self.in_flight[0]
        if not probe.unrejected_request_ids:
            behind = list(reversed(self.in_flight))
            self.in_flight.clear()
            self._renumber(behind)
            return True
        if probe.unknown_once:
            for lost in self.in_flight:
                self._resolve(lost, Outcome.UNKNOWN, f"the leader does not know this producer's history: {reason}")
        probe.unknown_once = True
        return False

    def _renumber(self, last_first: Iterable[SessionBatch]) -> None:
        """Return batches that are certainly not stored to the front of the queue."""
        for batch in last_first:
            # Late replies refer to a sequence that the batch no longer has.
            self._forget_requests(batch)
            if not batch.resolved:
                batch.sequence, batch.attempt = None, 0
                self.queue.appendleft(batch)

    # The end

    def resolve_all(self, sent: Outcome, unsent: Outcome, reason: str) -> None:
        """Report every batch, and forget every request."""
        for batch in self.proven:
            self._resolve(batch, Outcome.COMMITTED)
        for batch in (*self.in_flight, *self.queue):
            self._resolve(batch, sent if batch.ever_sent else unsent, reason)
        self.proven.clear()
        self.in_flight.clear()
        self.queue.clear()
        self._commands.append(ForgetRequests(tuple(self.requests)))
        self.requests.clear()

    def forget_identity_requests(self) -> None:
        """Expect no more replies to requests for an identity."""
        stale = tuple(request_id for request_id, sent in self.requests.items() if sent.batch is None)
        for request_id in stale:
            del self.requests[request_id]
        self._commands.append(ForgetRequests(stale))

    def _resolve(
        self, batch: SessionBatch, outcome: Outcome, reason: str = "", reply: m.Committed | None = None
    ) -> None:
        if not batch.resolved:
            batch.resolved = True
            self._commands.append(Resolve(batch.payload, outcome, reply, reason))

    def _forget_requests(self, batch: SessionBatch) -> None:
        for request_id in batch.request_ids:
            del self.requests[request_id]
        self._commands.append(ForgetRequests(tuple(batch.request_ids)))
        batch.request_ids.clear()
        batch.unrejected_request_ids.clear()
