"""The whole cluster, as the daemon of one leader sees it: the values of `ClusterReply`. Pure.

None is unknown or not applicable, never 0. Times are milliseconds since 1970, by the clock of the daemon that is named
beside them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.protocol.backlog import Outlook

MAX_DESCRIBED_DAEMONS: Final = 100
"""More daemons are only counted."""
MAX_REASON_CHARACTERS: Final = 500
"""A longer reason is cut: that of an unreadable ledger names every shard."""
MAX_BLOCKING_SEGMENTS: Final = 5
"""Segments that a subscription waits for; the first ones are named."""


class ComponentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A part that a daemon depends on, and whether it works."""

    component: str
    state: str
    reason: str


class DaemonDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One daemon. ``problem`` says why it did not answer; what it alone knows is then missing."""

    daemon: str
    state: str
    url: str | None = None
    version: str | None = None
    started_at_ms: int | None = None
    spread: str | None = None
    as_of_ms: int | None = None
    components: list[ComponentDescription] = []
    problem: str = ""


class ShardDescription(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Who leads a shard, in which term."""

    shard: int
    leader_epoch: int
    daemon: str | None = None


class ClusterTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sums over the whole cluster. They lack the shards of daemons that did not answer."""

    daemons: int
    topics: int
    subscriptions: int
    active_segments: int
    sealed_segments: int
    blocked_segments: int
    connected_consumers: int
    disconnected_consumers: int
    stored_per_second: float
    acknowledged_per_second: float | None = None
    backlog_records: int | None = None


class ClusterOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The daemons, shards and totals of a cluster."""

    cluster: str
    daemon: str
    as_of_ms: int
    complete: bool
    daemons: list[DaemonDescription]
    shards: list[ShardDescription]
    totals: ClusterTotals


class SubscriptionSummaryDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription in one line."""

    topic: str
    subscription: str
    type: str | None
    daemon: str
    connected_consumers: int
    disconnected_consumers: int
    blocked_segments: int
    draining_segments: int
    outlook: Outlook
    blocked_since_ms: int | None = None
    blocking_segments: list[int] = []
    backlog_records: int | None = None
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    drained_in_seconds: float | None = None
