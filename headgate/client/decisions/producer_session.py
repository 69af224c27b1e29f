"""Decide what a producer sends to one shard's leader, and what the outcome of each batch is. Pure.

``now`` is seconds of any steady clock, ``jitter`` a number from 0 to 1 that the caller draws.

The rules ("E" is the combined table of other systems' rules, KIP-91 and KIP-360):

1.  Another leader, of whatever epoch, ends the attempt. headgate.client.decisions.leader_belief
    decides which leader to follow. A refusal by a leader older than the one that was asked is ignored
    (Restate, stale hints). The same leader announces itself again when its connection to the broker
    returns. What was sent before was probably lost: without any reply soon, the attempt ends.
2.  All sends of one attempt go to one leader epoch. A refusal or loss ends the attempt. After a pause the head and all
    batches behind it are replayed in order: the same records under the same sequences.
3.  The first send of an attempt goes alone. Its commit opens the window.
4.  The window is the smaller of the session's own and the announced one; 1 if the leader does not pipeline.
5.  ``Committed`` counts whenever it arrives, a refusal only in its own attempt.
6.  A commit is reported when it arrives.
7.  The leader accepts no sequence before its predecessor, so a commit proves all earlier batches. Only their offsets
    are missing. A proven batch whose own reply does not follow shortly is sent again, once and in the same attempt. It
    is reported without offsets if that has no reply in time, and as soon as the attempt ends.
8.  Each record has its own deadline, at which its outcome is reported. A record of a queued batch is
    not stored, and leaves the batch. One in flight is unknown, even if it was rejected: a broker may
    have doubled it. A batch expires with its last record.
9.  An opening at the next producer epoch closes the present one (KIP-360), and its reply names the sequence that was
    reached. So it decides every batch in flight: those below are committed, and the others never will be. Only then are
    batches renumbered, from 0 on. Only the leader assigns epochs.
10. A request for an identity is repeated with the same token until it is granted, so a lost reply
    costs no further epoch, and a late copy opens nothing else.
11. ``fenced`` ends the session, and those of the same program on all other shards. Nothing is renumbered silently.
12. ``forgotten`` means that the leader no longer knows this producer. A named one was deleted, and
    its source position with it: that ends the session. An anonymous one gets a new identity. The
    opening cannot decide what was sent under the old one, so that is unknown (E, note 4). Therefore
    an identity that has been idle is opened again before it is used: then nothing was sent.
13. A batch that is refused for good (``invalid``, ``forbidden``, ``quota_exceeded``) is reported once an
    opening has decided it: an earlier copy may be late, and be accepted because the topic or the
    right exists again. ``out_of_order`` for a probe leads to an opening as well. Behind the head it
    only means that an earlier batch was lost (E, note 5; librdkafka 4953).
14. A batch that expires in flight keeps its place until its attempt ends. Its answer may be on its
    way, and an opening in its stead costs a round trip, in which the next batch expires. For the same
    reason a batch is not sent that cannot be answered before its deadline: it is reported as not stored.
15. Records with a source position are stored without a gap, because a program continues at the last position. A queued
    batch of them expires as a whole. Once one is not known to be stored, none of a later batch for its topic is sent,
    until the program opens the topic, and so reads the position again. If one may still be stored, the position may
    still move: only the opening of another producer of the name decides it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.client.decisions.session_batches import (
    OVERDUE_REPLY_SECONDS,
    REMEMBERED_SECONDS,
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
    SentRequest,
    SessionBatch,
    SessionBatches,
)
from headgate.protocol.replies import Committed, ProducerIdentity, Rejected, Verdict


class Phase(StrEnum):
    WAITING = "waiting"
    """For a leader, a connection, or a batch."""
    BACKING_OFF = "backing_off"
    """Pausing after a failed attempt."""
    OPENING = "opening"
    """The identity has been requested."""
    PROBING = "probing"
    """One batch is sent alone."""
    STREAMING = "streaming"
    """As many batches are in flight as the window allows."""
    FENCED = "fenced"
    CLOSED = "closed"


class Event(StrEnum):
    READY_TO_OPEN = "ready_to_open"
    """There is work and a reachable leader, but no identity that can number it."""
    READY_TO_SEND = "ready_to_send"
    """There is work, a reachable leader, and an identity."""
    IDENTITY_GRANTED = "identity_granted"
    IDENTITY_REFUSED = "identity_refused"
    """The leader refused the identity for good."""
    ALL_ANSWERED = "all_answered"
    """Every batch that the attempt sent is answered."""
    SILENCE = "silence"
    """There has been no answer for long, and nothing is in flight: the producer may be forgotten."""
    ATTEMPT_FAILED = "attempt_failed"
    """A request was refused, timed out, or could not be sent."""
    HISTORY_LOST = "history_lost"
    """The leader has forgotten the producer, or refused the first batch of an attempt as ``out_of_order``."""
    BATCH_REFUSED = "batch_refused"
    """The leader refused one batch for good."""
    CONNECTION_LOST = "connection_lost"
    LEADER_CHANGED = "leader_changed"
    PAUSE_OVER = "pause_over"
    GAP_FOUND = "gap_found"
    """A batch in flight has expired, and its attempt has ended."""
    FENCED = "fenced"
    """A newer incarnation runs, or the named producer was deleted, as the leader of this or of another shard says."""
    CLOSE_REQUESTED = "close_requested"


class Action(StrEnum):
    """What the session does, in the order given."""

    BEGIN_ATTEMPT = "begin_attempt"
    REQUEST_IDENTITY = "request_identity"
    ADOPT_IDENTITY = "adopt_identity"
    """Decide every batch in flight, and restart the numbers at 0 under the identity that was granted."""
    CLOSE_EPOCH = "close_epoch"
    """Number nothing before the identity has been opened at its next epoch."""
    SCHEDULE_RETRY = "schedule_retry"
    REFUSE_ALL = "refuse_all"
    """Resolve what is in flight as unknown, and every queued batch as invalid."""
    NOTE_REFUSAL = "note_refusal"
    """Keep the reason until the opening has decided whether the batch is stored nevertheless."""
    FENCE_ALL = "fence_all"
    """Resolve every batch as fenced, or as forgotten."""
    ABANDON_ALL = "abandon_all"
    """Resolve what was sent as unknown, and the rest as not stored."""


_CLOSE: dict[Event, tuple[Phase, tuple[Action, ...]]] = {Event.CLOSE_REQUESTED: (Phase.CLOSED, (Action.ABANDON_ALL,))}
_END: dict[Event, tuple[Phase, tuple[Action, ...]]] = {Event.FENCED: (Phase.FENCED, (Action.FENCE_ALL,)), **_CLOSE}
_END_OF_ATTEMPT: dict[Event, tuple[Phase, tuple[Action, ...]]] = {
    Event.CONNECTION_LOST: (Phase.WAITING, ()),
    Event.LEADER_CHANGED: (Phase.WAITING, ()),
    Event.ATTEMPT_FAILED: (Phase.BACKING_OFF, (Action.SCHEDULE_RETRY,)),
    **_END,
}
_GAP: dict[Event, tuple[Phase, tuple[Action, ...]]] = {
    Event.SILENCE: (Phase.WAITING, (Action.CLOSE_EPOCH,)),
    Event.BATCH_REFUSED: (Phase.WAITING, (Action.NOTE_REFUSAL, Action.CLOSE_EPOCH)),
    Event.HISTORY_LOST: (Phase.BACKING_OFF, (Action.SCHEDULE_RETRY, Action.CLOSE_EPOCH)),
}

# The table. An event that a phase does not list changes nothing. docs/state-machines.md is drawn from it.
#
# * A refusal, a loss or another leader ends the attempt, in every phase that has one (2).
# * An attempt begins with one batch alone (3).
# * What leaves a gap closes the epoch. The identity is opened at the next one before anything else is sent (9).
# * ``fenced`` is final, and so is ``forgotten`` for a named producer (11, 12).
PHASES: dict[Phase, dict[Event, tuple[Phase, tuple[Action, ...]]]] = {
    Phase.WAITING: {
        Event.READY_TO_OPEN: (Phase.OPENING, (Action.BEGIN_ATTEMPT, Action.REQUEST_IDENTITY)),
        Event.READY_TO_SEND: (Phase.PROBING, (Action.BEGIN_ATTEMPT,)),
        # The answer to a request of an earlier attempt: the same token, so the same identity.
        Event.IDENTITY_GRANTED: (Phase.WAITING, (Action.ADOPT_IDENTITY,)),
        Event.GAP_FOUND: (Phase.WAITING, (Action.CLOSE_EPOCH,)),
        Event.SILENCE: (Phase.WAITING, (Action.CLOSE_EPOCH,)),
        **_END,
    },
    Phase.BACKING_OFF: {
        Event.PAUSE_OVER: (Phase.WAITING, ()),
        Event.LEADER_CHANGED: (Phase.WAITING, ()),
        Event.IDENTITY_GRANTED: (Phase.BACKING_OFF, (Action.ADOPT_IDENTITY,)),
        Event.GAP_FOUND: (Phase.BACKING_OFF, (Action.CLOSE_EPOCH,)),
        **_END,
    },
    Phase.OPENING: {
        Event.IDENTITY_GRANTED: (Phase.PROBING, (Action.ADOPT_IDENTITY,)),
        Event.IDENTITY_REFUSED: (Phase.WAITING, (Action.REFUSE_ALL,)),
        **_END_OF_ATTEMPT,
    },
    Phase.PROBING: {Event.ALL_ANSWERED: (Phase.STREAMING, ()), **_GAP, **_END_OF_ATTEMPT},
    Phase.STREAMING: {**_GAP, **_END_OF_ATTEMPT},
    Phase.FENCED: _CLOSE,
    Phase.CLOSED: {},
}

ATTEMPT_PHASES = (Phase.OPENING, Phase.PROBING, Phase.STREAMING)
"""Phases in which requests are on their way."""
SENDING_PHASES = (Phase.PROBING, Phase.STREAMING)


@dataclass(frozen=True, slots=True)
class _Occurrence:
    now: float = 0.0
    jitter: float = 0.0
    reason: str = ""
    batch: SessionBatch | None = None
    identity: ProducerIdentity | None = None
    verdict: Verdict = "fenced"


_NOTHING = _Occurrence()


@dataclass(eq=False, repr=False, kw_only=True)
class ProducerSession:
    named: bool = False
    max_in_flight: int
    request_timeout_seconds: float
    request_ids: Iterator[int]
    tokens: Iterator[str]
    """Like ``request_ids``, these never repeat."""
    unanswered: Callable[[], str]
    """Why no leader replies."""
    end: tuple[Outcome, str] = Outcome.FENCED, ""
    """Why the session ended in the phase `Phase.FENCED`: FENCED or FORGOTTEN, and the leader's reason."""
    phase: Phase = Phase.WAITING
    epoch_bumps: int = 0
    _leader: LeaderView = field(default_factory=LeaderView)
    _attempt: Attempt = field(default_factory=Attempt)
    _identity: Identity = field(default_factory=Identity)
    _last_reply_at: float = 0.0
    _commands: list[Command] = field(default_factory=list)
    _batches: SessionBatches = field(init=False)

    def __post_init__(self) -> None:
        self._batches = SessionBatches(self._commands, self.request_ids, self.request_timeout_seconds)

    # Observations

    @property
    def wake_at(self) -> float | None:
        """When to call `tick`, unless another event occurs earlier."""
        if self.phase in (Phase.FENCED, Phase.CLOSED):
            return None
        times = [self._batches.next_deadline]
        if self.phase is Phase.BACKING_OFF:
            times.append(self._attempt.retry_at)
        elif self.phase is Phase.OPENING:
            times += [self._identity.requested_at + self.request_timeout_seconds, self._attempt.overdue_at]
        elif self.phase in SENDING_PHASES:
            times += [self._attempt.overdue_at, self._batches.timeout(self._attempt.number)]
            times.extend(self._batches.settled_by(batch) for batch in self._batches.proven)
        wake_at = min(times)
        return None if wake_at == math.inf else wake_at

    @property
    def in_flight(self) -> int:
        """Number of batches of which no reply has shown what became of them."""
        return len(self._batches.in_flight)

    @property
    def resent_batches(self) -> int:
        return self._batches.resent

    @property
    def ready_for_batch(self) -> bool:
        """Whether the queue is empty. Otherwise a batch should grow instead of being offered."""
        return not self._batches.queue

    # Events

    def offer(
        self, payload: Sendable, deadlines: Sequence[float], now: float, source: str | None = None
    ) -> list[Command]:
        """Queue a batch. ``deadlines``, ascending: when the outcomes of its records must be known; see `Sendable`."""
        assert self.phase is not Phase.CLOSED, "offered to a closed session"
        if self.phase is Phase.FENCED:
            outcome, reason = self.end
            return [Resolve(payload, outcome, reason=reason)]
        self._batches.add(payload, deadlines, now, source)
        return self._advance(now)

    def open(self, now: float) -> list[Command]:
        """Request an identity before there is a batch. `Identified` or `IdentityRejected` follows."""
        self._identity.wanted = not self._identity.open
        return self._advance(now)

    def is_interrupted(self, topic: str) -> bool:
        return topic in self._batches.interrupted

    def continue_source(self, topic: str) -> bool:
        """Send records with source positions in ``topic`` again; rule 15. False: an earlier one may still be stored."""
        if self._batches.interrupted.get(topic):
            return False
        self._batches.interrupted.pop(topic, None)
        return True

    def connection_changed(self, connected: bool, now: float) -> list[Command]:
        self._leader.connected = connected
        if not connected:
            self._on(Event.CONNECTION_LOST)
        return self._advance(now)

    def follow_leader(self, leader_epoch: int, window: int, now: float) -> list[Command]:
        """Send to the leader of ``leader_epoch`` from now on; rules 1 and 4."""
        leader = self._leader
        changed = leader_epoch != leader.epoch
        leader.epoch = leader_epoch
        leader.window = max(1, min(self.max_in_flight, window))
        if changed:
            self._on(Event.LEADER_CHANGED)
        elif self.phase is Phase.OPENING or not self._batches.all_answered(self._attempt.number):
            self._attempt.overdue_at = min(self._attempt.overdue_at, now + OVERDUE_REPLY_SECONDS)
        return self._advance(now)

    def committed(self, request_id: int, reply: Committed, now: float) -> list[Command]:
        """Record that a batch is durable; rules 5 to 7."""
        sent = self._batches.requests.get(request_id)
        if sent is None or sent.batch is None:
            return []
        self._answered(sent, now)
        self._attempt.failures, self._attempt.refusal = 0, ""
        self._batches.commit(sent.batch, reply, now)
        if self._batches.all_answered(self._attempt.number):
            self._on(Event.ALL_ANSWERED)
        return self._advance(now)

    def identified(self, request_id: int, reply: ProducerIdentity, now: float) -> list[Command]:
        """Adopt the identity that the leader granted; rule 9."""
        sent = self._batches.requests.get(request_id)
        if sent is None or sent.batch is not None:
            return []
        self._answered(sent, now)
        self._on(Event.IDENTITY_GRANTED, _Occurrence(now, identity=reply))
        return self._advance(now)

    def rejected(self, request_id: int, leader_epoch: int, reply: Rejected, now: float, jitter: float) -> list[Command]:
        sent = self._batches.requests.get(request_id)
        if sent is None or leader_epoch < sent.leader_epoch:
            return []  # rule 1: a deposed leader refused a request that was not meant for it
        if sent.attempt == self._attempt.number and self.phase in ATTEMPT_PHASES:  # rule 5
            self._replied(now)
            self._attempt.refusal = f"{reply.verdict}: {reply.reason}"
            newer_leader = leader_epoch > sent.leader_epoch
            event = Event.ATTEMPT_FAILED if newer_leader else self._meaning(reply.verdict, sent.batch)
            self._on(event, _Occurrence(now, jitter, reply.reason, sent.batch, verdict=reply.verdict))
        return self._advance(now)

    def _meaning(self, verdict: Verdict, batch: SessionBatch | None) -> Event:
        """Return the event that a refusal by the present leader is; ``batch`` None: of the identity."""
        if verdict == "fenced" or (verdict == "forgotten" and (self.named or batch is None)):
            return Event.FENCED
        if batch in self._batches.proven:
            return Event.ATTEMPT_FAILED
        if verdict in ("invalid", "forbidden", "quota_exceeded"):
            return Event.IDENTITY_REFUSED if batch is None else Event.BATCH_REFUSED
        if verdict == "forgotten" or (verdict == "out_of_order" and self.phase is Phase.PROBING):
            return Event.HISTORY_LOST
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
        verdict: Verdict = "forgotten" if outcome is Outcome.FORGOTTEN else "fenced"
        self._on(Event.FENCED, _Occurrence(reason=reason, verdict=verdict))
        return self._pop_commands()

    def abandon(self, reason: str) -> list[Command]:
        """Close: what is in flight is unknown, the rest is not stored."""
        self._on(Event.CLOSE_REQUESTED, _Occurrence(reason=reason))
        return self._pop_commands()

    # Transitions

    def _on(self, event: Event, occurrence: _Occurrence = _NOTHING) -> None:
        self.phase, actions = PHASES[self.phase].get(event, (self.phase, ()))
        for action in actions:
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
            case Action.CLOSE_EPOCH:
                self._identity.open = False
            case Action.NOTE_REFUSAL:
                assert occurrence.batch is not None, "a batch was refused"
                occurrence.batch.refusal = occurrence.reason
            case Action.REFUSE_ALL:
                self._identity.wanted = False
                self._batches.resolve_all(Outcome.UNKNOWN, Outcome.INVALID, occurrence.reason)
                self._commands.append(IdentityRejected(occurrence.verdict, occurrence.reason))
            case Action.FENCE_ALL:
                outcome = Outcome.FORGOTTEN if occurrence.verdict == "forgotten" else Outcome.FENCED
                self.end = outcome, occurrence.reason
                if not self._identity.open:
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
            batches.expire(now, self.obstacle())
        if self.phase not in ATTEMPT_PHASES and batches.expired_in_flight():
            self._on(Event.GAP_FOUND)
        if now >= self._attempt.retry_at:
            self._on(Event.PAUSE_OVER)
        if batches.queue and not batches.in_flight and now - self._last_reply_at > REMEMBERED_SECONDS:
            self._on(Event.SILENCE)  # rule 12
        if self._leader.reachable and (batches.in_flight or batches.queue or self._identity.wanted):
            self._on(Event.READY_TO_SEND if self._identity.open else Event.READY_TO_OPEN, _Occurrence(now))
        if self.phase in SENDING_PHASES:
            assert self._identity.producer is not None, "sending without an identity"
            limit = 1 if self.phase is Phase.PROBING else self._leader.window
            batches.send(self._attempt, self._identity.producer, limit, now)
        return self._pop_commands()

    def _pop_commands(self) -> list[Command]:
        commands = list(self._commands)
        self._commands.clear()
        return commands

    def _answered(self, sent: SentRequest, now: float) -> None:
        self._replied(now)
        if sent.attempt == self._attempt.number:
            self._batches.measure(sent, now)

    def _replied(self, now: float) -> None:
        self._last_reply_at, self._attempt.overdue_at = now, math.inf

    def _timed_out(self, now: float) -> bool:
        if self.phase in ATTEMPT_PHASES and now >= self._attempt.overdue_at:
            return True
        if self.phase is Phase.OPENING:
            return now >= self._identity.requested_at + self.request_timeout_seconds
        return self.phase in SENDING_PHASES and now >= self._batches.timeout(self._attempt.number)

    # Attempts and identities

    def _begin_attempt(self) -> None:
        assert self._leader.epoch is not None, "an attempt without a leader"
        self._attempt.number += 1
        self._attempt.overdue_at = math.inf
        self._attempt.leader_epoch = self._leader.epoch

    def _request_identity(self, now: float) -> None:
        identity, epoch = self._identity, self._attempt.leader_epoch
        identity.token = identity.token or next(self.tokens)  # rule 10
        identity.requested_at = now
        request_id = self._batches.add_request(None, self._attempt, now)
        self._commands.append(OpenIdentity(request_id, epoch, identity.token, *(identity.producer or (None, 0))))

    def _adopt_identity(self, granted: ProducerIdentity | None) -> None:
        assert granted is not None, "an identity was granted"
        self.epoch_bumps += self._identity.producer is not None
        self._identity = Identity((granted.producer_id, granted.producer_epoch), open=True)
        self._batches.decide(granted.previous_next_sequence)
        self._commands.append(Identified(granted.created))

    def obstacle(self) -> str:
        """Return what prevents a commit now, for people."""
        if self._leader.connected and self._leader.reachable and self._attempt.refusal:
            return f"the leader refuses batches ({self._attempt.refusal})"
        return self.unanswered()
