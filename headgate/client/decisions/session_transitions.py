"""The state machine of a producer session, as two tables.

`Phase`: what the session is doing. `Numbering`: whether its identity may number another batch. An
event that a state does not list changes nothing. docs/state-machines.md is drawn from these tables.

Rules, with their numbers in headgate.client.decisions.producer_session:

* A refusal, a loss or another leader ends the attempt, in every phase that has one (2).
* An attempt begins with one batch alone (3).
* A gap blocks new sequences. Once nothing is in flight, the identity is opened at the next epoch
  (9).
* ``fenced`` is final, and so is ``forgotten`` for a named producer (11, 12).
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What the session is doing."""

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


class Numbering(StrEnum):
    """Whether another batch can get a sequence number."""

    UNIDENTIFIED = "unidentified"
    """The session has no identity yet."""
    NUMBERED = "numbered"
    GAPPED = "gapped"
    """A sequence below the next one will never be filled. What is in flight keeps its sequences."""
    REOPENING = "reopening"
    """Nothing is in flight: the identity has to be opened at the next producer epoch."""


class Event(StrEnum):
    """What has happened."""

    READY_TO_OPEN = "ready_to_open"
    """There is work and a reachable leader, but no identity that can number it."""
    READY_TO_SEND = "ready_to_send"
    """There is work, a reachable leader, and an identity."""
    IDENTITY_GRANTED = "identity_granted"
    IDENTITY_INVALID = "identity_invalid"
    """The leader refused the identity for good."""
    ALL_ANSWERED = "all_answered"
    """Every batch that the attempt sent is answered."""
    SILENCE = "silence"
    """There has been no answer for long, and nothing is in flight."""
    ATTEMPT_FAILED = "attempt_failed"
    """A request was refused, timed out, or could not be sent."""
    PROBE_OUT_OF_ORDER = "probe_out_of_order"
    """The leader refused the first batch of an attempt as ``out_of_order`` or ``forgotten``."""
    BATCH_INVALID = "batch_invalid"
    """The leader refused one batch for good."""
    CONNECTION_LOST = "connection_lost"
    LEADER_CHANGED = "leader_changed"
    PAUSE_OVER = "pause_over"
    GAP_FOUND = "gap_found"
    """A sequence that was used will not be filled."""
    BUMP_DUE = "bump_due"
    """The numbering has a gap, and nothing is in flight."""
    FENCED = "fenced"
    """A newer incarnation runs, or the named producer was deleted, as the leader of this or of another shard says."""
    CLOSE_REQUESTED = "close_requested"


class Action(StrEnum):
    """What the session does, in the order given."""

    BEGIN_ATTEMPT = "begin_attempt"
    REQUEST_IDENTITY = "request_identity"
    ADOPT_IDENTITY = "adopt_identity"
    """Restart the numbers at 0 under the identity that was granted."""
    SCHEDULE_RETRY = "schedule_retry"
    FAIL_QUEUE = "fail_queue"
    """Resolve every queued batch as invalid."""
    FAIL_BATCH = "fail_batch"
    """Resolve the refused batch as invalid, and renumber those behind it."""
    RESTART_HISTORY = "restart_history"
    """Renumber what is certainly not stored; otherwise try once more, then resolve it as
    unknown."""
    COUNT_BUMP = "count_bump"
    FENCE_ALL = "fence_all"
    """Resolve every batch as fenced, or as forgotten."""
    ABANDON_ALL = "abandon_all"
    """Resolve what was sent as unknown, and the rest as not stored."""


_CLOSE: dict[Event, tuple[Phase, tuple[Action, ...]]] = {Event.CLOSE_REQUESTED: (Phase.CLOSED, (Action.ABANDON_ALL,))}
_END: dict[Event, tuple[Phase, tuple[Action, ...]]] = {
    Event.FENCED: (Phase.FENCED, (Action.FENCE_ALL,)),
    **_CLOSE,
}
_END_OF_ATTEMPT: dict[Event, tuple[Phase, tuple[Action, ...]]] = {
    Event.CONNECTION_LOST: (Phase.WAITING, ()),
    Event.LEADER_CHANGED: (Phase.WAITING, ()),
    Event.ATTEMPT_FAILED: (Phase.BACKING_OFF, (Action.SCHEDULE_RETRY,)),
    **_END,
}

PHASES: dict[Phase, dict[Event, tuple[Phase, tuple[Action, ...]]]] = {
    Phase.WAITING: {
        Event.READY_TO_OPEN: (Phase.OPENING, (Action.BEGIN_ATTEMPT, Action.REQUEST_IDENTITY)),
        Event.READY_TO_SEND: (Phase.PROBING, (Action.BEGIN_ATTEMPT,)),
        # The answer to a request of an earlier attempt: the same token, so the same identity.
        Event.IDENTITY_GRANTED: (Phase.WAITING, (Action.ADOPT_IDENTITY,)),
        **_END,
    },
    Phase.BACKING_OFF: {
        Event.PAUSE_OVER: (Phase.WAITING, ()),
        Event.LEADER_CHANGED: (Phase.WAITING, ()),
        Event.IDENTITY_GRANTED: (Phase.BACKING_OFF, (Action.ADOPT_IDENTITY,)),
        **_END,
    },
    Phase.OPENING: {
        Event.IDENTITY_GRANTED: (Phase.PROBING, (Action.ADOPT_IDENTITY,)),
        Event.IDENTITY_INVALID: (Phase.WAITING, (Action.FAIL_QUEUE,)),
        **_END_OF_ATTEMPT,
    },
    Phase.PROBING: {
        Event.ALL_ANSWERED: (Phase.STREAMING, ()),
        Event.BATCH_INVALID: (Phase.PROBING, (Action.FAIL_BATCH,)),
        Event.PROBE_OUT_OF_ORDER: (Phase.BACKING_OFF, (Action.SCHEDULE_RETRY, Action.RESTART_HISTORY)),
        Event.BUMP_DUE: (Phase.WAITING, ()),
        **_END_OF_ATTEMPT,
    },
    Phase.STREAMING: {
        # The leader may have forgotten this producer: send one batch alone first.
        Event.SILENCE: (Phase.PROBING, (Action.BEGIN_ATTEMPT,)),
        Event.BATCH_INVALID: (Phase.STREAMING, (Action.FAIL_BATCH,)),
        Event.BUMP_DUE: (Phase.WAITING, ()),
        **_END_OF_ATTEMPT,
    },
    Phase.FENCED: _CLOSE,
    Phase.CLOSED: {},
}

NUMBERINGS: dict[Numbering, dict[Event, tuple[Numbering, tuple[Action, ...]]]] = {
    Numbering.UNIDENTIFIED: {Event.IDENTITY_GRANTED: (Numbering.NUMBERED, ())},
    Numbering.NUMBERED: {Event.GAP_FOUND: (Numbering.GAPPED, ())},
    Numbering.GAPPED: {Event.BUMP_DUE: (Numbering.REOPENING, (Action.COUNT_BUMP,))},
    Numbering.REOPENING: {Event.IDENTITY_GRANTED: (Numbering.NUMBERED, ())},
}

ATTEMPT_PHASES = (Phase.OPENING, Phase.PROBING, Phase.STREAMING)
"""Phases in which requests are on their way."""
SENDING_PHASES = (Phase.PROBING, Phase.STREAMING)
