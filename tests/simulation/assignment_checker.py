"""Checks how the segments of a subscription are divided among its consumers, once nothing changes any more.

1. Every segment that may be read is held, in all buckets.
2. Segments are shared only if there are more consumers than segments. Then there are slices for all, of similar sizes.
3. Balanced by count, no consumer holds more than one slice more than another. One that stalled counts for nothing.
4. Consumers that cannot read bucket ranges have whole segments: one each, as long as one is left for the others to share.
"""

from collections import Counter

from headgate.model.layout import KEY_BUCKETS, BucketRange, Layout, buckets_of, segment_of
from shard.balancing.bucket_split import is_shareable
from shard.state.subscription import Subscription
from shard.subscriptions.gate import compute_gate


def uneven(subscription: Subscription, layout: Layout) -> str | None:
    """Return how its segments are divided wrongly; None: they are not."""
    counts = dict.fromkeys(subscription.consumers, 0)
    if not counts or any(each.stalled_at_ms is not None for each in subscription.consumers.values()):
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
    sharing = {name for name, known in subscription.consumers.items() if known.supports_bucket_ranges}
    if not is_shareable(subscription.type) or len(sharing) < 2 or not 0 < len(grantable) < len(counts):
        shared = [each for each in subscription.holdings if isinstance(each, BucketRange)]
        problem = f"{shared} are shared by {len(counts)} consumers" if shared else None
        groups = [counts]
    else:
        problem = _shared_wrongly(subscription, len(grantable), sharing)
        groups = [
            {name: count for name, count in counts.items() if (name in sharing) is shares} for shares in (True, False)
        ]
    if problem is None and subscription.balance == "count":
        for group in filter(None, groups):
            if max(group.values()) > min(group.values()) + 1:
                return f"consumers hold {counts} slices"
    return problem


def _shared_wrongly(subscription: Subscription, grantable: int, sharing: set[str]) -> str | None:
    holdings = subscription.holdings.items()
    whole = [held for held, holding in holdings if holding.consumer not in sharing]
    if ranges := [each for each in whole if isinstance(each, BucketRange)]:
        return f"{ranges} are held by consumers that read whole segments only"
    others = len(subscription.consumers) - len(sharing)
    expected = min(others, grantable - 1)
    if len(whole) != expected:
        return f"{others} consumers that read whole segments only have {len(whole)} of {grantable}, not {expected}"
    sizes = [len(buckets_of(held)) for held, holding in holdings if holding.consumer in sharing]
    if len(sizes) < min(len(sharing), (grantable - expected) * KEY_BUCKETS):
        return f"{len(sizes)} slices for {len(sharing)} consumers"
    return f"slices of {min(sizes)} to {max(sizes)} buckets" if max(sizes) > 2 * min(sizes) else None
