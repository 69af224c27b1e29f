"""Decide what a producer sends to one shard's leader, and what the outcome of each batch is. Pure.

``now`` is seconds of any steady clock, ``jitter`` a number from 0 to 1 that the caller draws.

The rules ("E" is the combined table of other systems' rules, KIP-91 and KIP-360):

1.  Another leader, of whatever epoch, ends the attempt. headgate.client.decisions.leader_belief
    decides which leader to follow. A refusal by a leader older than the one that was asked is ignored
    (Restate, stale hints). The same leader announces itself again when its connection to the broker
    returns. What was sent before was probably lost: without any reply soon, the attempt ends.
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
11. ``fenced`` ends the session, and those of the same program on all other shards. Nothing is
    renumbered silently.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.client.decisions.session_batches import SessionBatches
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
    OVERDUE_REPLY_SECONDS,
    PROBE_AFTER_SILENCE_SECONDS,
    RETRY_BACKOFF,
    Attempt,
    Command,
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
        self._commands: list[Command] = []
        self._batches = SessionBatches(self._commands, request_timeout_seconds)

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
        times = [self._batches.next_deadline]
        if self.phase is Phase.BACKING_OFF:
            times.append(self._attempt.retry_at)
        elif self.phase is Phase.OPENING:
            times += [self._identity.requested_at + self._request_timeout_seconds, self._attempt.overdue_at]
        elif self.phase in SENDING_PHASES:
            times.append(self._attempt.overdue_at)
            times.extend(self._batches.timeouts(self._attempt.number))
            times.extend(self._batches.settled_by(batch) for batch in self._batches.proven)
        wake_at = min(times)
        return None if wake_at == math.inf else wake_at

    @property
    def unresolved_batches(self) -> int:
        """Number of batches whose owner waits for the outcome."""
        return self._batches.unresolved

    @property
    def in_flight(self) -> int:
        """Number of batches with a sequence and no outcome."""
        return len(self._batches.in_flight)

    @property
    def ready_for_batch(self) -> bool:
        """Whether the queue is empty. Otherwise a batch should grow instead of being offered."""
        return not self._batches.queue

    # Events

    def offer(self, payload: Sendable, deadlines: Sequence[float], now: float) -> list[Command]:
        """Queue a batch. ``deadlines``, ascending: when the outcomes of its records must be known."""
        assert self.phase is not Phase.CLOSED, "offered to a closed session"
        if self.phase is Phase.FENCED:
            outcome, reason = self._end
            return [Resolve(payload, outcome, reason=reason)]
        self._batches.add(payload, deadlines)
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
        elif self.phase is Phase.OPENING or any(self._batches.unanswered(self._attempt.number)):
            self._attempt.overdue_at = min(self._attempt.overdue_at, now + OVERDUE_REPLY_SECONDS)
        return self._advance(now)

    def committed(self, request_id: int, reply: m.Committed, now: float) -> list[Command]:
        """Record that a batch is durable; rules 5 to 7."""
        sent = self._batches.requests.get(request_id)
        if sent is None or sent.batch is None:
            return []
        self._replied(now)
        self._attempt.failures, self._attempt.refusal = 0, ""
        self._batches.commit(sent.batch, reply, now)
        if not any(self._batches.unanswered(self._attempt.number)):
            self._on(Event.ALL_ANSWERED)
        return self._advance(now)

    def identified(self, request_id: int, reply: m.ProducerIdentity, now: float) -> list[Command]:
        """Adopt the identity that the leader granted; numbering starts at 0."""
        sent = self._batches.requests.get(request_id)
        if sent is None or sent.batch is not None or self._identity.token is None:
            return []
        assert not self._batches.in_flight, "a new identity while batches of the old one are in flight"
        self._replied(now)
        self._on(Event.IDENTITY_GRANTED, _Occurrence(now, identity=reply))
        return self._advance(now)

    def rejected(
        self, request_id: int, leader_epoch: int, reply: m.Rejected, now: float, jitter: float
    ) -> list[Command]:
        sent = self._batches.requests.get(request_id)
        if sent is None or leader_epoch < sent.leader_epoch:
            return []  # rule 1: a deposed leader refused a request that was not meant for it
        # If a newer leader refuses, the one that was asked may have accepted this copy before its term ended.
        newer_leader = leader_epoch > sent.leader_epoch
        if not newer_leader and sent.batch is not None and reply.verdict != "not_leader":
            sent.batch.unrejected_request_ids.discard(request_id)
        if sent.attempt == self._attempt.number and self.phase in ATTEMPT_PHASES:  # rule 5
            self._replied(now)
            self._attempt.refusal = f"{reply.verdict}: {reply.reason}"
            event = Event.ATTEMPT_FAILED if newer_leader else self._meaning(reply.verdict, sent.batch)
            self._on(event, _Occurrence(now, jitter, reply.reason, sent.batch, verdict=reply.verdict))
        return self._advance(now)

    def _meaning(self, verdict: m.Verdict, batch: SessionBatch | None) -> Event:
        """Return the event that a refusal by the present leader is; ``batch`` None: of the identity."""
        if verdict == "fenced" or (verdict == "forgotten" and (self._named or batch is None)):
            return Event.FENCED
        if batch in self._batches.proven:
            return Event.ATTEMPT_FAILED
        if verdict in ("invalid", "forbidden", "quota_exceeded"):
            return Event.IDENTITY_INVALID if batch is None else Event.BATCH_INVALID
        probed = self.phase is Phase.PROBING and batch is not None and batch is self._batches.in_flight[0]
        if verdict in ("out_of_order", "forgotten") and probed:
            return Event.PROBE_OUT_OF_ORDER
        return Event.ATTEMPT_FAILED

    def send_failed(self, request_id: int, now: float, jitter: float) -> list[Command]:
        """End the attempt, because the transport did not accept a request."""
        sent = self._batches.requests.get(request_id)
        if sent is not None and sent.attempt == self._attempt.number:
            self._on(Event.ATTEMPT_FAILED, _Occurrence(now, jitter))
        return self._advance(now)

    def tick(self, now: float, jitter: float) -> list[Command]:
        """Let time pass: pauses end, requests time out, batches expire."""
        if self._timed_out(now):
            self._on(Event.ATTEMPT_FAILED, _Occurrence(now, jitter))
        return self._advance(now)

    def end_as(self, end: tuple[Outcome, str]) -> list[Command]:
        """End as the session of another shard did; rule 11. It has no effect on a session that has ended."""
        outcome, reason = end
        verdict: m.Verdict = "forgotten" if outcome is Outcome.FORGOTTEN else "fenced"
        self._on(Event.FENCED, _Occurrence(reason=reason, verdict=verdict))
        return self._pop_commands()

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
                self._forget_identity_requests()
                self._batches.fail_queue(occurrence.reason)
                self._commands.append(IdentityRejected(occurrence.verdict, occurrence.reason))
            case Action.FAIL_BATCH:
                assert occurrence.batch is not None, "a batch was refused"
                self._batches.fail(occurrence.batch, occurrence.reason)
                self._on(Event.GAP_FOUND)
            case Action.RESTART_HISTORY:
                if self._batches.restart_history(occurrence.reason):
                    self._on(Event.GAP_FOUND)
            case Action.COUNT_BUMP:
                self.epoch_bumps += 1
            case Action.FENCE_ALL:
                outcome = Outcome.FORGOTTEN if occurrence.verdict == "forgotten" else Outcome.FENCED
                self._end = outcome, occurrence.reason
                if self._identity.token is not None or self._identity.wanted:
                    self._commands.append(IdentityRejected(occurrence.verdict, occurrence.reason))
                self._batches.resolve_all(outcome, outcome, occurrence.reason)
            case Action.ABANDON_ALL:
                self._batches.resolve_all(Outcome.UNKNOWN, Outcome.FAILED, occurrence.reason)

    def _advance(self, now: float) -> list[Command]:
        """Raise the events that follow from the clock and from the state; return the commands."""
        batches = self._batches
        if self.phase in SENDING_PHASES:
            batches.settle_proven(now)
        else:
            batches.settle_proven()
        if now >= batches.next_deadline:
            batches.expire(now, self._obstacle())
        if batches.forget_expired_window():
            self._on(Event.GAP_FOUND)
        if self.numbering is Numbering.GAPPED and not batches.in_flight:
            self._on(Event.BUMP_DUE)
        if now >= self._attempt.retry_at:
            self._on(Event.PAUSE_OVER)
        if self._leader.reachable and (batches.in_flight or batches.queue or self._identity.wanted):
            self._on(Event.READY_TO_OPEN if self._needs_identity() else Event.READY_TO_SEND, _Occurrence(now))
        if self.phase in SENDING_PHASES:
            self._send_ready_batches(now)
        return self._pop_commands()

    def _pop_commands(self) -> list[Command]:
        commands = list(self._commands)
        self._commands.clear()
        return commands

    def _needs_identity(self) -> bool:
        return self.numbering in (Numbering.UNIDENTIFIED, Numbering.REOPENING)

    def _replied(self, now: float) -> None:
        """Note that the leader is there."""
        self._last_reply_at, self._attempt.overdue_at = now, math.inf

    def _timed_out(self, now: float) -> bool:
        if self.phase in ATTEMPT_PHASES and now >= self._attempt.overdue_at:
            return True
        if self.phase is Phase.OPENING:
            return now >= self._identity.requested_at + self._request_timeout_seconds
        return self.phase in SENDING_PHASES and any(
            now >= timeout for timeout in self._batches.timeouts(self._attempt.number)
        )

    # Attempts and identities

    def _begin_attempt(self) -> None:
        assert self._leader.epoch is not None, "an attempt without a leader"
        self._attempt.number += 1
        self._attempt.overdue_at = math.inf
        self._attempt.leader_epoch = self._leader.epoch

    def _request_identity(self, now: float) -> None:
        assert not self._batches.in_flight, "an identity is requested while batches of the old one are in flight"
        identity, epoch = self._identity, self._attempt.leader_epoch
        identity.token = identity.token or next(self._tokens)  # rule 10
        identity.requested_at = now
        request_id = next(self._request_ids)
        self._batches.requests[request_id] = SentRequest(None, self._attempt.number, epoch)
        self._commands.append(OpenIdentity(request_id, epoch, identity.token, *(identity.producer or (None, 0))))

    def _adopt_identity(self, granted: m.ProducerIdentity | None) -> None:
        assert granted is not None, "an identity was granted"
        self._identity.producer = (granted.producer_id, granted.producer_epoch)
        self._identity.next_sequence = 0
        self._forget_identity_requests()
        self._commands.append(Identified(granted.created))

    def _forget_identity_requests(self) -> None:
        self._identity.token = None
        self._identity.wanted = False
        self._batches.forget_identity_requests()

    # Sending

    def _send_ready_batches(self, now: float) -> None:
        batches = self._batches
        if not batches.in_flight and now - self._last_reply_at > PROBE_AFTER_SILENCE_SECONDS:
            self._on(Event.SILENCE)  # rule 3
        outstanding = sum(1 for _ in batches.unanswered(self._attempt.number))
        limit = 1 if self.phase is Phase.PROBING else self._leader.window
        for batch in batches.proven:
            if batch.resend_at is not None and now >= batch.resend_at:
                batch.resend_at = None
                self._send(batch, now)
        for batch in batches.in_flight:
            if batch.attempt != self._attempt.number:
                if outstanding >= limit:
                    return
                outstanding += 1
                self._send(batch, now)
        # Rule 9. An expired batch in flight may leave a gap.
        if self.numbering is not Numbering.NUMBERED or any(batch.resolved for batch in batches.in_flight):
            return
        while batches.queue and outstanding < limit:
            batch = batches.number_next(self._identity.next_sequence)
            self._identity.next_sequence += 1
            outstanding += 1
            self._send(batch, now)

    def _send(self, batch: SessionBatch, now: float) -> None:
        assert self._identity.producer is not None, "sending without an identity"
        assert batch.sequence is not None, "sending without a sequence"
        self.resent_batches += batch.ever_sent
        request_id, number, epoch = next(self._request_ids), self._attempt.number, self._attempt.leader_epoch
        self._batches.record_send(batch, request_id, SentRequest(batch, number, epoch), now)
        self._commands.append(
            SendBatch(batch.payload, request_id, epoch, *self._identity.producer, batch.sequence, number)
        )

    def _obstacle(self) -> str:
        """Return what prevents a commit now, for people."""
        if not self._leader.connected:
            return "there is no connection to the broker"
        if not self._leader.reachable:
            return "no leader of its shard has replied"
        if self._attempt.refusal:
            return f"the leader refuses batches ({self._attempt.refusal})"
        return "the leader does not reply"
