"""The values that `Admin` returns: what the leader knows, in plain frozen dataclasses.

Times are milliseconds since 1970 by the clock of the leader, sizes are bytes of keys and values,
rates are per second. None means unknown or not applicable, never 0.

`public_value` converts structs of the wire, field by field of the same name, so the wire can change
without changing the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import msgspec

from headgate.errors import ProtocolError
from headgate.model.entries import Balance, Order, Positions, SubscriptionType
from headgate.model.identifiers import ANONYMOUS, Generation, Offset, SegmentId
from headgate.protocol.backlog import CountedBy, Outlook

SegmentState = Literal["active", "sealed"]
"""A sealed segment takes no more records: it was split or merged."""
AssignmentStatus = Literal["granted", "revoking", "waiting", "shared", "blocked", "drained"]
"""``waiting``: no consumer holds it yet. ``shared``: consumers hold ranges of its key buckets.
``blocked``: its ancestors are not drained. ``drained``: sealed, and every record is acknowledged."""
ValueT = TypeVar("ValueT")


# Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment of a topic."""

    segment: SegmentId
    first_hash: int
    """First of its 16-bit key hashes."""
    last_hash: int
    """Last of its key hashes, inclusive."""
    state: SegmentState
    parents: tuple[SegmentId, ...]
    children: tuple[SegmentId, ...]
    next_offset: Offset
    """Offset of the next record; the end offset of a sealed segment."""
    size_bytes: int
    created_at_ms: int
    sealed_at_ms: int | None
    label: str | None
    """External topics: the segment's name at its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOverrides:
    """The cluster settings that one topic overrides; None: the cluster's setting applies."""

    auto_split: bool | None = None
    auto_merge: bool | None = None
    min_segments: int | None = None
    max_segments: int | None = None
    retention_ms: int | None = None
    """How long a sealed segment is kept after it is drained, in milliseconds; -1: without limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSource:
    """Where the records of an external topic are stored, as its import described it."""

    source: str
    """Name of the source; may be empty."""
    positions: Positions
    """``offsets``: rising offsets. ``opaque``: checkpoints that only its readers understand."""
    hash_bits: int
    """Bits of the source's key hashes; 0: the import gave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic and its segments."""

    topic: str
    topic_id: int
    """Unique on its shard. A topic that is deleted and created again gets another id."""
    shard: int
    layout_epoch: int
    """Rises with every split, merge, prune and import."""
    segments: tuple[SegmentInfo, ...]
    subscriptions: tuple[str, ...]
    policy: PolicyOverrides = PolicyOverrides()
    external: ExternalSource | None = None
    """None: headgate stores the records."""
    user: str = ANONYMOUS
    """Who created it. Its segments count for the quotas of this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImportResult:
    """What an import changed, or would change after a dry run. Segments are named as at their source."""

    topic: TopicInfo
    """The topic after the import."""
    created: tuple[str, ...]
    sealed: tuple[str, ...]
    expired_parents: tuple[str, ...]
    """Parents that the source no longer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprunedSegment:
    """A sealed segment that was not pruned."""

    segment: SegmentId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What a prune deleted, or would delete after a dry run."""

    segments: tuple[SegmentId, ...]
    retained: tuple[UnprunedSegment, ...]
    abandoned: tuple[str, ...]
    """Subscriptions that did not count, because they have been unused for too long."""


# Producers


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPosition:
    """How far a named producer has read its source into one topic."""

    topic: str
    topic_id: int
    """Never used again: a topic that is deleted and created again has no positions."""
    position: bytes
    """As the program has stored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """A named producer on one shard. It has an identity of its own on each shard that it was opened on."""

    producer: str
    shard: int
    producer_id: int
    """Unique on its shard. A name that is deleted and opened again gets another id."""
    producer_epoch: int
    """Rises with each opening; the earlier holder of the name is fenced."""
    next_sequence: int
    """Number of its next batch since it was opened last."""
    last_used_at_ms: int
    """When it was opened or stored a batch last."""
    positions: list[TopicPosition]
    """How far it has read its source, for each topic in which it has stored a position."""


# Subscriptions


