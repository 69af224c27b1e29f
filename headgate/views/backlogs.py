"""Backlogs, as replies, `Admin` and the HTTP API show them. headgate.protocol.backlog has the formulas.

Times are milliseconds since 1970 by the clock of the leader, sizes are bytes of records,
rates are per second.
None means unknown or not tracked, never 0.
"""

from typing import Literal

import msgspec

from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import SegmentId

Outlook = Literal["empty", "shrinking", "never", "unknown", "not_tracked"]
"""``never``: at the current rates it does not shrink. ``unknown``: the records or the rates are not known (yet)."""
CountedBy = Literal["spark", "leader"]


class SegmentBacklogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscription has not acknowledged in one segment."""

    segment: SegmentId
    sealed: bool
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None
    """When the oldest of these records was stored."""
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    label: str | None = None
    """External topics: the segment's name at its source."""
    estimated: bool = False
    """``records`` is an estimate, because the key buckets have different positions."""


class BacklogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscription has not acknowledged, as a total and by segment."""

    topic: str
    subscription: str
    subscription_type: SubscriptionType | None
    counted_by: CountedBy
    """``leader``: Spark has not answered, so ages and rates are unknown."""
    as_of_ms: int
    outlook: Outlook
    """``never``: the backlog does not shrink. ``unknown``: its size or its rates are unknown."""
    segments: tuple[SegmentBacklogInfo, ...]
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None
    """When the oldest of these records was stored."""
    stored_per_second: float | None = None
    acknowledged_per_second: float | None = None
    drained_in_seconds: float | None = None
    """Estimated time until the backlog is acknowledged, at the present rates."""
    unknown_reason: str = ""
    """External topics: why a value is unknown. Names the table and its error, if there is one."""
    failing: bool = False
    """Whether a table of an external topic cannot be counted, and an operator has to repair it."""

    @property
    def external(self) -> bool:
        """Whether the records are stored elsewhere: only external segments have labels."""
        return any(segment.label is not None for segment in self.segments)

    @property
    def estimated(self) -> bool:
        """Whether ``records`` is an estimate, because that of a segment is one."""
        return any(segment.estimated for segment in self.segments)
