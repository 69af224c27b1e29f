"""A set of offsets, stored as half-open ranges: sorted, disjoint, not touching. Pure.

Adding at the end costs constant time, elsewhere a binary search and a shift of the ranges behind.
Counting all offsets costs constant time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

OffsetRange = tuple[int, int]
"""(first offset, end offset); the end is not included."""


class OffsetRanges:
    """A set of offsets. Iterating yields its ranges."""

    __slots__ = ("_count", "_ranges")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        """Return the union of ``ranges``, which may overlap and come in any order."""
        self._ranges: list[OffsetRange] = []
        self._count = 0
        for first, end in sorted(ranges):
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add ``first`` up to, not including, ``end``; an empty range changes nothing."""
        if first >= end:
            return
        ranges = self._ranges
        if not ranges or first >= ranges[-1][1]:
            begin = ranges.pop()[0] if ranges and first == ranges[-1][1] else first
            ranges.append((begin, end))
            self._count += end - first
            return
        low = bisect_left(ranges, first, key=_end)
        high = low
        while high < len(ranges) and ranges[high][0] <= end:
            high += 1
        if low < high:
            first, end = min(first, ranges[low][0]), max(end, ranges[high - 1][1])
        self._count += end - first - sum(last - start for start, last in ranges[low:high])
        ranges[low:high] = [(first, end)]

    def pop_first(self) -> OffsetRange:
        """Remove the lowest range and return it; raises IndexError if there is none."""
        first, end = self._ranges.pop(0)
        self._count -= end - first
        return first, end

    def pop_prefix(self, position: int = 0) -> int:
        """Remove what follows ``position`` without a gap, and everything below it; return where the gap begins."""
        while self._ranges and self._ranges[0][0] <= position:
            position = max(position, self.pop_first()[1])
        return position

    def contains(self, offset: int) -> bool:
        index = bisect_right(self._ranges, offset, key=_end)
        return index < len(self._ranges) and self._ranges[index][0] <= offset

    def touches(self, first: int, end: int) -> bool:
        """Return whether ``first`` up to ``end`` overlaps a range or continues it, so that adding it adds no range."""
        index = bisect_left(self._ranges, first, key=_end)
        return index < len(self._ranges) and self._ranges[index][0] <= end

    def count(self, below: int | None = None) -> int:
        if below is None or not self._ranges or self._ranges[-1][1] <= below:
            return self._count
        return sum(min(end, below) - first for first, end in self._ranges if first < below)

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges([*self, *other])

    def __and__(self, other: OffsetRanges) -> OffsetRanges:
        common = OffsetRanges()
        mine, theirs = iter(self), iter(other)
        left, right = next(mine, None), next(theirs, None)
        while left is not None and right is not None:
            common.add(max(left[0], right[0]), min(left[1], right[1]))
            if left[1] < right[1]:
                left = next(mine, None)
            else:
                right = next(theirs, None)
        return common

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]  # it changes in place

    def __repr__(self) -> str:
        return f"OffsetRanges({self._ranges})"


def _end(offsets: OffsetRange) -> int:
    return offsets[1]
