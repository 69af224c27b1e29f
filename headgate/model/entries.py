"""What the ledger says: every kind of entry, as a value.

State is a pure fold over these entries, so whatever must outlive a leader is one of them. An entry is a fact that has
been decided: it is applied without being judged again. Entries are msgpack maps with a ``type`` tag; fields may be
added with a default, never renamed or given another meaning.

Ids (``topic_id``, ``subscription_id``, ``producer_id``) are unique on one shard for ever: a topic that is deleted and
created again is another topic, and nothing of the old one can be taken for the new.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from headgate.model.hashing import KEY_BUCKETS

Order = Literal["strict", "none"]
Positions = Literal["offsets", "opaque"]
"""How an external topic's source counts: rising offsets, or marks that mean something to its readers alone."""
Balance = Literal["count", "load"]
LeaveReason = Literal["left", "evicted", "replaced", "subscription_deleted"]
ReleaseReason = Literal["confirmed", "timed_out", "holder_left", "drained", "rewound", "pruned"]


class SubscriptionType(StrEnum):
    """How the consumers of a subscription acknowledge, and whether child segments wait for their ancestors.

    A name is accepted in any case: ``SubscriptionType("stream")`` is ``SubscriptionType.STREAM``. It is stored and
    sent in capitals.
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


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One decided fact."""


class TermStarted(Entry, frozen=True, tag="term_started"):
    """First entry of a reign. Creating its chunk is what makes ``instance`` the leader."""

    leader_epoch: int
    instance: str


class ProducerOpened(Entry, frozen=True, tag="producer_opened"):
    """A producer got an identity, or its next incarnation. ``token`` makes a repeated request get the same answer."""

    producer_id: int
    producer_epoch: int
    token: str
    name: str | None = None


class ProducersExpired(Entry, frozen=True, tag="producers_expired"):
    """Producers forgotten because they were idle too long, or because there were too many."""

    producer_ids: list[int]


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where the part of a batch that fell into one segment stands.

    The records of the batch whose segment hash lies in ``first_hash..last_hash`` have the offsets
    ``first_offset``, ``first_offset + 1``, … in the order of the batch.
    """

    segment: int
    first_hash: int
    last_hash: int
    first_offset: int
    count: int


class RecordsStored(Entry, frozen=True, tag="records_stored"):
    """One producer batch. Its records are rows of the same chunk; this entry holds their placement.

    ``producer_id`` is None for a batch without identity, which is taken at least once.
    ``source_position`` is opaque to the leader: how far the producer had read its source.
    """

    topic_id: int
    count: int
    placements: list[Placement]
    size_bytes: int
    producer_id: int | None = None
    producer_epoch: int = 0
    sequence: int = 0
    source_position: bytes | None = None


class AcknowledgedRange(msgspec.Struct, frozen=True, array_like=True):
    """Records ``first_offset`` up to, not including, ``end_offset`` of one segment.

    For STREAM the acknowledgement is cumulative and ``first_offset`` is 0. It speaks for the key buckets
    ``first_bucket`` up to, not including, ``end_bucket``; 0, 0 means all of them.
    """

    segment: int
    first_offset: int
    end_offset: int
    first_bucket: int = 0
    end_bucket: int = 0


class RecordsAcknowledged(Entry, frozen=True, tag="records_acknowledged"):
    """One batch of acknowledgements by one consumer; it has a sequence like any batch.

    ``ranges`` are those that count; ``count`` is how many the batch had, so that a repeated one is recognised.
    ``checkpoints``: segment → where its next holder goes on, in the words of an external topic's source. ``rejected``:
    the segments of those that do not count, in the order of the batch, so that a repeated one gets the same answer.
    """

    topic_id: int
    subscription_id: int
    seek_generation: int
    ranges: list[AcknowledgedRange]
    count: int = 0
    producer_id: int | None = None
    producer_epoch: int = 0
    sequence: int = 0
    checkpoints: dict[int, str] = {}
    rejected: list[int] = []


class TopicCreated(Entry, frozen=True, tag="topic_created"):
    """A topic with ``segments`` equal segments of ``buckets`` key buckets each."""

    topic_id: int
    topic: str
    segments: int
    token: str
    buckets: int = KEY_BUCKETS


class ImportedSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment of an external topic: ``label`` is its name at the source, ``hashes`` its range in the source's terms.

    ``end_offset`` None: active. Hashes are decimal text, because a source may have 128 bits of them.
    """

    segment: int
    label: str
    parents: list[int] = []
    hashes: tuple[str, str] | None = None
    end_offset: int | None = None


