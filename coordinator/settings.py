"""Durations of a subscription's coordinator. The daemon's settings define the defaults and their reasons. Pure."""

from dataclasses import dataclass

from shard.balancing.weights import CHANGE_INTERVAL_SECONDS, SAMPLE_INTERVAL_SECONDS
from shard.subscriptions.sessions import MISSED_HEARTBEATS


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
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
