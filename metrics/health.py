"""Decides whether this daemon is alive, and whether it is ready. Pure.

1. Live means that the event loop ticked within `STALLED_SECONDS`: a restart helps against nothing
   else. A daemon that is not live is not ready.
2. A daemon is not ready before it joined the cluster, or while it lacks what a leader needs: the
   broker, or a store that accepts writes. It can neither lead nor take over.
3. It is degraded, but ready, while a shard has no leader, ZooKeeper is unreachable (no new leader is
   elected), the drain service is (blocked segments wait), the ledger of a shard cannot be read
   (others are served), or is another node's too, its clock is wrong, or it has hardly any file descriptors left.
4. A daemon that leads no shard is ready, on standby. Only a leader asks the drain service, so a
   service that was never asked does not degrade it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.model.text import listed
from headgate.views.cluster import ComponentInfo, ComponentState, DaemonState

STALLED_SECONDS = 10.0
"""Far above any pause of a busy machine, whose loop ticks four times a second; below the watchdog's 30 s."""
CLOCK_TOLERANCE_SECONDS = 10.0
"""As much as `shard.state.ledger_time` follows at once."""
DESCRIPTORS_FRACTION = 0.9
"""Part of the file descriptors from which a daemon is degraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    tick_age_seconds: float
    zookeeper: str
    """``connected``, or another state of the ZooKeeper session."""
    zookeeper_problem: str | None = None
    """What ZooKeeper refuses this daemon, and what to do."""
    broker_connected: bool
    broker_problem: str | None = None
    drain: str
    """``ready``, ``starting``, ``degraded``, or ``off`` before its first reply."""
    drain_reason: str
    shards: int
    """Shards of the cluster; 0 before this daemon joined it."""
    shards_led: int
    ledger_url: str = "the store"
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Shard → why this daemon cannot read its ledger."""
    contested: Sequence[int] = ()
    """Shards that another node takes from this daemon again and again, which has their locks."""
    without_leader: Mapping[int, str] = field(default_factory=dict)
    """Shards that no daemon leads → the reason."""
    store_problems: Mapping[str, str] = field(default_factory=dict)
    """Kind of operation → why the last one of that kind failed. Reads that succeed say nothing about writes."""
    clock_held_seconds: float = 0.0
    """A step of this machine's clock that the daemon does not follow yet."""
    ledger_ahead_seconds: float = 0.0
    """How far the time of a ledger is ahead of this machine's clock."""
    descriptors: tuple[int, int] = (0, 0)
    """File descriptors that are open, and that may be open; not positive: any number."""


@dataclass(frozen=True, slots=True)
class Health:
    live: bool
    live_reason: str
    components: tuple[ComponentInfo, ...]

    @property
    def ready(self) -> bool:
        return all(component.state is not ComponentState.FAILED for component in self.components)

    @property
    def state(self) -> DaemonState:
        """``ready``, ``degraded`` (and ready) or ``not_ready``."""
        if not self.ready:
            return "not_ready"
        return "ready" if all(component.state is ComponentState.OK for component in self.components) else "degraded"

    @property
    def summary(self) -> str:
        """The state, what the daemon leads, and each part that does not work."""
        shown = (each for each in self.components if each.component == "cluster" or each.state is not ComponentState.OK)
        return f"{self.state}: {'; '.join(f'{each.component}: {each.reason}' for each in shown)}"


_Verdict = tuple[ComponentState, str]
_OK, _DEGRADED, _FAILED = ComponentState.OK, ComponentState.DEGRADED, ComponentState.FAILED


def judge_health(facts: HealthFacts) -> Health:
    live = facts.tick_age_seconds <= STALLED_SECONDS
    live_reason = f"the event loop ticked {facts.tick_age_seconds:.1f} s ago"
    if not live:
        live_reason += f"; the limit is {STALLED_SECONDS:g} s"
    verdicts = {
        "loop": (_OK if live else _FAILED, live_reason),
        "cluster": _cluster(facts),
        "zookeeper": _zookeeper(facts),
        "broker": _broker(facts),
        "store": _store(facts),
        "ledger": _ledger(facts),
        "drain": _drain(facts),
        "clock": _clock(facts),
        "descriptors": _descriptors(facts),
    }
    components = (
        ComponentInfo(component=name, state=state, reason=reason) for name, (state, reason) in verdicts.items()
    )
    return Health(live, live_reason, tuple(components))


