"""The state machine of a producer session, as a table.

An event that a phase does not list changes nothing. docs/state-machines.md is drawn from this table.

Rules, with their numbers in headgate.client.decisions.producer_session:

* A refusal, a loss or another leader ends the attempt, in every phase that has one (2).
* An attempt begins with one batch alone (3).
* What leaves a gap closes the epoch. The identity is opened at the next one before anything else is
  sent (9).
* ``fenced`` is final, and so is ``forgotten`` for a named producer (11, 12).
"""

from enum import StrEnum


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
