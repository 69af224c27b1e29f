"""Decide who of a subscription's consumers is alive, silent or to be evicted, and who may speak for a name.

Values in, values out. Times come in as values: ``now_ms`` is wall time, comparable with what the ledger says; seconds
are a leader's own monotonic clock and mean nothing to the next leader.

Who may speak for a name:

1. Identity is (incarnation, client id). A name that nobody uses may be taken by anybody.
2. The same identity is the same program again: it comes back to what it holds.
3. A lower incarnation has been replaced: it is fenced.
4. Anyone else replaces who is there: a higher incarnation, or another client with the same one, which cannot be told
   from a second process and must not share a generation with the first.

Who is alive:

5. A consumer that was not heard for `MISSED_HEARTBEATS` intervals has gone silent.
6. A silent consumer is evicted when its grace period is over by the ledger's clock, so that a change of leader does
   not renew it, or when this leader itself has seen it silent for as long, should the ledger's clock stand ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.state.subscription import RegisteredConsumer

MISSED_HEARTBEATS = 3
"""Heartbeats in a row that must be missing before a consumer counts as silent: two may be lost without a trace."""


class Claim(StrEnum):
    """What somebody who speaks for a name is."""

    FRESH = "fresh"
    """Nobody has the name."""
    CURRENT = "current"
    """It is the one on record."""
    REPLACES = "replaces"
    """It takes the name from the one on record."""
    OUTDATED = "outdated"
    """It lost the name to the one on record."""


def judge_claim(known: RegisteredConsumer | None, incarnation: int, client_id: str) -> Claim:
    """Return what ``client_id``, speaking as ``incarnation``, is to the consumer on record under that name."""
    if known is None:
        return Claim.FRESH
    if (incarnation, client_id) == (known.incarnation, known.client_id):
        return Claim.CURRENT
    return Claim.OUTDATED if incarnation < known.incarnation else Claim.REPLACES


@dataclass(frozen=True, slots=True)
class ExpiredConsumers:
    """Names, sorted."""

    disconnected: tuple[str, ...]
    """Connected so far, and not heard for too long."""
    evicted: tuple[str, ...]
    """Silent for longer than the grace period."""


def find_expired(
    consumers: Mapping[str, RegisteredConsumer],
    last_seen_seconds: Mapping[str, float],
    *,
    now_seconds: float,
    now_ms: int,
    heartbeat_interval_seconds: float,
    grace_seconds: float,
) -> ExpiredConsumers:
    """Return whose time is up.

    ``last_seen_seconds``: for a connected consumer when it was heard last, for a silent one since when this leader has
    known it to be silent. It has an entry for every consumer.
    """
    disconnected: list[str] = []
    evicted: list[str] = []
    for name, consumer in consumers.items():
        unseen_seconds = now_seconds - last_seen_seconds[name]
        if consumer.disconnected_at_ms is None:
            if unseen_seconds >= MISSED_HEARTBEATS * heartbeat_interval_seconds:
                disconnected.append(name)
        elif now_ms - consumer.disconnected_at_ms >= grace_seconds * 1000 or unseen_seconds >= grace_seconds:
            evicted.append(name)
    return ExpiredConsumers(tuple(sorted(disconnected)), tuple(sorted(evicted)))
