"""When was the record at an offset made? A few timestamps a segment that answer for every offset.

Each offset has a *mark*: its lowest set bit together with the bit above that. Of each mark only the last record is
kept (offset and timestamp). The offsets kept are close together at the segment's end and ever farther apart towards its
beginning. So the age of a short backlog is exact, and that of a long one is interpolated between two records that are
no farther apart than the backlog is long.

Which offsets are kept follows from the number of records alone, however they were counted: merging means to take the
later of two with the same mark. There are two for each bit of the highest offset, and one for offset 0: 61 for a
thousand million records.

Pure: values in, values out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

TimestampIndex = tuple[tuple[int, int], ...]
"""(offset, timestamp_ms), rising by offset, no two with the same mark."""

INDEX_SLOT_SQL: Final = "offset & ((offset & -offset) | shiftleft(offset & -offset, 1))"
"""`index_slot` in Spark's words, which has no number above 2**63 to multiply into."""


def index_slot(offset: int) -> int:
    """Return the mark of ``offset``."""
    return offset & (3 * (offset & -offset))


def build_timestamp_index(found: Iterable[tuple[int, int]]) -> TimestampIndex:
    """Return the last of each mark among ``found``, in order."""
    latest: dict[int, tuple[int, int]] = {}
    for item in sorted(found):
        latest[index_slot(item[0])] = item
    return tuple(sorted(latest.values()))


def timestamp_at(timestamp_index: TimestampIndex, offset: int) -> int | None:
    """Return the timestamp (ms) of the record at ``offset``: exact at a mark, interpolated between, None outside."""
    at = bisect_left(timestamp_index, (offset,))
    if at == len(timestamp_index):
        return None
    after, after_ms = timestamp_index[at]
    if after == offset:
        return after_ms
    if at == 0:
        return None
    before, before_ms = timestamp_index[at - 1]
    return before_ms + (after_ms - before_ms) * (offset - before) // (after - before)
