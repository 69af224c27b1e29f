"""Ledger entries: decided facts, which the fold applies without checks.

Everything that must survive a leader is an entry. Fields may be added with a default; they are
never renamed or given another meaning. Ids (``topic_id``, ``subscription_id``, ``producer_id``) are
never reused on a shard, so nothing of a deleted topic applies to a later one of that name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta

from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import KEY_BUCKETS

Order = Literal["strict", "none"]
Positions = Literal["offsets", "opaque"]
"""How an external source numbers records: rising offsets, or opaque positions that only its readers understand."""
Balance = Literal["count", "load"]
LeaveReason = Literal["left", "failed", "evicted", "replaced", "subscription_deleted"]
"""``failed``: it left because its program ended with an error."""
ReleaseReason = Literal["confirmed", "timed_out", "holder_left", "stalled", "drained", "pruned"]


class SubscriptionType(StrEnum):
    """How the consumers of a subscription acknowledge, and whether child segments wait for their ancestors.

    A name is accepted in any case: ``SubscriptionType("stream")`` is ``SubscriptionType.STREAM``.
    It is stored and sent in capitals.
    """

    STREAM = "STREAM"
    """Acknowledges cumulatively and keeps the order per key: children wait for their ancestors."""
    CHECKPOINT = "CHECKPOINT"
    """Acknowledges nothing. The consumer stores its own positions, and children never wait."""
    QUEUE = "QUEUE"
    """Acknowledges record by record in any order. Children never wait."""

    @classmethod
    def _missing_(cls, value: object) -> SubscriptionType | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


def union_of(base: type) -> Any:
    """Return the union of all structs below ``base`` that are stored or sent: those that have no subclasses."""
    below: list[type] = base.__subclasses__()
    return Union[tuple(union_of(each) if each.__subclasses__() else each for each in below)]  # noqa: UP007


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One decided fact."""


class TopicEntry(Entry, frozen=True):
    """The field of every entry about a topic."""

    topic_id: int


class SubscriptionEntry(TopicEntry, frozen=True):
    """The further field of every entry about a subscription."""

    subscription_id: int


class TopicCommandEntry(TopicEntry, frozen=True, kw_only=True):
    """What a command did to a topic. ``token``: that of the command, with a default where the leader decides, too."""

    token: str


class SubscriptionCommandEntry(SubscriptionEntry, frozen=True, kw_only=True):
    """What a command did to a subscription. ``token``: as above, with a default where consumers cause it, too."""

    token: str


class HoldingEntry(SubscriptionEntry, frozen=True, kw_only=True):
    """Fields of every entry about the holder of a segment.

    It holds the buckets ``first_bucket`` up to, not including, ``end_bucket``; 0, 0 means all of them. ``generation``
    fences the previous holder.
    """

    segment: int
    generation: int
    first_bucket: int = 0
    end_bucket: int = 0


class TermStarted(Entry, frozen=True, tag="term_started"):
    """First entry of a leader term. Creating its chunk makes ``instance`` the leader.

    ``term_id``: 63 random bits, drawn for each attempt to start a term. They also tell this term from one of the same
    epoch that was lost when the ledger was put back to an older state.
    """

    leader_epoch: int
    instance: str
    term_id: int = 0


class ShardsGrown(Entry, frozen=True, tag="shards_grown"):
    """The cluster has more shards: ``counts`` are all numbers of shards that it has had, rising, the present one last.

    From here on the shard creates only topics that belong to it by the last number, and ids count on from above 2^40.
    """

    counts: tuple[int, ...]


class ProducerOpened(Entry, frozen=True, tag="producer_opened"):
    """A producer got an identity or its next epoch. A repeated request with the same ``token`` gets the same reply.

    ``user``: who opened it. ``incarnation``, with a name: that of the program, which fences all lower ones.
    ``replaced_id``: its earlier id, which has no epochs left. Its name and its history continue under the new one.
    """

    producer_id: int
    producer_epoch: int
    token: str
    user: str = ANONYMOUS
    name: str | None = None
    incarnation: int = 0
    replaced_id: int | None = None


