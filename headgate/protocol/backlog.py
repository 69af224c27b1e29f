"""What a subscription has not acknowledged, as people and programs see it, and when that will be over.

Values only: what is counted where stands in drain/ and controller.backlog.merge. The rules:

1. What is not tracked (CHECKPOINT acknowledges nothing) is None, never 0. So is what is not known: of a topic that is
   stored somewhere else, what no table tells.
2. A total is the sum over the segments, and not known where one of them is not; its oldest record is that of the
   segments. Its rate is known as soon as that of one segment is: the others are newer than the time that rates need.
3. A backlog is over in ``records / (acknowledged rate - incoming rate)`` seconds, if it shrinks at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec

Outlook = Literal["empty", "shrinking", "never", "unknown", "not_tracked"]
"""``never``: at this rate it does not shrink. ``unknown``: it has not been watched for long enough, or how much it is
is not known."""
TRACKED = ("STREAM", "QUEUE")
"""Types that acknowledge."""
CountedBy = Literal["spark", "leader"]
N = TypeVar("N", int, float)


class SegmentBacklog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one subscription has not acknowledged in one segment."""

    segment: int
    sealed: bool
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    label: str | None = None
    """Of an external topic: its name at the source."""


class SubscriptionBacklog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one subscription has not acknowledged, in all and by segment."""

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
    """In words, why something of an external topic is not known; names the table and its fault if there is one."""
    failing: bool = False
    """A table of its topic cannot be counted, and somebody has to mend that."""

    @property
    def external(self) -> bool:
        """Whether its topic is stored somewhere else: only segments of such a topic have labels."""
        return any(segment.label is not None for segment in self.segments)


def document(backlog: SubscriptionBacklog) -> dict[str, Any]:
    """Return ``backlog`` with every field, for JSON that programs read: what is not known is null, and not left out."""
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
    """Return the segments with their totals and the outlook."""
    parts = sorted(segments, key=lambda part: part.segment)
    records = _total(part.records for part in parts)
    stored = _sum(part.stored_per_second for part in parts)
    acknowledged = _sum(part.acknowledged_per_second for part in parts)
    outlook, seconds = estimate_drain(records, stored, acknowledged, tracked=subscription_type in TRACKED)
    return SubscriptionBacklog(
        topic=topic,
        subscription=subscription,
        subscription_type=subscription_type,
        counted_by=counted_by,
        as_of_ms=as_of_ms,
        outlook=outlook,
        segments=parts,
        records=records,
        size_bytes=_total(part.size_bytes for part in parts),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
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
    """Return what becomes of a backlog, and in how many seconds where that is known."""
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
