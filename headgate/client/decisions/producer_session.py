"""Decide what a producer sends to one shard's leader, and what the outcome of each batch is. Pure.

``now`` is seconds of any steady clock, ``jitter`` a number from 0 to 1 that the caller draws.

The rules ("E" is the combined table of other systems' rules, KIP-91 and KIP-360):

1.  Another leader, of whatever epoch, ends the attempt. headgate.client.decisions.leader_belief
    decides which leader to follow. A refusal by a leader older than the one that was asked is ignored
    (Restate, stale hints).
2.  All sends of one attempt go to one leader epoch. A refusal or loss ends the attempt. After a
    pause the head and all batches behind it are replayed in order: the same records under the same
    sequences.
3.  The first send of an attempt goes alone, and so does the first after a long silence. Its commit
    opens the window.
4.  The window is the smaller of the session's own and the announced one; 1 if the leader does not
    pipeline.
5.  ``Committed`` counts whenever it arrives, a refusal only in its own attempt.
6.  A commit is reported when it arrives.
7.  The leader accepts no sequence before its predecessor, so a commit proves all earlier batches.
    Only their offsets are missing. A proven batch whose own reply does not follow shortly is sent
    again, once and in the same attempt. It is reported without offsets if that has no reply in time,
    and as soon as the attempt ends.
8.  Each record has its own deadline, at which its outcome is reported. A record of a batch that was
    never sent is not stored, and leaves the batch. One that was sent is unknown, even if it was
    rejected: a broker may have doubled it. A batch expires with its last record.
9.  An expired batch that was sent leaves a possible gap. No new sequence is used until every batch
    in flight has an outcome. Until then they are replayed, which may prove that there is no gap.
    After that the identity is opened at the next producer epoch, from sequence 0 (KIP-360). Only
    the leader assigns epochs.
10. An unanswered request for an identity is repeated with the same token, so a lost reply costs no
    further epoch.
11. ``fenced`` ends the session. Nothing is renumbered silently.
12. ``forgotten`` means that the leader no longer knows this producer. A named one was deleted, and
    its source position with it: that ends the session. An anonymous one continues, because its
    outcomes stay true. If every copy of the probe has been rejected, the batches are renumbered
    under a new identity. Otherwise the probe is sent once more; after that, everything that was
    sent fails as unknown (E, note 4). ``out_of_order`` for a probe is handled in the same way.
    Behind the head it only means that an earlier batch was lost, and never causes a bump (E, note
    5; librdkafka 4953).
13. ``invalid`` fails that batch alone. Its sequence stays unused, so the batches behind it are
    renumbered after a bump.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.client.decisions.session_transitions import (
    ATTEMPT_PHASES,
    NUMBERINGS,
    PHASES,
    SENDING_PHASES,
    Action,
    Event,
    Numbering,
    Phase,
)
from headgate.client.decisions.session_types import (
    MISSING_REPLY_TIMEOUT_SECONDS,
    PROBE_AFTER_SILENCE_SECONDS,
    RETRY_BACKOFF,
    Attempt,
    Command,
    Expire,
    ForgetRequests,
    Identified,
    Identity,
    IdentityRejected,
    LeaderView,
    OpenIdentity,
    Outcome,
    Resolve,
    Sendable,
    SendBatch,
    SentRequest,
    SessionBatch,
)
from headgate.protocol import messages as m


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """What the actions of one event need to know."""

    now: float = 0.0
    jitter: float = 0.0
    reason: str = ""
    batch: SessionBatch | None = None
    identity: m.ProducerIdentity | None = None
    verdict: m.Verdict = "fenced"


_NOTHING = _Occurrence()


class ProducerSession:
    """One producer on one shard."""

    def __init__(
        self,
        *,
        named: bool = False,
        max_in_flight: int,
        request_timeout_seconds: float,
        request_ids: Iterator[int],
        tokens: Iterator[str],
    ) -> None:
        """``request_ids`` and ``tokens`` never repeat."""
        self._named = named
        self._end: tuple[Outcome, str] = (Outcome.FENCED, "")
        self.phase = Phase.WAITING
        self.numbering = Numbering.UNIDENTIFIED
        self.resent_batches = 0
        self.epoch_bumps = 0
        self._max_in_flight = max_in_flight
        self._request_timeout_seconds = request_timeout_seconds
        self._request_ids = request_ids
        self._tokens = tokens
        self._leader = LeaderView()
        self._attempt = Attempt()
        self._identity = Identity()
        self._last_reply_at = 0.0
        self._in_flight: deque[SessionBatch] = deque()
        self._proven: list[SessionBatch] = []
        """Rule 7: durable, and their offsets may still arrive."""
        self._queue: deque[SessionBatch] = deque()
        self._next_deadline = math.inf
        """No deadline is earlier; recomputed when it is due, because most batches end long before theirs."""
        self._sent: dict[int, SentRequest] = {}
        self._commands_out: list[Command] = []

    # Observations

    @property
    def end(self) -> tuple[Outcome, str]:
        """Why the session ended in the phase `Phase.FENCED`: FENCED or FORGOTTEN, and the leader's reason."""
        return self._end

    @property
    def wake_at(self) -> float | None:
        """When to call `tick`, unless another event occurs earlier."""
        if self.phase in (Phase.FENCED, Phase.CLOSED):
            return None
        times = [self._next_deadline]
        if self.phase is Phase.BACKING_OFF:
            times.append(self._attempt.retry_at)
        elif self.phase is Phase.OPENING:
            times.append(self._identity.requested_at + self._request_timeout_seconds)
        elif self.phase in SENDING_PHASES:
            times.extend(batch.sent_at + self._request_timeout_seconds for batch in self._unanswered())
            times.extend(self._settled_by(batch) for batch in self._proven)
        wake_at = min(times)
        return None if wake_at == math.inf else wake_at

    @property
    def unresolved_batches(self) -> int:
        """Number of batches whose owner waits for the outcome."""
        return len(self._queue) + len(self._proven) + sum(not batch.resolved for batch in self._in_flight)

    @property
    def in_flight(self) -> int:
        """Number of batches with a sequence and no outcome."""
        return len(self._in_flight)

    @property
    def ready_for_batch(self) -> bool:
        """Whether the queue is empty. Otherwise a batch should grow instead of being offered."""
        return not self._queue

    # Events

    def offer(self, payload: Sendable, deadlines: Sequence[float], now: float) -> list[Command]:
        """Queue a batch. ``deadlines``, ascending: when the outcomes of its records must be known."""
        assert self.phase is not Phase.CLOSED, "offered to a closed session"
        if self.phase is Phase.FENCED:
            outcome, reason = self._end
            return [Resolve(payload, outcome, reason=reason)]
        self._queue.append(SessionBatch(payload, deque(deadlines)))
        self._next_deadline = min(self._next_deadline, deadlines[0])
        return self._advance(now)

    def open(self, now: float) -> list[Command]:
        """Request an identity before there is a batch. `Identified` or `IdentityRejected` follows."""
        self._identity.wanted = self._needs_identity()
        return self._advance(now)

    def connection_changed(self, connected: bool, now: float) -> list[Command]:
        self._leader.connected = connected
        if not connected:
            self._on(Event.CONNECTION_LOST)
        return self._advance(now)

    def follow_leader(self, leader_epoch: int, pipelining: bool, window: int, now: float) -> list[Command]:
        """Send to the leader of ``leader_epoch`` from now on; rules 1 and 4."""
        leader = self._leader
        changed = leader_epoch != leader.epoch
        leader.epoch = leader_epoch
        leader.window = max(1, min(self._max_in_flight, window)) if pipelining else 1
        if changed:
            self._on(Event.LEADER_CHANGED)
        return self._advance(now)

    def committed(self, request_id: int, reply: m.Committed, now: float) -> list[Command]:
        """Record that a batch is durable; rules 5 to 7."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is None:
            return []
        self._last_reply_at = now
        self._attempt.failures, self._attempt.refusal = 0, ""
        if sent.batch in self._proven:
            self._proven.remove(sent.batch)
        else:
            while (earlier := self._in_flight.popleft()) is not sent.batch:
                self._prove(earlier, now)
        self._settle(sent.batch, reply)
        if not any(self._unanswered()):
            self._on(Event.ALL_ANSWERED)
        return self._advance(now)

    def identified(self, request_id: int, reply: m.ProducerIdentity, now: float) -> list[Command]:
        """Adopt the identity that the leader granted; numbering starts at 0."""
        sent = self._sent.get(request_id)
        if sent is None or sent.batch is not None or self._identity.token is None:
            return []
        assert not self._in_flight, "a new identity while batches of the old one are in flight"
        self._last_reply_at = now
        self._on(Event.IDENTITY_GRANTED, _Occurrence(now, identity=reply))
        return self._advance(now)

    def rejected(
        self, request_id: int, leader_epoch: int, reply: m.Rejected, now: float, jitter: float
    ) -> list[Command]:
        sent = self._sent.get(request_id)
        if sent is None or leader_epoch < sent.leader_epoch:
            return []  # rule 1: a deposed leader refused a request that was not meant for it
        # If a newer leader refuses, the one that was asked may have accepted this copy before its term ended.
        newer_leader = leader_epoch > sent.leader_epoch
        if not newer_leader and sent.batch is not None and reply.verdict != "not_leader":
            sent.batch.unrejected_request_ids.discard(request_id)
        if sent.attempt == self._attempt.number and self.phase in ATTEMPT_PHASES:  # rule 5
            self._last_reply_at = now
            self._attempt.refusal = f"{reply.verdict}: {reply.reason}"
            event = Event.ATTEMPT_FAILED if newer_leader else self._meaning(reply.verdict, sent.batch)
            self._on(event, _Occurrence(now, jitter, reply.reason, sent.batch, verdict=reply.verdict))
        return self._advance(now)

    def _meaning(self, verdict: m.Verdict, batch: SessionBatch | None) -> Event:
        """Return the event that a refusal by the present leader is; ``batch`` None: of the identity."""
        if verdict == "fenced" or (verdict == "forgotten" and (self._named or batch is None)):
            return Event.FENCED
        if batch in self._proven:
            return Event.ATTEMPT_FAILED
        if verdict in ("invalid", "forbidden", "quota_exceeded"):
            return Event.IDENTITY_INVALID if batch is None else Event.BATCH_INVALID
        probed = self.phase is Phase.PROBING and batch is not None and batch is self._in_flight[0]
        if verdict in ("out_of_order", "forgotten") and probed:
            return Event.PROBE_OUT_OF_ORDER
        return Event.ATTEMPT_FAILED

    def send_failed(self, request_id: int, now: float, jitter: float) -> list[Command]:
        """End the attempt, because the transport did not accept a request."""
        sent = self._sent.get(request_id)
        if sent is not None and sent.attempt == self._attempt.number:
            self._on(Event.ATTEMPT_FAILED, _Occurrence(now, jitter))
        return self._advance(now)

    def tick(self, now: float, jitter: float) -> list[Command]:
        """Let time pass: pauses end, requests time out, batches expire."""
        if self._timed_out(now):
            self._on(Event.ATTEMPT_FAILED, _Occurrence(now, jitter))
        return self._advance(now)

    def abandon(self, reason: str) -> list[Command]:
        """Close: batches that were sent are unknown, the rest is not stored."""
        self._on(Event.CLOSE_REQUESTED, _Occurrence(reason=reason))
        return self._pop_commands()

    # Transitions

    def _on(self, event: Event, occurrence: _Occurrence = _NOTHING) -> None:
        self.phase, actions = PHASES[self.phase].get(event, (self.phase, ()))
        self.numbering, more_actions = NUMBERINGS[self.numbering].get(event, (self.numbering, ()))
        for action in (*actions, *more_actions):
            self._perform(action, occurrence)

    def _perform(self, action: Action, occurrence: _Occurrence) -> None:
        match action:
            case Action.BEGIN_ATTEMPT:
                self._begin_attempt()
            case Action.REQUEST_IDENTITY:
                self._request_identity(occurrence.now)
            case Action.ADOPT_IDENTITY:
                self._adopt_identity(occurrence.identity)
            case Action.SCHEDULE_RETRY:
                self._attempt.retry_at = occurrence.now + RETRY_BACKOFF.seconds(
                    self._attempt.failures, occurrence.jitter
                )
                self._attempt.failures += 1
            case Action.FAIL_QUEUE:
                self._fail_queue(occurrence.verdict, occurrence.reason)
            case Action.FAIL_BATCH:
                self._fail_batch(occurrence.batch, occurrence.reason)
            case Action.RESTART_HISTORY:
                self._restart_history(occurrence.reason)
            case Action.COUNT_BUMP:
                self.epoch_bumps += 1
            case Action.FENCE_ALL:
                outcome = Outcome.FORGOTTEN if occurrence.verdict == "forgotten" else Outcome.FENCED
                self._end = outcome, occurrence.reason
                if self._identity.token is not None:
                    self._commands_out.append(IdentityRejected(occurrence.verdict, occurrence.reason))
                self._resolve_all(outcome, outcome, occurrence.reason)
            case Action.ABANDON_ALL:
                self._resolve_all(Outcome.UNKNOWN, Outcome.FAILED, occurrence.reason)

    def _advance(self, now: float) -> list[Command]:
        """Raise the events that follow from the clock and from the state; return the commands."""
        self._settle_proven(now)
        if now >= self._next_deadline:
            self._expire(now)
        if self._in_flight and all(batch.resolved for batch in self._in_flight):  # rule 9
            for batch in self._in_flight:
                self._forget_requests(batch)
            self._in_flight.clear()
            self._on(Event.GAP_FOUND)
        if self.numbering is Numbering.GAPPED and not self._in_flight:
            self._on(Event.BUMP_DUE)
        if now >= self._attempt.retry_at:
            self._on(Event.PAUSE_OVER)
        if self._leader.reachable and (self._in_flight or self._queue or self._identity.wanted):
            self._on(Event.READY_TO_OPEN if self._needs_identity() else Event.READY_TO_SEND, _Occurrence(now))
        if self.phase in SENDING_PHASES:
            self._send_ready_batches(now)
        return self._pop_commands()

    def _pop_commands(self) -> list[Command]:
        out, self._commands_out = self._commands_out, []
        return out

    def _needs_identity(self) -> bool:
        return self.numbering in (Numbering.UNIDENTIFIED, Numbering.REOPENING)

    def _unanswered(self) -> Iterator[SessionBatch]:
        return (batch for batch in self._in_flight if batch.attempt == self._attempt.number)

    def _timed_out(self, now: float) -> bool:
        if self.phase is Phase.OPENING:
            return now >= self._identity.requested_at + self._request_timeout_seconds
        return self.phase in SENDING_PHASES and any(
            now >= batch.sent_at + self._request_timeout_seconds for batch in self._unanswered()
        )

    # Attempts and identities

    def _begin_attempt(self) -> None:
        assert self._leader.epoch is not None, "an attempt without a leader"
        self._attempt.number += 1
        self._attempt.leader_epoch = self._leader.epoch

    def _request_identity(self, now: float) -> None:
        assert not self._in_flight, "an identity is requested while batches of the old one are in flight"
        identity, epoch = self._identity, self._attempt.leader_epoch
        identity.token = identity.token or next(self._tokens)  # rule 10
        identity.requested_at = now
        request_id = next(self._request_ids)
        self._sent[request_id] = SentRequest(None, self._attempt.number, epoch)
        self._commands_out.append(OpenIdentity(request_id, epoch, identity.token, *(identity.producer or (None, 0))))

    def _adopt_identity(self, granted: m.ProducerIdentity | None) -> None:
        assert granted is not None, "an identity was granted"
        self._identity.producer = (granted.producer_id, granted.producer_epoch)
        self._identity.next_sequence = 0
        self._forget_identity_requests()
        self._commands_out.append(Identified(granted.source_position, granted.created))

    def _forget_identity_requests(self) -> None:
        self._identity.token = None
        self._identity.wanted = False
        stale = tuple(request_id for request_id, sent in self._sent.items() if sent.batch is None)
        for request_id in stale:
            del self._sent[request_id]
        self._commands_out.append(ForgetRequests(stale))

    # Sending

    def _send_ready_batches(self, now: float) -> None:
        if not self._in_flight and now - self._last_reply_at > PROBE_AFTER_SILENCE_SECONDS:
            self._on(Event.SILENCE)  # rule 3
        outstanding = sum(1 for _ in self._unanswered())
        limit = 1 if self.phase is Phase.PROBING else self._leader.window
        for batch in self._proven:
            if batch.resend_at is not None and now >= batch.resend_at:
                batch.resend_at = None
                self._send(batch, now)
        for batch in self._in_flight:
            if batch.attempt != self._attempt.number:
                if outstanding >= limit:
                    return
                outstanding += 1
                self._send(batch, now)
        # Rule 9. An expired batch in flight may leave a gap.
        if self.numbering is not Numbering.NUMBERED or any(batch.resolved for batch in self._in_flight):
            return
        while self._queue and outstanding < limit and len(self._in_flight) < self._leader.window:
            batch = self._queue.popleft()
            batch.sequence = self._identity.next_sequence
            self._identity.next_sequence += 1
            self._in_flight.append(batch)
            outstanding += 1
            self._send(batch, now)

    def _send(self, batch: SessionBatch, now: float) -> None:
        assert self._identity.producer is not None, "sending without an identity"
        assert batch.sequence is not None, "sending without a sequence"
        self.resent_batches += batch.ever_sent
        batch.ever_sent = True
        request_id = next(self._request_ids)
        batch.request_ids.append(request_id)
        batch.unrejected_request_ids.add(request_id)
        number, epoch = self._attempt.number, self._attempt.leader_epoch
        batch.attempt, batch.sent_at = number, now
        self._sent[request_id] = SentRequest(batch, number, epoch)
        self._commands_out.append(
            SendBatch(batch.payload, request_id, epoch, *self._identity.producer, batch.sequence, number)
        )

    # Outcomes

    def _resolve(
        self, batch: SessionBatch, outcome: Outcome, reason: str = "", reply: m.Committed | None = None
    ) -> None:
        if not batch.resolved:
            batch.resolved = True
            self._commands_out.append(Resolve(batch.payload, outcome, reply, reason))

    def _forget_requests(self, batch: SessionBatch) -> None:
        for request_id in batch.request_ids:
            del self._sent[request_id]
        self._commands_out.append(ForgetRequests(tuple(batch.request_ids)))
        batch.request_ids.clear()
        batch.unrejected_request_ids.clear()

    def _prove(self, batch: SessionBatch, now: float) -> None:
        if batch.resolved:
            self._forget_requests(batch)
        else:
            batch.resend_at = now + MISSING_REPLY_TIMEOUT_SECONDS
            self._proven.append(batch)

    def _settle(self, batch: SessionBatch, reply: m.Committed | None) -> None:
        self._resolve(batch, Outcome.COMMITTED, reply=reply)
        self._forget_requests(batch)

    def _settle_proven(self, now: float) -> None:
        """Report proven batches whose offsets will not arrive, or not in time; rule 7."""
        if self.phase in SENDING_PHASES:
            late = [each for each in self._proven if each.resend_at is None and now >= self._settled_by(each)]
        else:
            late = self._proven
        self._proven = [batch for batch in self._proven if batch not in late]
        for batch in late:
            self._settle(batch, None)

    def _settled_by(self, batch: SessionBatch) -> float:
        """Return when to send a proven batch again, or to report it without offsets."""
        return batch.sent_at + self._request_timeout_seconds if batch.resend_at is None else batch.resend_at

    def _expire(self, now: float) -> None:
        """Rule 8."""
        obstacle = self._obstacle()
        for batch in self._in_flight:
            self._expire_records(batch, now, Outcome.UNKNOWN, f"it was sent, but {obstacle}")
        for batch in self._queue:
            if batch.ever_sent:
                self._expire_records(batch, now, Outcome.UNKNOWN, f"a copy of it was refused, and then {obstacle}")
            else:
                self._expire_records(batch, now, Outcome.FAILED, f"it was never sent, because {obstacle}")
        for batch in self._proven:
            if batch.deadlines[0] <= now:
                self._settle(batch, None)
        self._proven = [batch for batch in self._proven if not batch.resolved]
        self._queue = deque(batch for batch in self._queue if not batch.resolved)
        waiting = (*self._in_flight, *self._queue, *self._proven)
        self._next_deadline = min((batch.deadlines[0] for batch in waiting if not batch.resolved), default=math.inf)

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
            self._commands_out.append(Expire(batch.payload, due, outcome, reason))
        else:
            self._resolve(batch, outcome, reason)

    def _obstacle(self) -> str:
        """Return what prevents a commit now, for people."""
        if not self._leader.connected:
            return "there is no connection to the broker"
        if not self._leader.reachable:
            return "no leader of its shard has replied"
        if self._attempt.refusal:
            return f"the leader refuses batches ({self._attempt.refusal})"
        return "the leader does not reply"

    def _resolve_all(self, sent: Outcome, unsent: Outcome, reason: str) -> None:
        for batch in self._proven:
            self._resolve(batch, Outcome.COMMITTED)
        for batch in (*self._in_flight, *self._queue):
            self._resolve(batch, sent if batch.ever_sent else unsent, reason)
        self._proven.clear()
        self._in_flight.clear()
        self._queue.clear()
        self._commands_out.append(ForgetRequests(tuple(self._sent)))
        self._sent.clear()

    def _fail_queue(self, verdict: m.Verdict, reason: str) -> None:
        self._forget_identity_requests()
        for batch in self._queue:
            self._resolve(batch, Outcome.INVALID, reason)
        self._queue.clear()
        self._commands_out.append(IdentityRejected(verdict, reason))

    def _fail_batch(self, batch: SessionBatch | None, reason: str) -> None:
        """Rule 13."""
        assert batch is not None, "a batch was refused"
        self._resolve(batch, Outcome.INVALID, reason)
        self._forget_requests(batch)
        behind: list[SessionBatch] = []
        while (last := self._in_flight.pop()) is not batch:
            behind.append(last)
        self._renumber(behind)

    def _restart_history(self, reason: str) -> None:
        """Rule 12."""
        probe = self._in_flight[0]
        if not probe.unrejected_request_ids:
            behind = list(reversed(self._in_flight))
            self._in_flight.clear()
            self._renumber(behind)
        elif not probe.unknown_once:
            probe.unknown_once = True
        else:
            for lost in self._in_flight:
                self._resolve(lost, Outcome.UNKNOWN, f"the leader does not know this producer's history: {reason}")

    def _renumber(self, last_first: list[SessionBatch]) -> None:
        """Return batches that are certainly not stored to the front of the queue; rules 12 and 13."""
        for batch in last_first:
            # Late replies refer to a sequence that the batch no longer has.
            self._forget_requests(batch)
            if not batch.resolved:
                batch.sequence, batch.attempt = None, 0
                self._queue.appendleft(batch)
        self._on(Event.GAP_FOUND)
