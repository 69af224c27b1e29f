"""Subscriptions with consumers, positions and backlogs, as replies, `Admin` and the HTTP API show them.

Times are milliseconds since 1970 by the clock of the leader, sizes are bytes of records, rates are per second. None
means unknown, not tracked or not applicable, never 0. headgate.protocol.backlog has the formulas.
"""

from typing import Literal, NamedTuple

import msgspec

from headgate.model.entries import Balance, DeliveryPolicy, Order, SubscriptionType
from headgate.model.identifiers import ANONYMOUS, Generation, Offset, SegmentId
from headgate.model.layout import BucketRange

Outlook = Literal["empty", "shrinking", "never", "unknown", "not_tracked"]
"""``never``: at the current rates it does not shrink. ``unknown``: the records or the rates are not known (yet)."""
CountedBy = Literal["spark", "leader"]
AssignmentStatus = Literal["granted", "revoking", "waiting", "shared", "blocked", "drained"]
"""``waiting``: no consumer holds it yet. ``shared``: consumers hold ranges of its key buckets.
``blocked``: its ancestors are not drained. ``drained``: sealed, and every record is acknowledged."""


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
    """``leader``: no count of Spark has arrived, so ages and rates are unknown."""
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


class HeldBucketRange(NamedTuple):
    """The key buckets ``first_bucket`` up to, not including, ``end_bucket`` of a shared segment."""

    segment: SegmentId
    first_bucket: int
    end_bucket: int


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
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
    """Share of an ordinary consumer's load, in percent; used when the subscription is balanced by load."""
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

    @property
    def holdings(self) -> list[str]:
        """What it reads: whole segments, then the key buckets of shared ones, such as ``3[0-7]``."""
        shared = {segment for segment, _, _ in self.bucket_ranges}
        whole = [str(segment) for segment in self.segments if segment not in shared]
        return whole + [str(BucketRange(*each)) for each in self.bucket_ranges]


class BucketRangeAssignment(msgspec.Struct, frozen=True, kw_only=True):
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


class SegmentAssignment(msgspec.Struct, frozen=True, gc=False, kw_only=True):
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


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
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
    started_at_ms: int = 0
    """Ledger time of its creation, or of its last seek."""
    dropped_records: int = 0
    """Records that retention deleted before this subscription had acknowledged them, since its creation."""
    policy: DeliveryPolicy = DeliveryPolicy()
    """QUEUE: what happens to a record that is not acknowledged. STREAM: only its dead-letter topic applies."""
    failed: int = 0
    """QUEUE: records that have failed and are delivered again, or wait for that."""
    dead: int = 0
    """Records that wait to be stored in a dead-letter topic."""
    point: tuple[int, int] | None = None
    """A chunk that has these positions, and the term that wrote it; None: the leader was asked for something else."""
    parked_keys: int = 0
    """STREAM: keys whose records go to the dead-letter topic."""


class ParkedKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a STREAM whose records go to the dead-letter topic."""

    key: bytes
    since_ms: int
    records: int
    """Parked records of the key that were not resumed; acknowledged ones only."""
    reason: str
    """Why it was parked, as its consumer said."""
    dead_letter_topic: str
    is_resuming: bool
    """A command has resumed it, and its consumer delivers its records."""
    finished: int = 0
    """Its records up to this number were processed or dropped, and those behind it wait."""
    parking: int | None = None
    """Number of this parking: a key that is parked again has another one. None: of an older leader."""


class SegmentSeek(msgspec.Struct, frozen=True, kw_only=True):
    """Movement of one segment's position. Records that a move forward skips count as acknowledged."""

    segment: SegmentId
    from_offset: Offset
    to_offset: Offset
    end_offset: Offset


class SeekResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek moved, or would move after a dry run. Other segments keep their positions."""

    seek_generation: int
    moves: tuple[SegmentSeek, ...]