def _cluster(facts: HealthFacts) -> _Verdict:
    if facts.shards == 0:
        source = "the ledger, since ZooKeeper has none" if facts.store_problems else "ZooKeeper"
        return _FAILED, f"not joined yet: waiting for the cluster configuration from {source}"
    leads = f"leads {facts.shards_led} of {facts.shards} shards"
    if not facts.without_leader:
        return _OK, leads
    named = [f"shard {shard} ({reason})" for shard, reason in sorted(facts.without_leader.items())]
    return _DEGRADED, f"{leads}, and these are without a leader: {listed(named)}"


def _zookeeper(facts: HealthFacts) -> _Verdict:
    if facts.zookeeper_problem is not None:
        return _DEGRADED, f"{facts.zookeeper_problem}; leaders continue, but this daemon cannot take over"
    if facts.zookeeper == "connected":
        return _OK, "connected"
    check = "check that the ZooKeeper servers run and are reachable; if they have lost their data, restart the daemons"
    return _DEGRADED, f"{facts.zookeeper}: leaders continue, half a second slower, but no new one is elected; {check}"


def _broker(facts: HealthFacts) -> _Verdict:
    if facts.broker_connected:
        return _OK, "connected"
    why = "" if facts.broker_problem is None else f" ({facts.broker_problem})"
    return _FAILED, f"not connected{why}: clients cannot reach this daemon; check [broker]"


def _store(facts: HealthFacts) -> _Verdict:
    if not facts.store_problems:
        return _OK, "the last operation of each kind succeeded"
    failed = "; ".join(
        f"{kind} failed{reason and ': '}{reason}" for kind, reason in sorted(facts.store_problems.items())
    )
    check = "check [ledger] url, its permissions or credentials, its free space and inodes"
    # The daemon also tries to write, and to read that, once it has joined.
    if "create" not in facts.store_problems and facts.shards:
        return _DEGRADED, f"{failed}: others succeed; {check}"
    return _FAILED, f"{failed}: this daemon cannot lead; {check}"


def _ledger(facts: HealthFacts) -> _Verdict:
    if facts.contested:
        taken = f"another node takes shards {listed(facts.contested)} from this daemon, which has their locks"
        return _DEGRADED, f"{taken}: it writes to {facts.ledger_url} with another ZooKeeper; stop one of the two"
    if not facts.unreadable:
        return _OK, "no unreadable object"
    shards = listed([f"shard {shard}: {reason}" for shard, reason in sorted(facts.unreadable.items())], separator="; ")
    return _DEGRADED, f"{shards}; this daemon does not lead them, and reads {facts.ledger_url} again within a minute"


def _drain(facts: HealthFacts) -> _Verdict:
    if facts.drain == "ready":
        return _OK, "ready"
    if facts.drain == "off" and facts.shards_led == 0:
        return _OK, "not asked yet, since this daemon leads no shard"
    reason = facts.drain_reason or facts.drain
    check = "see the log of Spark, or of the job that counts"
    return _DEGRADED, f"{reason}: children of split and merged segments stay blocked; {check}"


def _clock(facts: HealthFacts) -> _Verdict:
    if facts.clock_held_seconds:
        wrong = f"stepped by {facts.clock_held_seconds:.0f} s, which is followed once it has lasted for ten minutes"
    elif facts.ledger_ahead_seconds > CLOCK_TOLERANCE_SECONDS:
        wrong = f"is {facts.ledger_ahead_seconds:.0f} s behind the time of a ledger, written while a clock was ahead"
    else:
        return _OK, "steady"
    return _DEGRADED, f"the clock {wrong}; check the time synchronization"


def _descriptors(facts: HealthFacts) -> _Verdict:
    opened, limit = facts.descriptors
    text = f"{opened} of {limit} file descriptors are open" if limit > 0 else "no limit"
    if limit <= 0 or opened < DESCRIPTORS_FRACTION * limit:
        return _OK, text
    return _DEGRADED, f"{text}: without them connections and files fail; raise LimitNOFILE"