class HeldBucketRange(NamedTuple):
    """The key buckets ``first_bucket`` up to, not including, ``end_bucket`` of a shared segment."""

    segment: SegmentId
    first_bucket: int
    end_bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """One consumer of a subscription."""

    consumer: str
    incarnation: int
    """Rises with every start of the program."""
    connected: bool
    segments: tuple[SegmentId, ...]
    bucket_ranges: tuple[HeldBucketRange, ...] = ()
    """The segments of which it reads only some key buckets."""
    idle: str = ""
    """Why it reads nothing; empty if it reads something."""
    capacity: int = 100
    """Share of an ordinary consumer's load, in percent; used when the subscription is balanced by
    load."""
    host: str = ""
    """Where it runs, as the program says; empty: it does not say."""
    version: str = ""
    """Version of headgate in the program, as it says."""
    registered_at_ms: int | None = None
    """When this incarnation joined."""
    disconnected_at_ms: int | None = None
    """Start of its grace period; None: it is connected."""
    last_heard_age_ms: int | None = None
    """Time since its last message, or since its leader began; None: it is disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRangeAssignment:
    """Position and holder of some key buckets of a shared segment."""

    first_bucket: int
    end_bucket: int
    """The first bucket that does not belong to it."""
    status: AssignmentStatus
    acknowledged_offset: Offset
    consumer: str | None = None
    generation: Generation | None = None
    unacknowledged: int | None = None
    """Records that are not acknowledged; an estimate, because keys may spread unevenly over the buckets."""
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAssignment:
    """Position and holder of one segment in one subscription."""

    segment: SegmentId
    status: AssignmentStatus
    acknowledged_offset: Offset
    """Every record below it is acknowledged."""
    next_offset: Offset
    """Offset of the next record that is stored; the end offset of a sealed segment."""
    consumer: str | None = None
    """None also for a shared segment: its ``bucket_ranges`` name the consumers."""
    generation: Generation | None = None
    blocked_by: tuple[SegmentId, ...] = ()
    label: str | None = None
    """External topics: the segment's name at its source."""
    checkpoint: str | None = None
    """External topics: where the next holder continues."""
    bucket_ranges: tuple[BucketRangeAssignment, ...] = ()
    weight: int | None = None
    """Its load; None unless the subscription is balanced by load."""
    unacknowledged: int | None = None
    """Records that are not acknowledged. None: CHECKPOINT, or only the source of an external topic knows."""
    estimated: bool = False
    """``unacknowledged`` is an estimate, because the key buckets have different positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """One subscription: its consumers and its positions."""

    topic: str
    subscription: str
    subscription_id: int
    """Unique on its shard. A subscription that is deleted and created again gets another id."""
    type: SubscriptionType | None
    """None: no consumer has registered yet."""
    order: Order
    seek_generation: int
    """Number of seeks so far."""
    consumers: tuple[ConsumerInfo, ...]
    segments: tuple[SegmentAssignment, ...]
    balance: Balance = "count"
    user: str = ANONYMOUS
    """Who created it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSeek:
    """Movement of one segment's position. Records that a move forward skips count as acknowledged."""

    segment: SegmentId
    from_offset: Offset
    to_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekResult:
    """What a seek moved, or would move after a dry run. Other segments keep their positions."""

    seek_generation: int
    moves: tuple[SegmentSeek, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBacklogInfo:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogInfo:
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


# Explanations and plans


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingSegment:
    """An ancestor that a blocked segment waits for."""

    segment: SegmentId
    state: SegmentState
    backlog_records: int | None = None
    """None: only the source of an external topic knows."""
    records_per_second: float | None = None
    """Rate at which it is acknowledged."""
    expected_seconds: float | None = None
    """Time until its backlog is acknowledged, at that rate."""
    consumers: tuple[str, ...] = ()
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReasons:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReasons:
    """Why a consumer holds what it holds."""

    consumer: str
    connected: bool
    segments: tuple[SegmentId, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why segments are where they are: sentences for people, fields for programs."""

    topic: str
    subscription: str
    summary: tuple[str, ...]
    segments: tuple[SegmentReasons, ...]
    consumers: tuple[ConsumerReasons, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMove:
    """A segment, or some of its key buckets, that would change its consumer; None: no consumer."""

    segment: SegmentId
    before: str | None
    after: str | None
    first_bucket: int = 0
    end_bucket: int = 0
    """The first bucket that does not belong to it; 0: all buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedSegment:
    """A segment that a split or merge would create."""

    segment: SegmentId
    first_hash: int
    last_hash: int
    parents: tuple[SegmentId, ...]
    blocked_by: tuple[SegmentId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSegmentCount:
    """How many segments a consumer holds at each stage of a plan. None: it is not a member then."""

    consumer: str
    before: int | None
    after_rebalance: int | None
    after_drain: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a change would move. Nothing has been changed."""

    topic: str
    subscription: str
    created: tuple[ProposedSegment, ...]
    after_rebalance: tuple[ProposedMove, ...]
    """Moves right after the change."""
    after_drain: tuple[ProposedMove, ...]
    """Further moves once every sealed segment is drained."""
    consumers: tuple[ConsumerSegmentCount, ...]


def public_value(wire: msgspec.Struct, kind: type[ValueT]) -> ValueT:
    """Return a struct of the wire as ``kind``; raises ProtocolError for a value of a later version."""
    try:
        return msgspec.convert(wire, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ProtocolError(
            f"the leader's {type(wire).__name__} cannot be read: {error}; install the version of headgate that the "
            "cluster runs",
        ) from error
