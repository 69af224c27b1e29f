"""What a subscription is explained with, and what a plan of changes says: parts of replies, as values.

Made by coordinator.reporting.explanation and coordinator.reporting.plan; headgate.protocol.messages gathers them with
the rest.
"""

from __future__ import annotations

import msgspec


class BlockingAncestor(msgspec.Struct, frozen=True, kw_only=True):
    """An ancestor that a blocked segment waits for.

    ``records_per_second``: how quickly it is acknowledged at present; None: not measured. ``expected_seconds``: until
    its backlog is acknowledged at that rate.
    """

    segment: int
    state: str
    backlog_records: int
    records_per_second: float | None = None
    expected_seconds: float | None = None
    consumers: list[str] = []


class SegmentExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a segment is, or is not, with somebody; ``status`` as in `SegmentProgress`.

    ``backlog_records`` None: acknowledgements are not tracked, or the source of an external topic alone knows.
    ``waiting_for``: the holder that was told to finish.
    """

    segment: int
    status: str
    sentences: list[str]
    backlog_records: int | None = None
    consumers: list[str] = []
    blocked_by: list[BlockingAncestor] = []
    waiting_for: str | None = None
    waiting_seconds: float | None = None
    next_poll_seconds: float | None = None


class ConsumerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a consumer has what it has."""

    consumer: str
    connected: bool
    segments: list[int]
    sentences: list[str]


class SubscriptionExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked about, in sentences for people and in fields for programs."""

    topic: str
    subscription: str
    summary: list[str]
    segments: list[SegmentExplanation]
    consumers: list[ConsumerExplanation]


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, or some of its key buckets (0, 0: all), that would change hands; None: nobody, before or after."""

    segment: int
    before: str | None
    after: str | None
    first_bucket: int = 0
    end_bucket: int = 0


class PlannedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment that would come into being."""

    segment: int
    first_hash: int
    last_hash: int
    parents: list[int]
    blocked_by: list[int] = []


class ConsumerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How many segments a consumer holds, and would hold; None: it is not, or would not be, there."""

    consumer: str
    before: int | None
    after_rebalance: int | None
    after_drain: int | None


class ChangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would move.

    ``after_rebalance``: right after the changes. ``after_drain``: further moves once everything sealed is drained.
    """

    topic: str
    subscription: str
    created: list[PlannedSegment]
    after_rebalance: list[PlannedMove]
    after_drain: list[PlannedMove]
    consumers: list[ConsumerLoad]
