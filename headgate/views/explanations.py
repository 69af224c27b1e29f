"""Explanations of a subscription and plans of changes, as replies and `Admin` show them."""

import msgspec

from headgate.model.identifiers import SegmentId
from headgate.model.layout import SegmentState
from headgate.views.subscriptions import AssignmentStatus


class BlockingSegment(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An ancestor that a blocked segment waits for."""

    segment: SegmentId
    state: SegmentState
    backlog_records: int | None = None
    """None: only the source of an external topic knows."""
    records_per_second: float | None = None
    """Rate at which it is acknowledged, by all its consumers together."""
    expected_seconds: float | None = None
    """Time until the last of its consumers is done, each with its own backlog and rate."""
    consumers: tuple[str, ...] = ()
    estimated: bool = False


class SegmentReasons(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why a segment is, or is not, assigned to a consumer."""

    segment: SegmentId
    status: AssignmentStatus
    sentences: tuple[str, ...]
    backlog_records: int | None = None
    estimated: bool = False
    """``backlog_records`` is an estimate, because the key buckets have different positions."""
    consumers: tuple[str, ...] = ()
    blocked_by: tuple[BlockingSegment, ...] = ()
    waiting_for: str | None = None
    """The holder that has been asked to finish."""
    waiting_seconds: float | None = None
    next_poll_seconds: float | None = None
    """Time until the leader asks again whether it is drained."""


class ConsumerReasons(msgspec.Struct, frozen=True, kw_only=True):
    """Why a consumer holds what it holds."""

    consumer: str
    connected: bool
    segments: tuple[SegmentId, ...]
    sentences: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why segments are where they are: sentences for people, fields for programs."""

    topic: str
    subscription: str
    summary: tuple[str, ...]
    segments: tuple[SegmentReasons, ...]
    consumers: tuple[ConsumerReasons, ...]


class ProposedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, or some of its key buckets, that would change its consumer; None: no consumer."""

    segment: SegmentId
    before: str | None
    after: str | None
    first_bucket: int = 0
    end_bucket: int = 0
    """The first bucket that does not belong to it; 0: all buckets."""


class ProposedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that a split or merge would create."""

    segment: SegmentId
    first_hash: int
    last_hash: int
    parents: tuple[SegmentId, ...]
    blocked_by: tuple[SegmentId, ...] = ()


class ConsumerSegmentCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many segments a consumer holds at each stage of a plan. None: it is not a member then."""

    consumer: str
    before: int | None
    after_rebalance: int | None
    after_drain: int | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a change would move. Nothing has been changed."""

    topic: str
    subscription: str
    created: tuple[ProposedSegment, ...]
    after_rebalance: tuple[ProposedMove, ...]
    """Moves right after the change."""
    after_drain: tuple[ProposedMove, ...]
    """Further moves once every sealed segment is drained."""
    consumers: tuple[ConsumerSegmentCount, ...]
