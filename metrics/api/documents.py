"""The documents of the HTTP API, version 1, in plain frozen dataclasses. Pure.

1. Names are stable, and units are their last part. A later version may add fields, and removes none.
2. None is unknown or not applicable, never 0. Times are milliseconds since 1970, by the clock of the
   daemon that is named beside them.
3. `TopicInfo`, `SubscriptionInfo` and `BacklogInfo` are those of `headgate.Admin`, so a document has the
   values that the command line prints with ``--json``.
4. A summary costs its leader little; documents with segments are made for one topic or subscription.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.client.admin_values import BacklogInfo, SegmentInfo, SubscriptionInfo, TopicInfo
from headgate.model.entries import SubscriptionType
from headgate.protocol.backlog import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySample:
    """Rates and backlog at one moment, by the leaders' own counts (metrics.api.history)."""

    at_ms: int
    stored_per_second: float | None
    acknowledged_per_second: float | None
    """Since the sample before it."""
    backlog_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentDocument:
    """One component of a daemon's health: its state is ``ok``, ``degraded`` or ``failed``."""

    component: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonShardDocument:
    """A shard as one daemon sees it."""

    shard: int
    role: str
    """``following``, ``catching_up``, ``leading``, ``failed`` or ``stopped``."""
    leader_epoch: int
    head_chunk: int
    fault: str
    """Why the daemon cannot read the ledger; empty if it can."""
    producers: int
    in_flight_batches: int
    queue_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonDocument:
    """One daemon. ``problem`` says why it did not answer; only its name, URL and spread are known then."""

    daemon: str
    url: str | None
    """Where other machines reach it; None: unknown."""
    state: str
    """``ready``, ``degraded``, ``not_ready`` or ``unreachable``."""
    version: str | None = None
    started_at_ms: int | None = None
    spread: str | None = None
    """``settled``: it gets its share of shards; ``settling``: not yet; ``maintenance``, ``leaving``: it gives all away.
    None: unknown."""
    as_of_ms: int | None = None
    components: tuple[ComponentDocument, ...] = ()
    shards: tuple[DaemonShardDocument, ...] = ()
    problem: str = ""
    history: tuple[HistorySample, ...] = ()
    """Of all topics that it led, every 15 seconds, for half an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    """A subscription in one line. ``backlog_records`` is the leader's own count, the rates are Spark's."""

    topic: str
    subscription: str
    type: SubscriptionType | None
    daemon: str
    """The leader of its shard."""
    connected_consumers: int
    disconnected_consumers: int
    """Consumers in their grace period."""
    blocked_segments: int
    draining_segments: int
    """Sealed segments that are readable and not drained."""
    longest_blocked_seconds: float
    outlook: Outlook
    backlog_records: int | None
    oldest_ms: int | None
    """When the oldest unacknowledged record was stored, at Spark's last count."""
    stored_per_second: float | None
    acknowledged_per_second: float | None
    drained_in_seconds: float | None
    unknown_reason: str = ""
    """External topics: why a value is unknown."""
    blocking_segments: tuple[int, ...] = ()
    """The first segments that others wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic in one line. The rate is the mean of half a minute, from the leader's own count."""

    topic: str
    shard: int
    daemon: str
    """The leader of its shard."""
    external: bool
    active_segments: int
    sealed_segments: int
    records: int | None
    """Stored so far in its segments; None for an external topic."""
    size_bytes: int | None
    stored_per_second: float | None
    subscriptions: int
    connected_consumers: int
    blocked_segments: int
    """Over all subscriptions."""
    backlog_records: int | None
    """Over all subscriptions that acknowledge; None: one is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDocument:
    """A shard and its leader; None: no daemon is known to lead it."""

    shard: int
    daemon: str | None
    leader_epoch: int
    head_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedPart:
    """A component that is not ``ok`` at a daemon, or a daemon that did not answer (component ``daemon``)."""

    daemon: str
    component: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """The whole cluster in totals. They lack the shards of daemons that did not answer (``complete`` is false)."""

    cluster: str
    daemon: str
    """Who answered."""
    as_of_ms: int
    complete: bool
    shards: tuple[ShardDocument, ...]
    degraded: tuple[DegradedPart, ...]
    daemons: int
    topics: int
    subscriptions: int
    active_segments: int
    sealed_segments: int
    blocked_segments: int
    longest_blocked_seconds: float
    connected_consumers: int
    disconnected_consumers: int
    stored_per_second: float
    acknowledged_per_second: float | None
    """Over all subscriptions; None: no rate is known."""
    backlog_records: int | None
    """Over all subscriptions that acknowledge; None: one is unknown."""
    history: tuple[HistorySample, ...] = ()
    """The sums over the daemons that answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemons:
    """All daemons that are registered in ZooKeeper."""

    as_of_ms: int
    daemons: tuple[DaemonDocument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """Some topics. ``next`` is the ``after`` of the next page; None: this is the last one."""

    as_of_ms: int
    topics: tuple[TopicSummary, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionPage:
    """Some subscriptions. ``next`` is the ``after`` of the next page; None: this is the last one."""

    as_of_ms: int
    subscriptions: tuple[SubscriptionSummary, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDocument:
    """One topic with its segments and subscriptions, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    summary: TopicSummary
    topic: TopicInfo
    subscriptions: tuple[SubscriptionSummary, ...]
    history: tuple[HistorySample, ...] = ()
    """Empty unless it is one of the busiest 200 topics and subscriptions of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainingSegment:
    """A sealed segment that blocks others, and how fast it is acknowledged; None: not measured yet."""

    segment: int
    backlog_records: int | None
    acknowledged_per_second: float | None
    expected_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriod:
    """A consumer that is disconnected, and since when."""

    consumer: str
    disconnected_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDocument:
    """One subscription with its segments and consumers, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    summary: SubscriptionSummary
    subscription: SubscriptionInfo
    backlog: BacklogInfo
    layout: tuple[SegmentInfo, ...]
    draining: tuple[DrainingSegment, ...]
    grace_periods: tuple[GracePeriod, ...]
    next_drain_check_seconds: float | None
    drain_problem: str | None
    """Why drain checks are not answered at present."""
    history: tuple[HistorySample, ...] = ()
    """Empty unless it is one of the busiest 200 topics and subscriptions of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDocument:
    """Why a request was refused, and what to do."""

    error: str
