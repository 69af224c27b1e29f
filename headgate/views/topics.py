"""Topics, their segments, and named producers, as replies, `Admin` and the HTTP API show them.

Times are milliseconds since 1970 by the clock of the leader, sizes are bytes of records.
None means unknown or not applicable, never 0.
"""

import msgspec

from headgate.model.entries import NO_POLICY, Positions, TopicPolicy
from headgate.model.identifiers import ANONYMOUS, Offset, SegmentId
from headgate.model.layout import SegmentState


class SegmentInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True):
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
    sealed_at_ms: int | None = None
    label: str | None = None
    """External topics: the segment's name at its source."""


class ExternalSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the records of an external topic are stored, as its import described it."""

    source: str
    """Name of the source; may be empty."""
    positions: Positions
    """``offsets``: rising offsets. ``opaque``: checkpoints that only its readers understand."""
    hash_bits: int
    """Bits of the source's key hashes; 0: the import gave none."""


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One topic and its segments."""

    topic: str
    topic_id: int
    """Unique on its shard. A topic that is deleted and created again gets another id."""
    shard: int
    layout_epoch: int
    """Rises with every split, merge, prune and import."""
    segments: tuple[SegmentInfo, ...]
    subscriptions: tuple[str, ...]
    policy: TopicPolicy = NO_POLICY
    external: ExternalSource | None = None
    """None: headgate stores the records."""
    user: str = ANONYMOUS
    """Who created it. Its segments count for the quotas of this user."""


class TopicImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an import changed, or would change after a dry run. Segments are named as at their source."""

    topic: TopicInfo
    """The topic after the import."""
    created: tuple[str, ...]
    sealed: tuple[str, ...]
    expired_parents: tuple[str, ...]
    """Parents that the source no longer has."""


class UnprunedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment that was not pruned."""

    segment: SegmentId
    reason: str


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a prune deleted, or would delete after a dry run."""

    segments: tuple[SegmentId, ...]
    retained: tuple[UnprunedSegment, ...]
    abandoned: tuple[str, ...]
    """Subscriptions that did not count, because they have been unused for too long."""


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a named producer has read its source into one topic."""

    topic: str
    topic_id: int
    """Never used again: a topic that is deleted and created again has no positions."""
    position: bytes
    """As the program has stored it."""


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
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
    positions: tuple[TopicPosition, ...] = ()
    """How far it has read its source, for each topic in which it has stored a position."""
