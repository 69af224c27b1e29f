"""Decides which consumer instance owns a name, and which consumers are disconnected or evicted.

Pure. ``now_ms`` is wall time, comparable with the ledger's. Seconds are the leader's own monotonic
clock.

1. An instance is identified by (incarnation, client id). Any instance may claim an unused name.
2. The same identity is the same instance: it returns to what it holds.
3. A lower incarnation was replaced: it is fenced.
4. Any other instance replaces the registered one: a higher incarnation, or the same at another
   client, which may be a second process that must not share a generation.
5. A consumer without a heartbeat for `MISSED_HEARTBEATS` intervals is disconnected.
6. It is evicted when this leader has seen it disconnected for the grace period. By the ledger's clock, which a change
   of leader does not renew, the period may end before, but not before the lease of the consumer: it may be alive, and
   the clock may have been set, or differ from that of the previous leader.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shard.state.consumers import RegisteredConsumer

MISSED_HEARTBEATS = 3
"""Consecutive missed heartbeats after which a consumer is disconnected: two may be lost in transit."""


class Claim(StrEnum):
    FRESH = "fresh"
    """No instance is registered under the name."""
    CURRENT = "current"
    """It is the registered instance."""
    REPLACES = "replaces"
    """It replaces the registered instance."""
    OUTDATED = "outdated"
    """The registered instance has replaced it."""


def judge_claim(known: RegisteredConsumer | None, incarnation: int, client_id: str) -> Claim:
    if known is None:
        return Claim.FRESH
    if (incarnation, client_id) == (known.incarnation, known.client_id):
        return Claim.CURRENT
    return Claim.OUTDATED if incarnation < known.incarnation else Claim.REPLACES


@dataclass(frozen=True, slots=True)
class ExpiredConsumers:
    disconnected: tuple[str, ...]
    """Connected until now, without a heartbeat for too long."""
    evicted: tuple[str, ...]
    """Disconnected for longer than the grace period."""


NONE_EXPIRED = ExpiredConsumers((), ())


def find_expired(
    consumers: Mapping[str, RegisteredConsumer],
    last_seen_seconds: Mapping[str, float],
    *,
    now_seconds: float,
    now_ms: int,
    heartbeat_interval_seconds: float,
    grace_seconds: float,
    lease_seconds: float,
) -> ExpiredConsumers:
    """Return the consumers whose heartbeat or grace period has expired.

    ``last_seen_seconds`` has an entry for each consumer: the last heartbeat of a connected one, or
    since when this leader has known a disconnected one to be so.
    """
    disconnected: list[str] = []
    evicted: list[str] = []
    for name, consumer in consumers.items():
        unseen_seconds = now_seconds - last_seen_seconds[name]
        if consumer.disconnected_at_ms is None:
            if unseen_seconds >= MISSED_HEARTBEATS * heartbeat_interval_seconds:
                disconnected.append(name)
        elif unseen_seconds >= grace_seconds or (
            unseen_seconds >= lease_seconds and now_ms - consumer.disconnected_at_ms >= grace_seconds * 1000
        ):
            evicted.append(name)
    if not disconnected and not evicted:
        return NONE_EXPIRED
    return ExpiredConsumers(tuple(sorted(disconnected)), tuple(sorted(evicted)))