class ProducersExpired(Entry, frozen=True, tag="producers_expired"):
    """Anonymous producers were removed: they were idle too long, or there were too many.

    ``windows``: named producers whose deduplication window was dropped, because they were idle too long.
    """

    producer_ids: list[int]
    windows: list[int] = []


class ProducerDeleted(Entry, frozen=True, tag="producer_deleted"):
    """A command deleted a named producer, with its name and its source position."""

    producer_id: int
    token: str


class Placement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets of the records of a batch that belong to one segment.

    The records of the batch whose segment hash lies in ``first_hash..last_hash`` have the offsets
    ``first_offset``, ``first_offset + 1``, … in the order of the batch.
    """

    segment: int
    first_hash: int
    last_hash: int
    first_offset: int
    count: int


class RecordsStored(TopicEntry, frozen=True, tag="records_stored"):
    """One producer batch. Its records are rows of the same chunk; this entry states their offsets.

    ``producer_id`` is None and ``digest`` empty for a batch without identity, which is stored at least once.
    ``source_position`` is opaque to the leader: how far the producer had read its source. A repetition of the batch has
    the same ``digest`` (`headgate.protocol.codec`).
    """

    count: int
    placements: list[Placement]
    size_bytes: int
    producer_id: int | None = None
    producer_epoch: int = 0
    sequence: int = 0
    source_position: bytes | None = None
    digest: bytes = b""


class AcknowledgedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records ``first_offset`` up to, not including, ``end_offset`` of one segment.

    For STREAM the acknowledgement is cumulative and ``first_offset`` is 0. It covers the key
    buckets ``first_bucket`` up to, not including, ``end_bucket``; 0, 0 means all of them.
    """

    segment: int
    first_offset: int
    end_offset: int
    first_bucket: int = 0
    end_bucket: int = 0


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where the next holder of an external segment continues, in the source's own format.

    ``generation`` and ``number``: the grant, and the batch of its holder, that it came with.
    """

    text: str
    generation: int
    number: int


class RecordsAcknowledged(SubscriptionEntry, frozen=True, tag="records_acknowledged"):
    """The acknowledgements of one batch that count.

    ``checkpoints``: segment of an external topic → its new checkpoint. ``parked``: (segment, offset, key) of the
    records in ``ranges`` that go to the dead-letter topic, in order. ``resumed``: (key, number): the parked records of
    the key up to this number have been processed.
    """

    seek_generation: int
    ranges: list[AcknowledgedRange]
    checkpoints: dict[int, Checkpoint] = {}
    parked: list[tuple[int, int, bytes]] = []
    resumed: list[tuple[bytes, int]] = []


class TopicCreated(TopicCommandEntry, frozen=True, tag="topic_created"):
    """``user`` created a topic with ``segments`` equal segments of ``buckets`` key buckets each."""

    topic: str
    segments: int
    buckets: int = KEY_BUCKETS
    user: str = ANONYMOUS


class ImportedSegment(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A segment of an external topic: ``label`` is its name at the source, ``hashes`` its range there.

    ``end_offset`` None: active. Hashes are decimal text, because a source may use 128 bits.
    """

    segment: int
    label: str
    parents: list[int] = []
    hashes: tuple[str, str] | None = None
    end_offset: int | None = None


class TopicImported(TopicCommandEntry, frozen=True, tag="topic_imported"):
    """``user`` imported an external topic with all segments that its source has had so far.

    headgate stores none of its records. ``hash_bits``: size of the source's hashes; 0 if it has none.
    """

    topic: str
    segments: list[ImportedSegment]
    positions: Positions
    hash_bits: int = 0
    source: str = ""
    user: str = ANONYMOUS


class LayoutExtended(TopicCommandEntry, frozen=True, tag="layout_extended"):
    """The source of an external topic split or merged: new segments, and known ones with their end offsets."""

    created: list[ImportedSegment]
    sealed: dict[int, int]


class TopicDeleted(TopicCommandEntry, frozen=True, tag="topic_deleted"):
    """A topic and everything that belongs to it was removed."""


class TopicPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Overrides of the cluster's settings for one topic; None: the cluster's setting applies."""

    auto_split: bool | None = None
    """Whether a busy segment is split automatically."""
    auto_merge: bool | None = None
    """Whether quiet neighbors are merged automatically."""
    min_segments: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Fewest active segments that automatic merges leave. None: the number the topic was created with."""
    max_segments: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Most active segments that automatic splits create."""
    max_age_ms: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    """How long records are kept; -1: without limit."""
    max_bytes: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    """How many bytes of keys and values are kept; -1: without limit."""
    ignore_subscriptions: bool | None = None
    """Whether retention drops records that subscriptions have not acknowledged."""


NO_POLICY = TopicPolicy()


class TopicPolicySet(TopicCommandEntry, frozen=True, tag="topic_policy_set"):
    """The topic's policy was replaced as a whole; by the same one, if a command ``changed`` nothing."""

    policy: TopicPolicy
    changed: bool = True


class SegmentSplit(TopicCommandEntry, frozen=True, kw_only=True, tag="segment_split"):
    """A segment was sealed at ``end_offset`` and its two halves were created. One entry, so never half done.

    If the leader decided it and not a command, ``reason`` says why.
    """

    segment: int
    end_offset: int
    reason: str = ""
    token: str = ""


class SegmentRolled(TopicEntry, frozen=True, tag="segment_rolled"):
    """A segment was sealed at ``end_offset``, and one child of the same range was created, for the retention."""

    segment: int
    end_offset: int
    reason: str


class SegmentsMerged(TopicCommandEntry, frozen=True, kw_only=True, tag="segments_merged"):
    """Two neighbors were sealed at their end offsets and one child was created. Other fields as for a split."""

    segments: tuple[int, int]
    end_offsets: tuple[int, int]
    reason: str = ""
    token: str = ""


class SegmentsPruned(TopicCommandEntry, frozen=True, kw_only=True, tag="segments_pruned"):
    """Sealed segments were removed from the layout after their retention, ancestors first. Their data is deleted next.

    Subscriptions lose what they have not acknowledged there.
    """

    segments: list[int]
    token: str = ""


class DataDeleted(TopicEntry, frozen=True, tag="data_deleted"):
    """The data of pruned segments, or of segments of a deleted topic, was deleted."""

    segments: list[int]


class SubscriptionCreated(SubscriptionCommandEntry, frozen=True, kw_only=True, tag="subscription_created"):
    """``user`` created a subscription at ``positions`` (segment → offset of its first record).

    ``subscription_type`` None: not known until the first consumer registers.
    """

    subscription: str
    subscription_type: SubscriptionType | None
    order: Order
    positions: dict[int, int]
    balance: Balance = "count"
    user: str = ANONYMOUS
    token: str = ""


class SubscriptionConfigured(SubscriptionCommandEntry, frozen=True, kw_only=True, tag="subscription_configured"):
    """The type of a subscription became known, or its order or balance changed."""

    subscription_type: SubscriptionType
    order: Order
    balance: Balance = "count"
    token: str = ""


class DeliveryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happens to records that a subscription has not acknowledged. The first two parts are for a QUEUE."""

    max_deliveries: int = 0
    """After so many failed deliveries a record goes to the dead-letter topic; 0: never."""
    ack_timeout_ms: int = 0
    """A delivery that is neither acknowledged nor extended for so long has failed; 0: no limit."""
    dead_letter_topic: str = ""
    max_processing_ms: int = 0
    """A holder that makes no progress for so long loses its segment to another consumer; 0: no limit."""
    ignored_by_retention: bool = False
    """Retention does not wait for the subscription's acknowledgements."""


class DeliveryPolicySet(SubscriptionCommandEntry, frozen=True, tag="delivery_policy_set"):
    """The delivery policy of a subscription was replaced as a whole."""

    policy: DeliveryPolicy


class DeliveriesBegun(SubscriptionEntry, frozen=True, tag="deliveries_begun"):
    """Deliveries of a QUEUE began: (segment, offset, key bucket, generation of the holder) of each.

    The loss of the holder fails those that are not acknowledged by then.
    """

    records: list[tuple[int, int, int, int]]


class DeliveriesFailed(SubscriptionEntry, frozen=True, tag="deliveries_failed"):
    """Deliveries of a QUEUE failed: (segment, offset, key bucket, ledger time of the next one at the earliest, reason).

    A record that has failed ``max_deliveries`` times is dead: it gets the next dead-letter number of the subscription.
    """

    records: list[tuple[int, int, int, int, str]]


