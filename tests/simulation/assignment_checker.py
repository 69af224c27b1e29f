"""Checks how the segments of a subscription are divided among its consumers, once nothing changes any more.

1. Every segment that may be read is held, in all buckets.
2. Segments are shared only if there are more consumers than segments. Then there are slices for all, of similar sizes.
3. Balanced by count, no consumer holds more than one slice more than another.
"""

from __future__ import annotations

from collections import Counter

from coordinator.balancing.bucket_split import is_shareable
from coordinator.decisions.gate import compute_gate
from coordinator.state.subscription import Subscription
from headgate.model.bucket_ranges import BucketRange, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout


def uneven(subscription: Subscription, layout: Layout, *, can_share: bool) -> str | None:
    """Return how its segments are divided wrongly; None: they are not. ``can_share``: whether its consumers can."""
    counts = dict.fromkeys(subscription.consumers, 0)
    if not counts:
        return None
    grantable = compute_gate(layout, subscription.drained, subscription.type, subscription.order).grantable
    held: Counter[int] = Counter()
    for slice_, holding in subscription.holdings.items():
        if holding.revoked_at_ms is not None or holding.consumer not in counts:
            return f"{slice_} is still being moved from {holding.consumer}"
        held[segment_of(slice_)] += len(buckets_of(slice_))
        counts[holding.consumer] += 1
    if left := [segment for segment in grantable if held[segment] != KEY_BUCKETS]:
        return f"segments {left} may be read, and are not held in all buckets"
    problem = _shared_wrongly(subscription, len(grantable), can_share=can_share)
    if problem is None and subscription.balance == "count" and max(counts.values()) > min(counts.values()) + 1:
        return f"consumers hold {counts} slices"
    return problem


def _shared_wrongly(subscription: Subscription, grantable: int, *, can_share: bool) -> str | None:
    shared = [each for each in subscription.holdings if isinstance(each, BucketRange)]
    if not is_shareable(subscription.type) or not can_share or len(subscription.consumers) <= grantable:
        return f"{shared} are shared by {len(subscription.consumers)} consumers" if shared else None
    if not grantable:
        return None
    sizes = [len(buckets_of(each)) for each in subscription.holdings]
    if len(sizes) < min(len(subscription.consumers), grantable * KEY_BUCKETS):
        return f"{len(sizes)} slices for {len(subscription.consumers)} consumers"
    return f"slices of {min(sizes)} to {max(sizes)} buckets" if max(sizes) > 2 * min(sizes) else None
