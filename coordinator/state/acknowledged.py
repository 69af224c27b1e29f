"""What is acknowledged in one segment, or in one key bucket of it.

For STREAM a position: everything below is acknowledged. For QUEUE also the ranges acknowledged above it, sorted and
disjoint. Changed in place by whoever folds the ledger; it never judges.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class AcknowledgementProgress:
    """How far a subscription is."""

    position: int = 0
    acknowledged_ranges: list[tuple[int, int]] = field(default_factory=list)

    def advance(self, end: int) -> None:
        """Acknowledge everything below ``end`` (STREAM)."""
        self.position = max(self.position, end)

    def add_range(self, first: int, end: int) -> None:
        """Acknowledge ``first`` up to, not including, ``end`` (QUEUE)."""
        ranges = self.acknowledged_ranges
        index = bisect_left(ranges, (first, first))
        if index > 0 and ranges[index - 1][1] >= first:
            index -= 1
        while index < len(ranges) and ranges[index][0] <= end:
            first, end = min(first, ranges[index][0]), max(end, ranges[index][1])
            del ranges[index]
        ranges.insert(index, (first, end))
        if ranges[0][0] <= self.position:
            self.position = max(self.position, ranges.pop(0)[1])

    def remaining(self, end: int) -> int:
        """Return how many offsets below ``end`` are not acknowledged."""
        above = sum(min(last, end) - first for first, last in self.acknowledged_ranges if first < end)
        return max(0, end - self.position - above)
