"""The backlog of a subscription: formulas, and the values that replies carry. Pure.

1. Untracked (CHECKPOINT) and unknown values are None, never 0.
2. While the key buckets of a segment differ, or some of them are counted, each record counts as
   spread evenly over the buckets, and the count is called an estimate. Zero is always exact.
3. Their size is estimated from the segment's mean record size.
4. A total is unknown if a segment's value is; a total rate sums the known rates.
5. It is drained in ``records / (acknowledged rate - incoming rate)`` seconds, if it shrinks. Up to ten seconds of
   acknowledgements are on their way to readers that keep up: they are drained in ``records / acknowledged rate``.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from headgate.model.entries import SubscriptionType
from headgate.model.layout import KEY_BUCKETS
from headgate.model.positions import OffsetRanges
from headgate.views.subscriptions import BacklogInfo, CountedBy, Outlook, SegmentBacklogInfo

TRACKED: Final = ("STREAM", "QUEUE")
KEEPS_UP_SECONDS: Final = 10.0
N = TypeVar("N", int, float)


class RecordCount(NamedTuple):
    records: int
    estimated: bool = False
    """It depends on how evenly keys spread over the key buckets (rule 2)."""


def unacknowledged_offsets(end_offset: int, position: int, above: OffsetRanges) -> int:
    """Return the number of offsets below ``end_offset`` that are neither below ``position`` nor in ``above``."""
    return max(0, end_offset - position) - above.count(below=end_offset)


def count_records(offsets: int, *, exact: bool) -> RecordCount:
    """Return the unacknowledged records of some key buckets of a segment (rule 2).

    ``offsets``: the sum of the unacknowledged offsets of each bucket. ``exact``: they are all buckets
    of the segment, with the same progress.
    """
    return RecordCount(-(-offsets // KEY_BUCKETS), offsets > 0 and not exact)


def records_text(records: int | None, estimated: bool) -> str:
    """Return a count for people: ``46``, ``~46`` for an estimate, ``-`` if it is not known or not tracked."""
    return "-" if records is None else f"{'~' * estimated}{records:,}".replace(",", " ")


def estimate_size_bytes(records: int, stored_records: int, stored_bytes: int) -> int:
    """Return the estimated size of ``records`` in a segment with ``stored_records`` records (rule 3)."""
    return stored_bytes * records // stored_records if stored_records else 0


def summarize_backlog(
    *,
    topic: str,
    subscription: str,
    subscription_type: SubscriptionType | None,
    counted_by: CountedBy,
    as_of_ms: int,
    segments: Iterable[SegmentBacklogInfo],
) -> BacklogInfo:
    """Return the backlog of a subscription: its segments, their totals and the outlook."""
    by_id = sorted(segments, key=lambda each: each.segment)
    records = _total([each.records for each in by_id])
    stored = _sum([each.stored_per_second for each in by_id])
    acknowledged = _sum([each.acknowledged_per_second for each in by_id])
    outlook, seconds = estimate_drain(records, stored, acknowledged, tracked=subscription_type in TRACKED)
    return BacklogInfo(
        topic=topic,
        subscription=subscription,
        subscription_type=subscription_type,
        counted_by=counted_by,
        as_of_ms=as_of_ms,
        outlook=outlook,
        segments=tuple(by_id),
        records=records,
        size_bytes=_total([each.size_bytes for each in by_id]),
        oldest_ms=min([each.oldest_ms for each in by_id if each.oldest_ms is not None], default=None),
        stored_per_second=stored,
        acknowledged_per_second=acknowledged,
        drained_in_seconds=seconds,
    )


def estimate_drain(
    records: int | None, stored_per_second: float | None, acknowledged_per_second: float | None, *, tracked: bool
) -> tuple[Outlook, float | None]:
    """Return the outlook of a backlog, and the estimated seconds until it is drained if they are known."""
    if not tracked:
        return "not_tracked", None
    if records == 0:
        return "empty", 0.0
    if records is None or stored_per_second is None or acknowledged_per_second is None:
        return "unknown", None
    keeps_up = records <= KEEPS_UP_SECONDS * acknowledged_per_second
    shrinks_by = acknowledged_per_second - (0.0 if keeps_up else stored_per_second)
    return ("shrinking", records / shrinks_by) if shrinks_by > 0 else ("never", None)


def _total(values: list[int | None]) -> int | None:
    return None if None in values else _sum(values)


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
