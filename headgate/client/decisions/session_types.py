"""What a producer session says and keeps, as values: its commands, the outcomes of batches, what is on its way.

The rules that make use of them are in headgate.client.decisions.producer_session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.backoff import Backoff
from headgate.protocol import messages as m

RETRY_BACKOFF: Final = Backoff(first_seconds=0.025, longest_seconds=1.0, jitter=1.0, shortest_seconds=0.0125)
"""Between two attempts of a client."""
PROBE_AFTER_SILENCE_SECONDS: Final = 10.0
"""After this long without an answer the leader may have forgotten us: send one batch alone first."""
MISSING_REPLY_TIMEOUT_SECONDS: Final = 0.1
"""How long after a later batch's commit the head's own reply may still be on its way."""


class Phase(StrEnum):
    """What the session is doing."""

    WAITING = "waiting"
    """For a leader, a connection, or something to do."""
    BACKING_OFF = "backing_off"
    OPENING = "opening"
    """The identity has been asked for."""
    PROBING = "probing"
    STREAMING = "streaming"
    FENCED = "fenced"


class Outcome(StrEnum):
    """What became of a batch."""

    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INVALID = "invalid"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send ``batch`` once."""

    batch: object
    request_id: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenIdentity:
    """Send an `OpenProducer` once."""

    request_id: int
    leader_epoch: int
    token: str
    producer_id: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Tell the owner of ``batch`` its outcome. ``reply`` is set where it is committed and its place is known."""

    batch: object
    outcome: Outcome
    reply: m.Committed | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForgetRequests:
    """Expect no replies to these requests any more."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Identified:
    """An identity was given out."""

    source_position: bytes | None


@dataclass(frozen=True, slots=True)
class IdentityRejected:
    """No identity will be given out."""

    verdict: m.Verdict
    reason: str


Command = SendBatch | OpenIdentity | Resolve | ForgetRequests | Identified | IdentityRejected


@dataclass(slots=True)
class SessionBatch:
    """One batch on its way. ``sequence`` None: never sent under the current identity."""

    payload: object
    deadline: float
    sequence: int | None = None
    attempt: int = 0
    """The attempt in which it was sent last."""
    sent_at: float = 0.0
    resend_at: float | None = None
    request_ids: list[int] = field(default_factory=list)
    unrejected_request_ids: set[int] = field(default_factory=set)
    """Requests that have not been rejected by the reign that they were meant for."""
    ever_sent: bool = False
    reply: m.Committed | None = None
    resolved: bool = False
    """The owner has been told that the outcome is unknown."""
    out_of_order_once: bool = False


@dataclass(slots=True)
class SentRequest:
    """One request that may still be answered. ``batch`` None: it asked for the identity."""

    batch: SessionBatch | None
    attempt: int
    leader_epoch: int
