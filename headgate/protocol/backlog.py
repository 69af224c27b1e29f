"""The backlog of a subscription: formulas, and the values that replies carry. Pure.

1. Untracked (CHECKPOINT) and unknown values are None, never 0.
2. While the key buckets of a segment differ, or some of them are counted, each record counts as
   spread evenly over the buckets, and the count is called an estimate. Zero is always exact.
3. Their size is estimated from the segment's mean record size.
4. A total is unknown if a segment's value is; a total rate sums the known rates.
5. It is drained in ``records / (acknowledged rate - incoming rate)`` seconds, if it shrinks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from headgate.model.hashing import KEY_BUCKETS
from headgate.model.offset_ranges import OffsetRanges

Outlook = Literal["empty", "shrinking", "never", "unknown", "not_tracked"]
"""``never``: at the current rates it does not shrink. ``unknown``: the records or the rates are not
known (yet)."""
TRACKED: Final = ("STREAM", "QUEUE")
"""Subscription types that acknowledge."""
CountedBy = Literal["spark", "leader"]
N = TypeVar("N", int, float)


class RecordCount(NamedTuple):
    """A number of records."""

    records: int
    estimated: bool = False
    """It depends on how evenly keys spread over the key buckets (rule 2)."""


class SegmentBacklog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The backlog of one subscription in one segment."""

    segment: int
    sealed: bool
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    label: str | None = None
    """Name of the segment at the source of an external topic."""
    estimated: bool = False
    """``records`` is an estimate (rule 2)."""


class SubscriptionBacklog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The backlog of one subscription, in total and by segment."""

    topic: str
    subscription: str
    subscription_type: str | None
    counted_by: CountedBy
    as_of_ms: int
    outlook: Outlook
    segments: list[SegmentBacklog]
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    drained_in_seconds: float | None = None
    unknown_reason: str = ""
    """Why a value of an external topic is unknown; names the failing table if there is one."""
    failing: bool = False
    """A table of its topic cannot be counted and has to be fixed."""

    @property
    def external(self) -> bool:
        """Whether its topic is an external one: only segments of external topics have labels."""
        return any(segment.label is not None for segment in self.segments)

    @property
    def estimated(self) -> bool:
        """Whether ``records`` is an estimate, because that of a segment is one."""
        return any(segment.estimated for segment in self.segments)


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


def document(backlog: SubscriptionBacklog) -> dict[str, Any]:
    """Return ``backlog`` as a JSON document with every field; unknown values are null."""
    return msgspec.structs.asdict(backlog) | {
        "segments": [msgspec.structs.asdict(segment) for segment in backlog.segments]
    }


def summarize_backlog(
    *,
    topic: str,
    subscription: str,
    subscription_type: str | None,
    counted_by: CountedBy,
    as_of_ms: int,
    segments: Iterable[SegmentBacklog],
    unknown_reason: str = "",
    failing: bool = False,
) -> SubscriptionBacklog:
    """Return the backlog of a subscription: its segments, their totals and the outlook."""
    by_id = sorted(segments, key=lambda each: each.segment)
    records = _total(each.records for each in by_id)
    stored = _sum(each.stored_per_second for each in by_id)
    acknowledged = _sum(each.acknowledged_per_second for each in by_id)
    outlook, seconds = estimate_drain(records, stored, acknowledged, tracked=subscription_type in TRACKED)
    return SubscriptionBacklog(
        topic=topic,
        subscription=subscription,
        subscription_type=subscription_type,
        counted_by=counted_by,
        as_of_ms=as_of_ms,
        outlook=outlook,
        segments=by_id,
        records=records,
        size_bytes=_total(each.size_bytes for each in by_id),
        oldest_ms=min((each.oldest_ms for each in by_id if each.oldest_ms is not None), default=None),
        stored_per_second=stored,
        acknowledged_per_second=acknowledged,
        drained_in_seconds=seconds,
        unknown_reason=unknown_reason,
        failing=failing,
    )


def estimate_drain(
    records: int | None,
    stored_per_second: float | None,
    acknowledged_per_second: float | None,
    *,
    tracked: bool,
) -> tuple[Outlook, float | None]:
    """Return the outlook of a backlog, and the estimated seconds until it is drained if they are known."""
    if not tracked:
        return "not_tracked", None
    if records is None:
        return "unknown", None
    if records == 0:
        return "empty", 0.0
    if stored_per_second is None or acknowledged_per_second is None:
        return "unknown", None
    shrinks_by = acknowledged_per_second - stored_per_second
    if shrinks_by <= 0:
        return "never", None
    return "shrinking", records / shrinks_by


def _total(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else _sum(found)


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