class TopicImported(Entry, frozen=True, tag="topic_imported"):
    """An external topic, whose records headgate does not store, with the segments that its source has had so far.

    ``hash_bits``: how many bits the source's hashes have; 0 if it has none.
    """

    topic_id: int
    topic: str
    token: str
    segments: list[ImportedSegment]
    positions: Positions
    hash_bits: int = 0
    source: str = ""


class LayoutExtended(Entry, frozen=True, tag="layout_extended"):
    """An external topic's source has split or merged: segments that are new, and known ones with their end offsets."""

    topic_id: int
    token: str
    created: list[ImportedSegment]
    sealed: dict[int, int]


class TopicDeleted(Entry, frozen=True, tag="topic_deleted"):
    """A topic and everything that belongs to it is gone."""

    topic_id: int
    token: str


class TopicPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one topic wants otherwise than the cluster's settings have it; None: as they have it."""

    auto_split: bool | None = None
    auto_merge: bool | None = None
    min_segments: int | None = None
    """None: as many as the topic was created with."""
    max_segments: int | None = None
    retention_ms: int | None = None
    """How long a sealed segment is kept once drained; -1: for ever."""


NO_POLICY = TopicPolicy()


class TopicPolicySet(Entry, frozen=True, tag="topic_policy_set"):
    """From now on this is the topic's policy, as a whole."""

    topic_id: int
    policy: TopicPolicy
    token: str


class SegmentSplit(Entry, frozen=True, tag="segment_split"):
    """A segment was sealed at ``end_offset`` and its two halves created: one entry, so never half done.

    ``token`` is empty and ``reason`` says why where it was not a command but the leader by itself.
    """

    topic_id: int
    segment: int
    end_offset: int
    token: str
    reason: str = ""


class SegmentsMerged(Entry, frozen=True, tag="segments_merged"):
    """Two neighbours were sealed at their end offsets and one child created; the rest as for a split."""

    topic_id: int
    segments: tuple[int, int]
    end_offsets: tuple[int, int]
    token: str
    reason: str = ""


class SegmentsPruned(Entry, frozen=True, tag="segments_pruned"):
    """Sealed segments whose retention is over are gone from the layout, ancestors first; their data is to be deleted.

    ``token`` is empty where it was not a command.
    """

    topic_id: int
    segments: list[int]
    token: str = ""


class DataDeleted(Entry, frozen=True, tag="data_deleted"):
    """The data of segments that were pruned, or went with their topic, is deleted."""

    topic_id: int
    segments: list[int]


class SubscriptionCreated(Entry, frozen=True, tag="subscription_created"):
    """A subscription begins at ``positions`` (segment → offset of the first record it wants).

    ``subscription_type`` None: restored from elsewhere and not on record yet.
    """

    topic_id: int
    subscription_id: int
    subscription: str
    subscription_type: SubscriptionType | None
    order: Order
    positions: dict[int, int]
    balance: Balance = "count"


class SubscriptionConfigured(Entry, frozen=True, tag="subscription_configured"):
    """The type of a subscription became known, or its order or balance was changed.

    ``token`` is that of the command that changed the order; empty if a consumer did, by registering.
    """

    topic_id: int
    subscription_id: int
    subscription_type: SubscriptionType
    order: Order
    token: str = ""
    balance: Balance = "count"


class SubscriptionDeleted(Entry, frozen=True, tag="subscription_deleted"):
    """A subscription and its positions are gone."""

    topic_id: int
    subscription_id: int
    token: str


