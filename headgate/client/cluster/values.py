"""The values that `Admin.describe_cluster` returns: the whole cluster, as one daemon sees it.

Times are milliseconds since 1970 by the clock of the daemon that is named beside them, rates are per second. None means
unknown or not applicable, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.model.entries import SubscriptionType
from headgate.protocol.backlog import Outlook

DaemonState = Literal["ready", "degraded", "not_ready", "unreachable"]
"""``degraded`` is ready, but a part of it does not work. ``unreachable``: it is alive in ZooKeeper, and did not answer
the daemon that was asked."""
SpreadState = Literal["settled", "settling", "maintenance", "leaving"]
"""``settled``: it gets its share of shards; ``settling``: not yet; ``maintenance``, ``leaving``: it gives all away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentInfo:
    """A part that a daemon depends on: ``broker``, ``store``, ``zookeeper``, ``drain`` (Spark) and others."""

    component: str
    state: Literal["ok", "degraded", "failed"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonInfo:
    """One daemon. ``problem`` says why it did not answer; what it alone knows is then None or empty."""

    daemon: str
    state: DaemonState
    url: str | None = None
    """Where other machines reach its HTTP server; None: it has named none."""
    version: str | None = None
    started_at_ms: int | None = None
    spread: SpreadState | None = None
    as_of_ms: int | None = None
    components: tuple[ComponentInfo, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Who leads a shard; None: no daemon is known to."""

    shard: int
    leader_epoch: int
    """The term, or the last one that is known."""
    daemon: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTotals:
    """Sums over the cluster. They lack the shards of daemons that did not answer: then it is not `complete`."""

    daemons: int
    topics: int
    subscriptions: int
    active_segments: int
    sealed_segments: int
    blocked_segments: int
    connected_consumers: int
    disconnected_consumers: int
    """Consumers in their grace period."""
    stored_per_second: float
    acknowledged_per_second: float | None = None
    """Over all subscriptions; None: no rate is known."""
    backlog_records: int | None = None
    """Over all subscriptions that acknowledge; None: one is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    """A subscription in one line."""

    topic: str
    subscription: str
    type: SubscriptionType | None
    daemon: str
    """The leader of its shard."""
    connected_consumers: int
    disconnected_consumers: int
    blocked_segments: int
    draining_segments: int
    """Sealed segments that are readable and not drained."""
    outlook: Outlook
    blocked_since_ms: int | None = None
    """Since when the present leader has seen its longest blocked segment blocked: a change of leader starts again."""
    blocking_segments: tuple[int, ...] = ()
    """The first segments that the blocked ones wait for."""
    backlog_records: int | None = None
    """By the leader's own count."""
    stored_per_second: float | None = None
    """Of its topic: the mean of half a minute, by the leader's count. External topics: Spark's."""
    acknowledged_per_second: float | None = None
    """Spark's; None: not counted yet."""
    drained_in_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The whole cluster. At most 100 daemons are described; ``totals`` counts all."""

    cluster: str
    daemon: str
    """Who answered, and asked the others."""
    as_of_ms: int
    complete: bool
    """Every daemon answered, and every shard has a leader."""
    daemons: tuple[DaemonInfo, ...]
    shards: tuple[ShardInfo, ...]
    totals: ClusterTotals
    subscriptions: tuple[SubscriptionSummary, ...] = ()
    """By topic and name."""
