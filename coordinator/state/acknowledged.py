"""What is acknowledged in one segment, or in one key bucket of it.

For STREAM a position: everything below it is acknowledged. For QUEUE also the ranges acknowledged above it. The fold
over ledger entries changes it in place; nothing here decides what may be acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.model.offset_ranges import OffsetRanges


@dataclass(slots=True)
class AcknowledgementProgress:
    """A position, and what is acknowledged above it."""

    position: int = 0
    acknowledged_ranges: OffsetRanges = field(default_factory=OffsetRanges)

    def advance(self, end: int) -> None:
        """Acknowledge everything below ``end`` (STREAM)."""
        self.position = max(self.position, end)

    def add_range(self, first: int, end: int) -> None:
        """Acknowledge ``first`` up to, not including, ``end`` (QUEUE)."""
        self.acknowledged_ranges.add(first, end)
        self.position = self.acknowledged_ranges.pop_prefix(self.position)

    def remaining(self, end: int) -> int:
        """Return how many offsets below ``end`` are not acknowledged."""
        return max(0, end - self.position - self.acknowledged_ranges.count(below=end))
