"""What a subscription coordinator needs from outside: its ledger, the drain check, its settings, its context."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headgate.model import entries as e
from headgate.protocol.replies import Push
from metrics import events
from shard.balancing.weights import CHANGE_INTERVAL_SECONDS, SAMPLE_INTERVAL_SECONDS
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.registration import MISSED_HEARTBEATS
from shard.subscriptions.two_witnesses import DrainClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Durations. The daemon's settings define the defaults and their reasons."""

    grace_seconds: float
    """How long a disconnected consumer keeps its holdings."""
    revoke_timeout_seconds: float
    """How long a consumer may take to confirm a revocation."""
    heartbeat_interval_seconds: float
    """How often consumers send heartbeats."""
    poll_min_seconds: float
    """Shortest pause before a drain poll."""
    poll_max_seconds: float
    """Longest pause before a drain poll."""
    poll_check_timeout_seconds: float
    """How long one drain check may take."""
    load_sample_interval_seconds: float = SAMPLE_INTERVAL_SECONDS
    """How often loads are sampled when balancing by load."""
    weight_change_interval_seconds: float = CHANGE_INTERVAL_SECONDS
    """Shortest time between two changes of weights."""

    @property
    def lease_seconds(self) -> float:
        """How long after its last contact a consumer has its segments alone: a revocation may have been lost."""
        shortest = MISSED_HEARTBEATS * self.heartbeat_interval_seconds
        return min(self.grace_seconds, max(self.revoke_timeout_seconds, shortest))

    @property
    def fence_seconds(self) -> float:
        """How long after a revocation a holder that does not confirm it is fenced: its lease has ended."""
        return max(self.revoke_timeout_seconds, self.lease_seconds)

    @property
    def deadline_seconds(self) -> tuple[float, ...]:
        """How far the deadlines that `SubscriptionCoordinator.tick` checks are ahead when they begin."""
        return MISSED_HEARTBEATS * self.heartbeat_interval_seconds, self.grace_seconds, self.revoke_timeout_seconds


class LedgerPort(Protocol):
    @property
    def durable(self) -> int:
        """Number of the newest durable chunk."""

    @property
    def term_id(self) -> int:
        """Id of the leader's term, which wrote that chunk."""

    def now_ms(self) -> int:
        """Return the ledger's time now, in milliseconds since 1970: not before that of the newest chunk."""

    def propose(self, *entries: e.AnyEntry) -> None:
        """Fold ``entries`` into the subscription at once, and make them part of the next chunk."""


PushMessage = Callable[[str, Push], None]
"""(client id, message): send it once all entries proposed so far are durable. It may be lost, duplicated or delayed."""
DoLater = Callable[[int, Callable[[], None]], None]
"""(cost, work): do it in a later turn of the event loop. The cost: the segments and consumers that it looks at."""
FollowEnd = Callable[[str], int]
"""Announces chunks to a client for a while: a consumer of it follows the end of the shard. Returns their key."""
DrainCheck = Callable[[Subscription, frozenset[int]], Awaitable[Mapping[int, DrainClaim]]]
"""Returns a claim for each of the sealed segments that is drained at the current seek generation.

A segment that is missing from the result is not drained yet. If the check raises or hangs, none is.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionContext:
    """What the parts of one subscription's coordinator share during one leader term."""

    subscription: Subscription
    topic: TopicView
    ledger: LedgerPort
    push: PushMessage
    follow: FollowEnd
    drain_check: DrainCheck | None
    """None: no segment is reported as drained, so the children of a STREAM stay blocked."""
    leader_epoch: int
    settings: CoordinatorSettings
    later: DoLater
    now_ms: Callable[[], int]
    chance: Callable[[], float]
    """Returns random numbers from 0 up to 1."""
    observer: events.Observer