class KeyParked(SubscriptionEntry, frozen=True, tag="key_parked"):
    """The records of a key leave a STREAM's way, into the dead-letter topic. If it was being resumed, that stops."""

    key: bytes
    reason: str


class KeyResumed(SubscriptionCommandEntry, frozen=True, tag="key_resumed"):
    """A command resumed a parked key. ``dropped``: the records that are parked now are not delivered."""

    key: bytes
    dropped: bool


class KeyUnparked(SubscriptionEntry, frozen=True, tag="key_unparked"):
    """A key that was resumed is not parked any more: all its parked records have been processed."""

    key: bytes


class ParkedRecordsStored(SubscriptionEntry, frozen=True, tag="parked_records_stored"):
    """Parked records are in the dead-letter topic: their dead-letter numbers."""

    numbers: list[int]


class SubscriptionDeleted(SubscriptionCommandEntry, frozen=True, tag="subscription_deleted"):
    """A subscription and its positions were removed."""


class SubscriptionSeek(SubscriptionCommandEntry, frozen=True, tag="subscription_seek"):
    """The subscription was moved to ``positions``. Acknowledgements of older seek generations are ignored.

    No segment has a holder any more. One entry, and not one for each segment: there may be thousands.
    """

    seek_generation: int
    positions: dict[int, int]


class ConsumerRegistered(SubscriptionEntry, frozen=True, tag="consumer_registered"):
    """A consumer joined, a newer incarnation took over its name, or its ``capacity`` (in percent) changed.

    ``supports_bucket_ranges``: it can read a bucket range of a segment. ``host``, ``version``: as the program says.
    """

    consumer: str
    incarnation: int
    client_id: str
    supports_bucket_ranges: bool = False
    capacity: int = 100
    host: str = ""
    version: str = ""


class ConsumerDisconnected(SubscriptionEntry, frozen=True, tag="consumer_disconnected"):
    """A consumer disconnected. Its grace period starts at the chunk's time and continues across leader changes."""

    consumer: str
    incarnation: int


class ConsumerReconnected(SubscriptionEntry, frozen=True, tag="consumer_reconnected"):
    """A disconnected consumer came back within its grace period."""

    consumer: str
    incarnation: int


class ConsumerRemoved(SubscriptionCommandEntry, frozen=True, kw_only=True, tag="consumer_removed"):
    """A consumer left, was evicted or replaced. What it held is free.

    With a ``token`` a command evicted it, and this incarnation must not register again.
    """

    consumer: str
    incarnation: int
    reason: LeaveReason
    token: str = ""


class SegmentGranted(HoldingEntry, frozen=True, tag="segment_granted"):
    """``consumer`` reads the segment from now on, or the keys of its buckets."""

    consumer: str


class SegmentRevoked(HoldingEntry, frozen=True, tag="segment_revoked"):
    """The holder was asked to finish. It holds the segment, or its buckets, until they are released."""


class SegmentReleased(HoldingEntry, frozen=True, tag="segment_released"):
    """The segment, or its buckets, has no holder. Acknowledgements at this generation are rejected."""

    reason: ReleaseReason


class SegmentsDrained(SubscriptionEntry, frozen=True, tag="segments_drained"):
    """This subscription has acknowledged every record of these sealed segments since its last seek."""

    segments: list[int]
    seek_generation: int


class LedgerTrimmed(Entry, frozen=True, tag="ledger_trimmed"):
    """Chunks numbered below ``below`` are no longer needed and are deleted from now on, oldest first."""

    below: int


class SegmentWeightsSet(SubscriptionEntry, frozen=True, tag="segment_weights_set"):
    """These segments have new weights; all other weights are unchanged."""

    weights: dict[int, int]


if TYPE_CHECKING:
    AnyEntry = Entry
else:
    AnyEntry = union_of(Entry)

_DECODER: msgspec.msgpack.Decoder[AnyEntry] = msgspec.msgpack.Decoder(AnyEntry)
encode_entry = msgspec.msgpack.Encoder().encode
decode_entry = _DECODER.decode
"""Return the entry in some bytes; raises msgspec.DecodeError: not an entry this version knows."""
