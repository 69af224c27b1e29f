"""Decides whether this daemon is alive, and whether it is ready. Pure.

1. Live means that the event loop ticked within `STALLED_SECONDS`: a restart helps against nothing
   else. A daemon that is not live is not ready.
2. A daemon is not ready before it joined the cluster, or while the broker or the object store is
   unreachable: it can neither lead nor take over.
3. It is degraded, but ready, while a shard has no leader, ZooKeeper is unreachable (no new leader is
   elected), the drain service is (blocked segments wait), or the ledger of a shard cannot be read
   (others are served).
4. A daemon that leads no shard is ready, on standby. Only a leader asks the drain service, so a
   service that was never asked does not degrade it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.views.cluster import ComponentState, DaemonState

STALLED_SECONDS = 10.0
"""Far above any pause of a busy machine, whose loop ticks four times a second; below the watchdog's
30 s."""
MAX_NAMED_SHARDS = 5
"""Shards without a leader that a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    tick_age_seconds: float
    """Time since the loop last ticked."""
    zookeeper: str
    """``connected``, or another state of the ZooKeeper session."""
    zookeeper_problem: str | None = None
    """What ZooKeeper refuses this daemon, and what to do."""
    broker_connected: bool
    drain: str
    """``ready``, ``starting``, ``degraded``, or ``off`` before its first reply."""
    drain_reason: str
    """Why the drain service is not ready."""
    shards: int
    """Shards of the cluster; 0 before this daemon joined it."""
    shards_led: int
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Shard → why this daemon cannot read its ledger."""
    without_leader: Mapping[int, str] = field(default_factory=dict)
    """Shards that no daemon leads → the reason."""
    store_problems: Mapping[str, str] = field(default_factory=dict)
    """Kind of operation → why the last one of that kind failed. Reads that succeed say nothing about writes."""


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    name: str
    state: ComponentState
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    live: bool
    live_reason: str
    components: tuple[ComponentHealth, ...]

    @property
    def ready(self) -> bool:
        return all(component.state is not ComponentState.FAILED for component in self.components)

    @property
    def state(self) -> DaemonState:
        """``ready``, ``degraded`` (and ready) or ``not_ready``."""
        if not self.ready:
            return "not_ready"
        return "ready" if all(component.state is ComponentState.OK for component in self.components) else "degraded"


def judge_health(facts: HealthFacts) -> Health:
    live = facts.tick_age_seconds <= STALLED_SECONDS
    live_reason = f"the event loop ticked {facts.tick_age_seconds:.1f} s ago"
    if not live:
        live_reason += f"; the limit is {STALLED_SECONDS:g} s"
    loop = ComponentHealth("loop", ComponentState.OK if live else ComponentState.FAILED, live_reason)
    judges = (_cluster, _zookeeper, _broker, _store, _ledger, _drain)
    return Health(live, live_reason, (loop, *(judge(facts) for judge in judges)))


def _cluster(facts: HealthFacts) -> ComponentHealth:
    if facts.shards == 0:
        return ComponentHealth(
            "cluster", ComponentState.FAILED, "not joined yet: waiting for the cluster configuration from ZooKeeper"
        )
    leads = f"leads {facts.shards_led} of {facts.shards} shards"
    if not facts.without_leader:
        return ComponentHealth("cluster", ComponentState.OK, leads)
    named = [f"shard {shard} ({reason})" for shard, reason in sorted(facts.without_leader.items())]
    others = f" and {len(named) - MAX_NAMED_SHARDS} more" if len(named) > MAX_NAMED_SHARDS else ""
    return ComponentHealth(
        "cluster",
        ComponentState.DEGRADED,
        f"{leads}; without a leader: {', '.join(named[:MAX_NAMED_SHARDS])}{others}",
    )


def _zookeeper(facts: HealthFacts) -> ComponentHealth:
    if facts.zookeeper_problem is not None:
        return ComponentHealth(
            "zookeeper",
            ComponentState.DEGRADED,
            f"{facts.zookeeper_problem}; leaders continue, but this daemon cannot take over",
        )
    if facts.zookeeper == "connected":
        return ComponentHealth("zookeeper", ComponentState.OK, "connected")
    return ComponentHealth(
        "zookeeper",
        ComponentState.DEGRADED,
        f"{facts.zookeeper}: leaders continue, but no new leader is elected; "
        "check that the ZooKeeper servers run and are reachable",
    )


def _broker(facts: HealthFacts) -> ComponentHealth:
    if facts.broker_connected:
        return ComponentHealth("broker", ComponentState.OK, "connected")
    return ComponentHealth(
        "broker", ComponentState.FAILED, "not connected: clients cannot reach this daemon; check [broker]"
    )


def _store(facts: HealthFacts) -> ComponentHealth:
    if not facts.store_problems:
        return ComponentHealth("store", ComponentState.OK, "the last operation of each kind succeeded")
    failed = "; ".join(
        f"{kind} failed{reason and ': '}{reason}" for kind, reason in sorted(facts.store_problems.items())
    )
    return ComponentHealth(
        "store", ComponentState.FAILED, f"{failed}: this daemon cannot lead; check [ledger] url and its permissions"
    )


def _ledger(facts: HealthFacts) -> ComponentHealth:
    if not facts.unreadable:
        return ComponentHealth("ledger", ComponentState.OK, "no unreadable object")
    shards = "; ".join(f"shard {shard}: {reason}" for shard, reason in sorted(facts.unreadable.items()))
    return ComponentHealth(
        "ledger",
        ComponentState.DEGRADED,
        f"{shards}; this daemon does not lead these shards, and reads the objects again within a minute",
    )


def _drain(facts: HealthFacts) -> ComponentHealth:
    if facts.drain == "ready":
        return ComponentHealth("drain", ComponentState.OK, "ready")
    if facts.drain == "off" and facts.shards_led == 0:
        return ComponentHealth("drain", ComponentState.OK, "not asked yet, since this daemon leads no shard")
    return ComponentHealth(
        "drain",
        ComponentState.DEGRADED,
        f"{facts.drain}: {facts.drain_reason or 'no reason given'}; children of split and merged segments stay blocked",
    )
