"""Chooses the subscriptions, or topics and subscriptions, that have series of their own. Pure.

1. The busiest are chosen. A record per second that is stored or acknowledged counts 1; a record that
   waits counts one per hour, so that a large backlog without traffic is not forgotten.
2. One that is chosen stays until another one is `KEPT_FACTOR` times as busy. Each change ends series
   and begins others, so two subscriptions that are about as busy must not alternate.
3. Equally busy ones: first those that are chosen already, then by name.
"""

from collections.abc import Collection, Mapping
from heapq import nsmallest
from typing import Final

from headgate.views.subscriptions import BacklogInfo

KEPT_FACTOR: Final = 2.0
"""Two that swap places must differ by this factor in one direction, then in the other."""
_WAITING_PER_SECOND: Final = 1 / 3600
"""What a waiting record adds to the activity."""

SubscriptionKey = tuple[str, str]


def activity(backlog: BacklogInfo) -> float:
    """Return how busy a subscription is, in records per second (rule 1). What is not known counts 0."""
    return records_per_second(backlog.stored_per_second, backlog.acknowledged_per_second, backlog.records)


def records_per_second(stored: float | None, acknowledged: float | None, backlog_records: int | None) -> float:
    """Return the activity of rates and a backlog (rule 1)."""
    return (stored or 0.0) + (acknowledged or 0.0) + (backlog_records or 0) * _WAITING_PER_SECOND


def choose_busiest(
    activities: Mapping[SubscriptionKey, float], chosen: Collection[SubscriptionKey], limit: int
) -> frozenset[SubscriptionKey]:
    """Return at most ``limit`` of the subscriptions in ``activities``; ``chosen`` are those of the last time."""

    def rank(key: SubscriptionKey) -> tuple[float, bool, SubscriptionKey]:
        kept = key in chosen
        return -activities[key] * (KEPT_FACTOR if kept else 1.0), not kept, key

    return frozenset(nsmallest(limit, activities, key=rank))
