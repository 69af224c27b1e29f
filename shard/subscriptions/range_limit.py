"""Limits the ranges that a QUEUE subscription has acknowledged above its positions. Pure.

Each gap between two ranges costs memory in the leader and in every snapshot, and a grant names all
ranges of its segment. So a subscription has at most `MAX_RANGES` of them, which its segments divide
equally, and one segment at most `MAX_RANGES_PER_SEGMENT`. The key buckets of a shared segment divide
those of the segment.

At the limit an acknowledgement counts only if it does not open another gap: progress always counts.
A record of which the acknowledgement does not count is delivered again, as in Pulsar, which stores
10 000 ranges (``managedLedgerMaxUnackedRangesToPersist``).
"""

from collections import Counter
from typing import Final

from headgate.model.bucket_ranges import SegmentSlice, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS
from shard.state.subscription import Subscription

MAX_RANGES: Final = 400_000
MAX_RANGES_PER_SEGMENT: Final = 10_000


class RangeLimit:
    """The ranges that one batch may add. Neighboring new ranges count as two, so a full segment may look fuller."""

    def __init__(self, subscription: Subscription, segments: int, max_ranges: int = MAX_RANGES) -> None:
        """``segments``: how many divide ``max_ranges``."""
        self._subscription = subscription
        self._limit = min(MAX_RANGES_PER_SEGMENT, max_ranges // segments)
        self._opened: Counter[SegmentSlice] = Counter()
        """Slice → gaps that this batch opens."""

    def admit(self, held: SegmentSlice, first_offset: int, end_offset: int) -> int | None:
        """Return the limit if this acknowledgement of a holder would exceed it; None: it may count."""
        segment = segment_of(held)
        if first_offset <= self._subscription.position(segment):
            return None
        buckets, limit = [self._subscription.acknowledged_in(segment, 0)], self._limit
        if segment in self._subscription.progress_by_bucket or segment != held:
            buckets = [self._subscription.acknowledged_in(segment, bucket) for bucket in buckets_of(held)]
            limit //= KEY_BUCKETS
        fullest = max(len(bucket.acknowledged_ranges) for bucket in buckets)
        if fullest + self._opened[held] < limit:
            self._opened[held] += 1
            return None
        if all(
            first_offset <= bucket.position or bucket.acknowledged_ranges.touches(first_offset, end_offset)
            for bucket in buckets
        ):
            return None
        return limit