class SubscriptionSeek(Entry, frozen=True, tag="subscription_seek"):
    """The subscription was moved to ``positions``; acknowledgements of older seek generations no longer count."""

    topic_id: int
    subscription_id: int
    seek_generation: int
    positions: dict[int, int]
    token: str


class ConsumerRegistered(Entry, frozen=True, tag="consumer_registered"):
    """A consumer joined, a newer incarnation took over its name, or its ``capacity`` (in percent) changed.

    ``supports_bucket_ranges``: it can read a share of a segment.
    """

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int
    client_id: str
    supports_bucket_ranges: bool = False
    capacity: int = 100


class ConsumerDisconnected(Entry, frozen=True, tag="consumer_disconnected"):
    """A consumer went silent; from the chunk's time on its grace period runs, whoever leads."""

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int


class ConsumerReconnected(Entry, frozen=True, tag="consumer_reconnected"):
    """A silent consumer is back within its grace period."""

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int


class ConsumerRemoved(Entry, frozen=True, tag="consumer_removed"):
    """A consumer left or was evicted; what it held is free."""

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int
    reason: LeaveReason


class SegmentGranted(Entry, frozen=True, tag="segment_granted"):
    """From now on ``consumer`` reads the segment; ``generation`` fences whoever held it before.

    It reads the keys of the buckets ``first_bucket`` up to, not including, ``end_bucket``; 0, 0 means all of them.
    """

    topic_id: int
    subscription_id: int
    segment: int
    consumer: str
    generation: int
    first_bucket: int = 0
    end_bucket: int = 0


class SegmentRevoked(Entry, frozen=True, tag="segment_revoked"):
    """The holder was told to finish. It still holds the segment, or its buckets, until released."""

    topic_id: int
    subscription_id: int
    segment: int
    generation: int
    first_bucket: int = 0
    end_bucket: int = 0


class SegmentReleased(Entry, frozen=True, tag="segment_released"):
    """Nobody holds the segment, or these buckets, any more; acknowledgements at this generation are rejected."""

    topic_id: int
    subscription_id: int
    segment: int
    generation: int
    reason: ReleaseReason
    first_bucket: int = 0
    end_bucket: int = 0


class SegmentsDrained(Entry, frozen=True, tag="segments_drained"):
    """Sealed segments of which this subscription has acknowledged every record since its last seek."""

    topic_id: int
    subscription_id: int
    segments: list[int]
    seek_generation: int


class LedgerTrimmed(Entry, frozen=True, tag="ledger_trimmed"):
    """Chunks numbered below ``below`` are no longer needed, and are deleted from now on, oldest first."""

    below: int


class SegmentWeightsSet(Entry, frozen=True, tag="segment_weights_set"):
    """These segments weigh something else from now on; the weights of all others stand."""

    topic_id: int
    subscription_id: int
    weights: dict[int, int]


AnyEntry = (
    TermStarted
    | ProducerOpened
    | ProducersExpired
    | RecordsStored
    | RecordsAcknowledged
    | TopicCreated
    | TopicImported
    | LayoutExtended
    | TopicDeleted
    | TopicPolicySet
    | SegmentSplit
    | SegmentsMerged
    | SegmentsPruned
    | DataDeleted
    | SubscriptionCreated
    | SubscriptionConfigured
    | SubscriptionDeleted
    | SubscriptionSeek
    | ConsumerRegistered
    | ConsumerDisconnected
    | ConsumerReconnected
    | ConsumerRemoved
    | SegmentGranted
    | SegmentRevoked
    | SegmentReleased
    | SegmentsDrained
    | LedgerTrimmed
    | SegmentWeightsSet
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyEntry] = msgspec.msgpack.Decoder(AnyEntry)


def encode_entry(entry: Entry) -> bytes:
    """Return the msgpack form of ``entry``."""
    return _ENCODER.encode(entry)


def decode_entry(data: bytes) -> AnyEntry:
    """Return the entry in ``data``.

    Raises:
        msgspec.DecodeError: not an entry this version knows.

    """
    return _DECODER.decode(data)
