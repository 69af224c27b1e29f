"""What one daemon knows at one instant, as values: the status page, ``/status`` and the gauges read nothing else.

The controller fills these in; nothing here asks anybody. Topics and subscriptions stand under the shard that this
daemon leads, because a follower's picture of them may be a second old.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.protocol.messages import SubscriptionBacklog, SubscriptionDescription, TopicDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """One shard as this daemon sees it."""

    shard: int
    role: str
    """``following``, ``catching_up``, ``leading`` or ``stopped``."""
    leader_epoch: int
    """Of the newest reign this daemon knows of; its own where it leads."""
    head: int
    """Newest durable chunk that it knows."""
    producers: int = 0
    """Producers on record."""
    in_flight_batches: int = 0
    """Accepted, but not durable yet."""
    queue_bytes: int = 0
    """Accepted bytes that wait for the object store."""
    topics: tuple[TopicDescription, ...] = ()
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    backlogs: tuple[SubscriptionBacklog, ...] = ()

    @property
    def leading(self) -> bool:
        """Whether this daemon leads the shard."""
        return self.role == "leading"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """One daemon at one instant."""

    instance: str
    shards: tuple[ShardStatus, ...] = ()
    cluster: str = ""
