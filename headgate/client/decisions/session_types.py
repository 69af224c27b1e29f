"""The values of a producer session: its commands, the outcomes of batches, and what it knows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from headgate.backoff import Backoff
from headgate.protocol import messages as m

RETRY_BACKOFF: Final = Backoff(first_seconds=0.025, longest_seconds=1.0, jitter=1.0, shortest_seconds=0.0125)
REMEMBERED_SECONDS: Final = 30.0
"""For this long after an answer no producer is forgotten for being idle: half of the least
``ingest.producer_idle_seconds``."""
OVERDUE_REPLY_SECONDS: Final = 0.25
"""A leader that announces itself again replies within this time to what reached it: longer than most commits take."""
MISSING_REPLY_TIMEOUT_SECONDS: Final = 0.1
"""How long a batch's own reply may arrive after the commit of a later one."""


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

    def request(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
    ) -> m.AnyRequestBody:
        """Return the body of one send. Its other fields are the same in every send."""

    def expire(self, due: float, outcome: Outcome, reason: str) -> None:
        """Receive the outcome of the records with a deadline up to ``due``; others follow.

        FAILED: none of these records is stored, and no request may contain them from now on.
        """

    def resolve(self, outcome: Outcome, reply: m.Committed | None, reason: str) -> None:
        """Receive the outcome of all records that have none yet. Called exactly once."""


# Commands


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A producer's name, and which of the programs that used it this one is."""

    name: str
    incarnation: int
    """Rises with each start; the highest one holds the name."""


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
    reply: m.Committed | None = None
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
    verdict: m.Verdict
    reason: str


Command = SendBatch | OpenIdentity | Expire | Resolve | ForgetRequests | Identified | IdentityRejected


# What a session knows


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
    """Of the records without an outcome, ascending; empty once it is resolved by expiry."""
    life_seconds: float
    """From its offer to its last deadline."""
    sequence: int = 0
    attempt: int = 0
    """The attempt in which it was last sent."""
    sent_at: float = 0.0
    resend_at: float | None = None
    """Of a proven batch: when it is sent again; None: it was."""
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
    """Of the leader that the client believes in; None: it knows none."""
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
