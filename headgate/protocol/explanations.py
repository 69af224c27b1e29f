"""Parts of replies that explain a subscription (ExplainSubscription) or plan changes (PlanChanges)."""

from __future__ import annotations

import msgspec


class BlockingAncestor(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An undrained ancestor that blocks a segment.

    ``backlog_records`` None: only the source of an external topic knows; ``estimated``: key buckets
    differ. ``records_per_second``: its present acknowledgement rate; None: not measured.
    ``expected_seconds``: time until its backlog is acknowledged at that rate.
    """

    segment: int
    state: str
    backlog_records: int | None = None
    records_per_second: float | None = None
    expected_seconds: float | None = None
    consumers: list[str] = []
    estimated: bool = False


class SegmentExplanation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why a segment is or is not assigned; ``status`` as in `SegmentProgress`.

    ``backlog_records`` None: acknowledgements are not tracked, or only the source of an external
    topic knows; ``estimated``: key buckets differ. ``waiting_for``: the holder that must finish first.
    """

    segment: int
    status: str
    sentences: list[str]
    backlog_records: int | None = None
    estimated: bool = False
    consumers: list[str] = []
    blocked_by: list[BlockingAncestor] = []
    waiting_for: str | None = None
    waiting_seconds: float | None = None
    next_poll_seconds: float | None = None


class ConsumerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a consumer holds its segments."""

    consumer: str
    connected: bool
    segments: list[int]
    sentences: list[str]


class SubscriptionExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation: sentences for people, fields for programs."""

    topic: str
    subscription: str
    summary: list[str]
    segments: list[SegmentExplanation]
    consumers: list[ConsumerExplanation]


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, or some of its key buckets (0, 0: all), that would move. None: no consumer before or after."""

    segment: int
    before: str | None
    after: str | None
    first_bucket: int = 0
    end_bucket: int = 0


class PlannedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that the changes would create."""

    segment: int
    first_hash: int
    last_hash: int
    parents: list[int]
    blocked_by: list[int] = []


class ConsumerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Number of segments of a consumer now and after the changes; None: the consumer does not exist then."""

    consumer: str
    before: int | None
    after_rebalance: int | None
    after_drain: int | None


class ChangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the changes would move.

    ``after_rebalance``: right after the changes. ``after_drain``: further moves once every sealed
    segment is drained.
    """

    topic: str
    subscription: str
    created: list[PlannedSegment]
    after_rebalance: list[PlannedMove]
    after_drain: list[PlannedMove]
    consumers: list[ConsumerLoad]
