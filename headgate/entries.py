"""What the ledger says: every kind of entry, as a value.

State is a pure fold over these entries, so whatever must outlive a leader is one of them. An entry is a fact that has
been decided: it is applied without being judged again. Entries are msgpack maps with a ``type`` tag; fields may be
added with a default, never renamed or given another meaning.

Ids (``topic_id``, ``subscription_id``, ``producer_id``) are unique on one shard for ever: a topic that is deleted and
created again is another topic, and nothing of the old one can be taken for the new.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SubscriptionType = Literal["STREAM", "CHECKPOINT", "QUEUE"]
Order = Literal["strict", "none"]
LeaveReason = Literal["left", "evicted", "replaced", "subscription_deleted"]
ReleaseReason = Literal["confirmed", "timed_out", "holder_left", "drained", "rewound"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One decided fact."""


class ReignBegan(Entry, frozen=True, tag="reign_began"):
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

    For STREAM the acknowledgement is cumulative and ``first_offset`` is 0.
    """

    segment: int
    first_offset: int
    end_offset: int


class RecordsAcknowledged(Entry, frozen=True, tag="records_acknowledged"):
    """One batch of acknowledgements by one consumer; it has a sequence like any batch.

    ``ranges`` are those that count; ``count`` is how many the batch had, so that a repeated one is recognised.
    """

    topic_id: int
    subscription_id: int
    seek_generation: int
    ranges: list[AcknowledgedRange]
    count: int = 0
    producer_id: int | None = None
    producer_epoch: int = 0
    sequence: int = 0


class TopicCreated(Entry, frozen=True, tag="topic_created"):
    """A topic with ``segments`` equal segments."""

    topic_id: int
    topic: str
    segments: int
    token: str
    buckets: int = 16


class TopicDeleted(Entry, frozen=True, tag="topic_deleted"):
    """A topic and everything that belongs to it is gone."""

    topic_id: int
    token: str


class SegmentSplit(Entry, frozen=True, tag="segment_split"):
    """A segment was sealed at ``end_offset`` and its two halves created: one entry, so never half done."""

    topic_id: int
    segment: int
    end_offset: int
    token: str


class SegmentsMerged(Entry, frozen=True, tag="segments_merged"):
    """Two neighbours were sealed at their end offsets and one child created."""

    topic_id: int
    segments: tuple[int, int]
    end_offsets: tuple[int, int]
    token: str


class SegmentsPruned(Entry, frozen=True, tag="segments_pruned"):
    """Sealed segments that every subscription has drained are gone from the layout, ancestors first."""

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


class SubscriptionTyped(Entry, frozen=True, tag="subscription_typed"):
    """The type of a subscription became known."""

    topic_id: int
    subscription_id: int
    subscription_type: SubscriptionType
    order: Order


class SubscriptionDeleted(Entry, frozen=True, tag="subscription_deleted"):
    """A subscription and its positions are gone."""

    topic_id: int
    subscription_id: int
    token: str


class Sought(Entry, frozen=True, tag="sought"):
    """The subscription was moved to ``positions``; acknowledgements of older seek generations no longer count."""

    topic_id: int
    subscription_id: int
    seek_generation: int
    positions: dict[int, int]
    token: str


class ConsumerRegistered(Entry, frozen=True, tag="consumer_registered"):
    """A consumer joined, or a newer incarnation took over its name."""

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int
    client_id: str


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


class ConsumerGone(Entry, frozen=True, tag="consumer_gone"):
    """A consumer left or was evicted; what it held is free."""

    topic_id: int
    subscription_id: int
    consumer: str
    incarnation: int
    reason: LeaveReason


class SegmentGranted(Entry, frozen=True, tag="segment_granted"):
    """From now on ``consumer`` reads the segment; ``generation`` fences whoever held it before."""

    topic_id: int
    subscription_id: int
    segment: int
    consumer: str
    generation: int


class SegmentRevoked(Entry, frozen=True, tag="segment_revoked"):
    """The holder was told to finish. It still holds the segment until released."""

    topic_id: int
    subscription_id: int
    segment: int
    generation: int


class SegmentReleased(Entry, frozen=True, tag="segment_released"):
    """Nobody holds the segment any more; later acknowledgements at this generation are refused."""

    topic_id: int
    subscription_id: int
    segment: int
    generation: int
    reason: ReleaseReason


class SegmentsDrained(Entry, frozen=True, tag="segments_drained"):
    """Sealed segments of which this subscription has acknowledged every record since its last seek."""

    topic_id: int
    subscription_id: int
    segments: list[int]
    seek_generation: int


AnyEntry = (
    ReignBegan
    | ProducerOpened
    | ProducersExpired
    | RecordsStored
    | RecordsAcknowledged
    | TopicCreated
    | TopicDeleted
    | SegmentSplit
    | SegmentsMerged
    | SegmentsPruned
    | SubscriptionCreated
    | SubscriptionTyped
    | SubscriptionDeleted
    | Sought
    | ConsumerRegistered
    | ConsumerDisconnected
    | ConsumerReconnected
    | ConsumerGone
    | SegmentGranted
    | SegmentRevoked
    | SegmentReleased
    | SegmentsDrained
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
