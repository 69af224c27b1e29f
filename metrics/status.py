"""The status of the shards of one daemon at one moment: for metrics, and as documents of the API. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCounts:
    """Sums over all topics and subscriptions of a shard, which cost little to collect."""

    active_segments: int = 0
    sealed_segments: int = 0
    blocked_segments: int = 0
    """Summed over subscriptions."""
    connected_consumers: int = 0
    consumers_in_grace: int = 0
    longest_blocked_seconds: float = 0.0
    """How long the longest blocked segment has been blocked, under any leader."""
    kept_deliveries: int = 0
    """Records of QUEUE subscriptions that were begun or have failed, dead ones included."""
    dead_records: int = 0
    unsent_dead_letters: int = 0
    """Those of them whose sender has reported a problem."""
    full_segments: int = 0
    """Segments of a QUEUE of which no further record is delivered, because too many were begun or have failed."""
    parked_keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    shard: int
    role: str
    """``following``, ``catching_up``, ``leading``, ``failed`` or ``stopped``."""
    leader_epoch: int
    """Leader epoch of the newest term that this daemon knows of; its own if it leads."""
    head_chunk: int
    fault: str = ""
    """Why this daemon cannot read the ledger; the text names the object."""
    keeps_state: bool = True
    """Whether the state is in memory. Otherwise a new term begins with the newest snapshot."""
    replay_lag_seconds: float = 0.0
    """How long this daemon has not known the end of the ledger; 0 if it leads."""
    producers: int = 0
    named_producers: int = 0
    in_flight_batches: int = 0
    waiting_requests: int = 0
    """Large queries and commands that are being answered, or wait for that."""
    queue_bytes: int = 0
    counts: ShardCounts = ShardCounts()
