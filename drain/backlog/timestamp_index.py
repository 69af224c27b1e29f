"""The timestamp index of a segment: a few timestamps from which the time of any record follows. Pure.

The *slot* of an offset is its lowest set bit together with the bit above that. Only the last
record of each slot is kept (docs/decisions/spark-plans.md): 61 records of a billion.
"""

from bisect import bisect_left
from collections.abc import Iterable

TimestampIndex = tuple[tuple[int, int], ...]
"""(offset, timestamp_ms), sorted by offset, at most one per slot."""


def index_slot(offset: int) -> int:
    return offset & (3 * (offset & -offset))


def build_timestamp_index(records: Iterable[tuple[int, int]]) -> TimestampIndex:
    """Return the last of ``records`` (offset, timestamp_ms) in each slot, sorted."""
    latest: dict[int, tuple[int, int]] = {}
    for record in sorted(records):
        latest[index_slot(record[0])] = record
    return tuple(sorted(latest.values()))


def timestamp_at(timestamp_index: TimestampIndex, offset: int) -> int | None:
    """Return the timestamp (ms) of the record at ``offset``: exact or interpolated, None outside the index."""
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
