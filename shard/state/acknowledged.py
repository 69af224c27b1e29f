"""Acknowledged offsets of one segment, or of one key bucket of it. Nothing is validated here.

STREAM has a position: everything below it is acknowledged. QUEUE adds the ranges above it, sorted
and disjoint.
"""

from dataclasses import dataclass, field

from headgate.model.offset_ranges import OffsetRanges
from headgate.protocol.backlog import unacknowledged_offsets


@dataclass(slots=True)
class AcknowledgementProgress:
    position: int = 0
    acknowledged_ranges: OffsetRanges = field(default_factory=OffsetRanges)

    def advance(self, end: int) -> None:
        """Acknowledge everything below ``end`` (STREAM)."""
        self.position = max(self.position, end)

    def add_range(self, first: int, end: int) -> None:
        """Acknowledge ``first`` up to ``end``, exclusive (QUEUE)."""
        self.acknowledged_ranges.add(first, end)
        self.position = self.acknowledged_ranges.pop_prefix(self.position)

    def remaining(self, end: int) -> int:
        """Return the number of unacknowledged offsets below ``end``."""
        return unacknowledged_offsets(end, self.position, self.acknowledged_ranges)
