"""Decide by which target a subscription's segments are spread: by count, or by load where that was asked for.

Values in, owners out; the policies themselves are coordinator.balancing.target and coordinator.balancing.load_target. A share weighs
its part of the segment's key buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.balancing.bucket_split import Pool
from coordinator.balancing.load_target import WeightedSituation, assign_by_load
from coordinator.balancing.target import Situation, assign
from coordinator.state.subscription import Subscription
from headgate.model.bucket_ranges import Place, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS

ORDINARY_PERCENT = 100
"""What a consumer can do that is only supposed."""


def owners(
    subscription: Subscription,
    pool: Pool,
    holders: Mapping[Place, str],
    heirs: Mapping[Place, Sequence[str]],
) -> dict[Place, str]:
    """Return segment or share → owner for everything in ``pool``; the others are those of `Situation`."""
    if subscription.balance == "count":
        return assign(Situation(pool.places, pool.consumers, holders, heirs))
    known, weights = subscription.consumers, subscription.weights
    capacities = {name: known[name].capacity if name in known else ORDINARY_PERCENT for name in pool.consumers}
    weighed = {
        place: max(1, weights[segment_of(place)] * len(buckets_of(place)) // KEY_BUCKETS)
        for place in pool.places
        if segment_of(place) in weights
    }
    return assign_by_load(WeightedSituation(pool.places, capacities, holders, weighed, heirs))
