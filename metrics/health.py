"""Whether this daemon is alive, and whether it is safe to rely on.

Pure: facts in, two judgements and their reasons out. HeartbeatReply means that the event loop turns, and nothing else:
a daemon that is cut off is not cured by a restart. Ready means that this daemon can take part in its cluster, leading
or not.

The rules:

1. The loop ticked within `STALLED_SECONDS`, or the daemon is neither alive nor ready.
2. Not ready: the loop stands, the cluster was not joined yet, or broker or store is out of reach. Such a daemon can
   neither lead nor take over.
3. Degraded, but ready: ZooKeeper is out of reach after the cluster was joined (leaders go on, nobody new is elected),
   or nobody counts what is drained (children wait, all else goes on).
4. Leading no shard is no fault: somebody must stand by.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STALLED_SECONDS = 10.0
"""The loop ticks four times a second; far above any pause of a busy machine, below the watchdog's 30 s."""


class ComponentState(StrEnum):
    """How one part is."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """What the judgement rests on."""

    tick_age_seconds: float
    """Since the loop last ticked."""
    zookeeper: str
    """``connected``, or in a word why not."""
    broker_connected: bool
    drain: str
    """``ready``, ``starting``, ``degraded`` or ``off``."""
    drain_reason: str
    """Why it is not ready."""
    shards: int
    """Shards this daemon takes part in; 0 until it joined the cluster."""
    shards_led: int
    store_reachable: bool = True


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    """One part's state, and why."""

    name: str
    state: ComponentState
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """The judgement."""

    live: bool
    live_reason: str
    components: tuple[ComponentHealth, ...]

    @property
    def ready(self) -> bool:
        """Whether no part has failed."""
        return all(component.state is not ComponentState.FAILED for component in self.components)

    @property
    def state(self) -> str:
        """In a word: ``ready``, ``degraded`` (ready all the same) or ``not_ready``."""
        if not self.ready:
            return "not_ready"
        return "ready" if all(component.state is ComponentState.OK for component in self.components) else "degraded"


def judge_health(facts: HealthFacts) -> Health:
    """Return what follows from ``facts``."""
    live = facts.tick_age_seconds <= STALLED_SECONDS
    ticked = f"the event loop ticked {facts.tick_age_seconds:.1f} s ago"
    live_reason = ticked if live else f"{ticked}; it stands when that is more than {STALLED_SECONDS:g} s"
    return Health(
        live,
        live_reason,
        (
            ComponentHealth("loop", ComponentState.OK if live else ComponentState.FAILED, live_reason),
            _cluster(facts),
            _zookeeper(facts),
            _broker(facts),
            _store(facts),
            _drain(facts),
        ),
    )


def _cluster(facts: HealthFacts) -> ComponentHealth:
    if facts.shards == 0:
        return ComponentHealth(
            "cluster", ComponentState.FAILED, "not joined yet: the number of shards is kept in ZooKeeper"
        )
    return ComponentHealth("cluster", ComponentState.OK, f"leads {facts.shards_led} of {facts.shards} shards")


def _zookeeper(facts: HealthFacts) -> ComponentHealth:
    if facts.zookeeper == "connected":
        return ComponentHealth("zookeeper", ComponentState.OK, "connected")
    return ComponentHealth(
        "zookeeper",
        ComponentState.DEGRADED,
        f"{facts.zookeeper}: leaders go on, but no new leader is elected; see that its servers run and can be reached",
    )


def _broker(facts: HealthFacts) -> ComponentHealth:
    if facts.broker_connected:
        return ComponentHealth("broker", ComponentState.OK, "connected")
    return ComponentHealth(
        "broker", ComponentState.FAILED, "not connected: clients cannot reach this daemon; see [broker]"
    )


def _store(facts: HealthFacts) -> ComponentHealth:
    if facts.store_reachable:
        return ComponentHealth("store", ComponentState.OK, "no error since it was last asked")
    return ComponentHealth(
        "store", ComponentState.FAILED, "out of reach: nothing can be committed or read; see [ledger] url"
    )


def _drain(facts: HealthFacts) -> ComponentHealth:
    if facts.drain == "ready":
        return ComponentHealth("drain", ComponentState.OK, "ready")
    return ComponentHealth(
        "drain",
        ComponentState.DEGRADED,
        f"{facts.drain}: {facts.drain_reason or 'no reason given'}; children of split and merged segments wait",
    )
