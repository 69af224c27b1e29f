"""Overviews of a cluster, and backlogs, with invented numbers, as `describe_cluster` sends them and as `Admin` returns them."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from headgate.protocol.backlog import summarize_backlog
from headgate.views.cluster import (
    ClusterInfo,
    ClusterTotals,
    ComponentInfo,
    ComponentState,
    DaemonInfo,
    ShardInfo,
    SubscriptionSummary,
)
from headgate.views.subscriptions import BacklogInfo, SegmentBacklogInfo

NOW_MS = 1_700_000_000_000


def daemon(name="vm-1", *components, **fields):
    values = {
        "state": "ready",
        "url": f"http://{name}:9464",
        "version": "0.1.0",
        "started_at_ms": NOW_MS - 180_000,
        "as_of_ms": NOW_MS,
        "components": components or (ComponentInfo(component="drain", state=ComponentState.OK, reason="ready"),),
    }
    return DaemonInfo(daemon=name, **values | fields)


def unreachable(name="vm-2"):
    return DaemonInfo(
        daemon=name, state="unreachable", url=f"http://{name}:9464", problem=f"daemon '{name}' did not answer"
    )


def totals(**fields):
    values = {
        "daemons": 1,
        "topics": 1,
        "subscriptions": 1,
        "active_segments": 3,
        "sealed_segments": 1,
        "blocked_segments": 0,
        "connected_consumers": 2,
        "disconnected_consumers": 0,
        "stored_per_second": 20.0,
        "acknowledged_per_second": 25.0,
        "backlog_records": 1200,
    }
    return ClusterTotals(**values | fields)


def subscription(name="billing", topic="orders", **fields):
    values = {
        "type": "STREAM",
        "daemon": "vm-1",
        "connected_consumers": 2,
        "disconnected_consumers": 0,
        "blocked_segments": 0,
        "draining_segments": 0,
        "outlook": "shrinking",
        "backlog_records": 1200,
        "stored_per_second": 20.0,
        "acknowledged_per_second": 25.0,
        "drained_in_seconds": 240.0,
    }
    return SubscriptionSummary(topic=topic, subscription=name, **values | fields)


def blocked(name="billing", seconds=90, segments=(0,), **fields):
    values = {
        "blocked_segments": 2,
        "draining_segments": len(segments),
        "blocked_since_ms": NOW_MS - seconds * 1000,
        "blocking_segments": tuple(segments),
    }
    return subscription(name, **values | fields)


def cluster(*subscriptions, daemons=(), leaders=("vm-1", "vm-1"), **fields):
    made = daemons or (daemon(),)
    values = {
        "complete": True,
        "totals": totals(daemons=len(made), subscriptions=len(subscriptions)),
        "shards": tuple(ShardInfo(shard=n, leader_epoch=3, daemon=name) for n, name in enumerate(leaders)),
    }
    return ClusterInfo(
        cluster="local",
        daemon="vm-1",
        as_of_ms=NOW_MS,
        daemons=tuple(made),
        subscriptions=tuple(subscriptions),
        **values | fields,
    )


def overview_message(daemon_name="vm-1"):
    return structs.replace(cluster(leaders=()), daemon=daemon_name, daemons=())


def backlog(segments: Sequence[SegmentBacklogInfo], **fields: Any) -> BacklogInfo:
    """Return the backlog of `billing`, a STREAM of topic orders that Spark has counted, unless ``fields`` say otherwise."""
    given = {"topic": "orders", "subscription": "billing", "subscription_type": "STREAM", "counted_by": "spark"}
    return summarize_backlog(segments=segments, **{"as_of_ms": 1, **given, **fields})
