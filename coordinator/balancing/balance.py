"""Decide by which target a subscription's segments are spread: by count, or by load where that was asked for.

Values in, owners out; the policies themselves are coordinator.balancing.target and coordinator.balancing.load_target.
A share weighs its part of the segment's key buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.balancing.bucket_split import Pool
from coordinator.balancing.load_target import WeightedAssignmentInput, assign_by_load
from coordinator.balancing.target import AssignmentInput, assign
from coordinator.state.subscription import Subscription
from headgate.model.bucket_ranges import SegmentSlice, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS

DEFAULT_CAPACITY_PERCENT = 100
"""What a consumer can do that is only supposed."""


def compute_owners(
    subscription: Subscription,
    pool: Pool,
    holders: Mapping[SegmentSlice, str],
    preferred_owners: Mapping[SegmentSlice, Sequence[str]],
) -> dict[SegmentSlice, str]:
    """Return segment or share → owner for everything in ``pool``; the others are those of `AssignmentInput`."""
    if subscription.balance == "count":
        return assign(AssignmentInput(pool.slices, pool.consumers, holders, preferred_owners))
    known, weights = subscription.consumers, subscription.weights
    capacities = {name: known[name].capacity if name in known else DEFAULT_CAPACITY_PERCENT for name in pool.consumers}
    weights_by_slice = {
        segment_slice: max(1, weights[segment_of(segment_slice)] * len(buckets_of(segment_slice)) // KEY_BUCKETS)
        for segment_slice in pool.slices
        if segment_of(segment_slice) in weights
    }
    return assign_by_load(WeightedAssignmentInput(pool.slices, capacities, holders, weights_by_slice, preferred_owners))
