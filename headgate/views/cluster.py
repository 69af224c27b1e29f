"""The whole cluster, as one daemon sees it, and what has changed: in replies, from `Admin`, and in the HTTP API.

Times are milliseconds since 1970 by the clock of the daemon that is named beside them, rates are per second. None means
unknown or not applicable, never 0.
"""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from headgate.model.entries import SubscriptionType
from headgate.model.text import listed
from headgate.views.subscriptions import Outlook

MAX_DESCRIBED_DAEMONS: Final = 100
"""More daemons are only counted."""
MAX_REASON_CHARACTERS: Final = 500
"""A reply cuts a longer reason: that of an unreadable ledger names every shard."""
MAX_BLOCKING_SEGMENTS: Final = 5
"""Segments that a subscription waits for; the first ones are named."""


class ComponentState(StrEnum):
    """Whether a part of a daemon works."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


DaemonState = Literal["ready", "degraded", "not_ready", "unreachable"]
"""``degraded`` is ready, but a part of it does not work. ``unreachable``: it is alive in ZooKeeper, and did not answer
the daemon that was asked."""
SpreadState = Literal["settled", "settling", "maintenance", "leaving", "no_broker", "no_store"]
"""``settled``: it gets its share of shards; ``settling``: not yet; the others: it gives all away.
``no_broker``, ``no_store``: it does not reach the broker, or cannot write to the store."""


class ComponentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A part that a daemon depends on: ``broker``, ``store``, ``zookeeper``, ``drain`` (Spark) and others."""

    component: str
    state: ComponentState
    reason: str


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
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


class ShardInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Who leads a shard; None: no daemon is known to."""

    shard: int
    leader_epoch: int
    """The term, or the last one that is known."""
    daemon: str | None = None
    head_chunk: int = 0


class ClusterTotals(msgspec.Struct, frozen=True, kw_only=True):
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
    blocked_since_ms: int | None = None
    """Since when the longest blocked segment is blocked; None: none is."""


class SubscriptionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription in one line."""

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
    outlook: Outlook
    blocked_since_ms: int | None = None
    """Since when its longest blocked segment is blocked; None: none is."""
    blocking_segments: tuple[int, ...] = ()
    """The first segments that the blocked ones wait for."""
    backlog_records: int | None = None
    """The leader's own count."""
    oldest_ms: int | None = None
    """When the oldest unacknowledged record was stored, at Spark's last count."""
    stored_per_second: float | None = None
    """The rate of its topic: the mean of half a minute, by the leader's count. External topics: Spark's."""
    acknowledged_per_second: float | None = None
    """Spark's; None: not counted yet."""
    drained_in_seconds: float | None = None
    unknown_reason: str = ""
    """External topics: why a value is unknown."""
    subscription_id: int = 0


class FeatureLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemons of a cluster may write, and which level they could have."""

    level: int
    newest: int
    """The last level that a live daemon supports. `headgate cluster upgrade` raises the level to it."""
    problems: tuple[str, ...] = ()
    """Why it cannot be raised yet: daemons that do not support the newest level, or of which that is not known."""


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster. A reply describes at most 100 daemons; ``totals`` counts all."""

    cluster: str
    daemon: str
    """Who answered, and asked the others."""
    as_of_ms: int
    complete: bool
    """Every daemon answered, and every shard has a leader."""
    shards: tuple[ShardInfo, ...]
    totals: ClusterTotals
    feature_level: FeatureLevel | None = None
    """None: the daemon that answered has not heard of it yet."""
    daemons: tuple[DaemonInfo, ...] = ()
    subscriptions: tuple[SubscriptionSummary, ...] = ()
    """Sorted by topic and name."""

    def maintenance_effect(self, daemon: str) -> str:
        """Say what happens to the shards of ``daemon`` in maintenance, as far as this shows it."""
        led = [each.shard for each in self.shards if each.daemon == daemon]
        others = [each for each in self.daemons if each.daemon != daemon]
        able = [x.daemon for x in others if x.spread in ("settled", "settling") and x.state != "unreachable"]
        if not led:
            return "it leads no shard"
        if able:
            return f"it transfers its shards {listed(led)} to {listed(able)}"
        lacking = listed(
            [f"{each.daemon} is {'in ' * (each.spread == 'maintenance')}{each.spread or each.state}" for each in others]
        )
        reason = f"none can now: {lacking}" if others else "there is no other one"
        return f"it keeps its shards {listed(led)} until another daemon can take them; {reason}"


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    shard: int
    leader_epoch: int
    chunk: int
    event: str
    """The type of the entry, as in docs/ledger.md."""
    topic: str | None
    subscription: str | None
    text: str


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[LedgerEvent, ...]
    next: int | None
    """All events from this time on are here: give it as ``before_ms`` to find older ones. None: there are none."""
