"""Computes the target of a subscription: which consumer should own which slice. Pure.

It combines the division into bucket ranges, affinity, and the targets by count and by load. A
bucket range weighs its proportion of the segment's key buckets.
"""

from collections.abc import Mapping, Sequence

from headgate.model.bucket_ranges import SegmentSlice, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout
from shard.balancing.affinity import preferred_owners_of
from shard.balancing.bucket_split import Pool, pools
from shard.balancing.load_target import WeightedAssignmentInput, assign_by_load
from shard.balancing.target import AssignmentInput, assign
from shard.state.subscription import Subscription

DEFAULT_CAPACITY_PERCENT = 100
"""Capacity of a hypothetical consumer (shard.reporting.plan)."""


def compute_target(
    subscription: Subscription,
    layout: Layout,
    segments: Sequence[int],
    consumers: Mapping[str, bool],
    holders: Mapping[SegmentSlice, str],
    *,
    all_holders: Mapping[SegmentSlice, str] | None = None,
    preferred_owners: Mapping[SegmentSlice, Sequence[str]] | None = None,
) -> dict[SegmentSlice, str]:
    """Return slice → owner for the grantable ``segments``.

    ``consumers``: name → whether it can read bucket ranges. ``holders``: slice → its holder,
    without revoked holdings; ``all_holders`` includes them, for affinity. ``preferred_owners``
    override affinity.
    """
    target: dict[SegmentSlice, str] = {}
    for pool in pools(subscription.type, segments, consumers, holders):
        preferred = preferred_owners_of(holders if all_holders is None else all_holders, layout, pool.slices)
        target |= _assign_pool(subscription, pool, holders, {**preferred, **(preferred_owners or {})})
    return target


def _assign_pool(
    subscription: Subscription,
    pool: Pool,
    holders: Mapping[SegmentSlice, str],
    preferred_owners: Mapping[SegmentSlice, Sequence[str]],
) -> dict[SegmentSlice, str]:
    if subscription.balance == "count":
        return assign(AssignmentInput(pool.slices, pool.consumers, holders, preferred_owners))
    known, weights = subscription.consumers, subscription.weights
    capacities = {name: known[name].capacity if name in known else DEFAULT_CAPACITY_PERCENT for name in pool.consumers}
    weights_by_slice = {
        each: max(1, weights[segment_of(each)] * len(buckets_of(each)) // KEY_BUCKETS)
        for each in pool.slices
        if segment_of(each) in weights
    }
    return assign_by_load(WeightedAssignmentInput(pool.slices, capacities, holders, weights_by_slice, preferred_owners))
