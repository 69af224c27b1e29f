"""The largest form of every reply, push and announcement fits into what a leader may send.

The size is computed from the structs. Each text, list and map needs its limit below, so a new field
fails this test until its limit is given.
"""

import typing

import msgspec
import pytest
from msgspec import inspect as shapes

from controller.settings.sections import MAX_SHARDS
from headgate.model.layout import KEY_BUCKETS
from headgate.model.text import MAX_SHOWN
from headgate.protocol import codec, request_fields
from headgate.protocol.codec import (
    MAX_MESSAGE_BYTES,
    ClusterDescription,
    HeadAnnouncement,
    LeaderAnnouncement,
    Presence,
)
from headgate.protocol.replies import AnyPush, AnyReplyBody, MessagePart
from headgate.transport.mqtt import MAX_OUTGOING_BYTES
from headgate.transport.port import MAX_PAYLOAD_BYTES
from headgate.views.cluster import MAX_BLOCKING_SEGMENTS, MAX_DESCRIBED_DAEMONS, MAX_REASON_CHARACTERS
from headgate.views.topics import SegmentInfo
from shard.requests.topic_commands import MAX_SEGMENTS
from shard.state.producers import MAX_SOURCE_POSITIONS
from shard.subscriptions.deliveries import MAX_DEAD_LETTERS, MAX_RECORDS_OF_SUBSCRIPTION
from shard.subscriptions.gate import MAX_NAMED_BLOCKERS
from shard.subscriptions.parking import MAX_PARKED_KEYS, MAX_RESUMING_KEYS
from shard.subscriptions.registration import MAX_CONSUMERS, MAX_SUBSCRIPTIONS

NAME, LABEL, SENTENCE, WORD = 100, 128, 400, 12
CHECKPOINT = 4 * 1024
"""1024 characters."""
PATH = 1024
QUEUE_RANGES = 100_000 // MAX_SEGMENTS
"""Gaps between acknowledged records of a QUEUE, per segment if every segment has the same. Not limited:
a grant with more than a million gaps is withheld, with a log line and a metric."""
FAILED = MAX_RECORDS_OF_SUBSCRIPTION // MAX_SEGMENTS
"""Records of a QUEUE that have failed, as many in every segment."""
PARENTS = 64
SLICES = 2
"""On average per segment and per consumer: shared segments have as many slices as there are consumers, or
half of that again while some leave."""
MOVES = MAX_SEGMENTS + MAX_CONSUMERS + 1000
"""Slices of a subscription: a segment is shared only by consumers that would have none otherwise."""
PAGED = (
    "TopicList.topics",
    "SubscriptionList.subscriptions",
    "BacklogReply.backlogs",
    "ProducerList.producers",
    "ClusterReply.subscriptions",
    "ParkedKeyList.keys",
)
LIMITS = {
    **dict.fromkeys(
        ["user", "topic", "subscription", "consumer", "instance", "client_id", "waiting_for", "before", "after"], NAME
    ),
    **dict.fromkeys(["label", "host", "version"], LABEL),
    **dict.fromkeys(["reason", "idle", "unknown_reason"], SENTENCE),
    **dict.fromkeys(
        ["type", "order", "balance", "status", "state", "verdict", "outlook", "counted_by", "positions"], WORD
    ),
    **dict.fromkeys(["subscription_type"], WORD),
    "next": 256,
    "checkpoint": CHECKPOINT,
    "source": 4 * 256,
    "ledger_url": PATH,
    "ledger_id": 32,
    "position": 1024,
    "ProducerInfo.positions": MAX_SOURCE_POSITIONS,
    "Committed.placements": MAX_SEGMENTS,
    "Acknowledged.rejected": request_fields.MAX_BATCH_ACKNOWLEDGEMENTS,
    "Acknowledged.rejected.item": SENTENCE,
    "Acknowledged.negative_rejected": request_fields.MAX_BATCH_ACKNOWLEDGEMENTS,
    "Acknowledged.negative_rejected.item": SENTENCE,
    "Acknowledged.redeliveries": request_fields.MAX_BATCH_ACKNOWLEDGEMENTS,
    "DeliveriesBegun.rejected": request_fields.MAX_BEGUN_RECORDS,
    "DeliveriesBegun.rejected.item": SENTENCE,
    "DeliveriesBegun.delayed": request_fields.MAX_BEGUN_RECORDS,
    "DeliveryPolicy.dead_letter_topic": NAME,
    "TopicReply.configured": 7,
    "TopicReply.pruned_ends": request_fields.MAX_HELD_SEGMENTS,
    "HeartbeatReply.dead_letters": MAX_DEAD_LETTERS,
    "HeartbeatReply.sender_secret": 64,
    "DeadLetter.reason": 4 * request_fields.MAX_FAILURE_CHARACTERS,
    "Grant.failed": FAILED,
    "Grant.parked": MAX_PARKED_KEYS // MAX_SEGMENTS,
    "Grant.parked.item": request_fields.MAX_PARKED_KEY_BYTES,
    "HeartbeatReply.resuming": MAX_RESUMING_KEYS,
    **dict.fromkeys(["ResumingKey.key", "ParkedKeyInfo.key"], request_fields.MAX_PARKED_KEY_BYTES),
    "ParkedKeyInfo.dead_letter_topic": NAME,
    "ParkedKeyInfo.reason": 4 * request_fields.MAX_FAILURE_CHARACTERS,
    "BucketStart.acknowledged": QUEUE_RANGES // KEY_BUCKETS,
    "Grant.acknowledged": QUEUE_RANGES,
    "Grant.starts": KEY_BUCKETS,
    "Registered.grants": MAX_SEGMENTS,
    "AssignmentChanged.granted": 1000,
    "AssignmentChanged.revoked": MAX_SEGMENTS * KEY_BUCKETS,
    "SegmentInfo.parents": PARENTS,
    "SegmentInfo.children": PARENTS,
    "TopicInfo.segments": MAX_SEGMENTS,
    "TopicInfo.subscriptions": MAX_SUBSCRIPTIONS,
    "TopicInfo.subscriptions.item": NAME,
    "TopicImportResult.created": MAX_SEGMENTS,
    "TopicImportResult.created.item": LABEL,
    "TopicImportResult.sealed": MAX_SEGMENTS,
    "TopicImportResult.sealed.item": LABEL,
    "TopicImportResult.expired_parents": MAX_SEGMENTS * PARENTS // 2,
    "TopicImportResult.expired_parents.item": LABEL,
    "PruneResult.segments": MAX_SEGMENTS,
    "PruneResult.retained": MAX_SEGMENTS,
    "PruneResult.abandoned": MAX_SUBSCRIPTIONS,
    "PruneResult.abandoned.item": NAME,
    **dict.fromkeys(["cluster", "daemon", "component", "version", "spread"], NAME),
    "url": PATH,
    "problem": 4 * MAX_REASON_CHARACTERS,
    "ComponentInfo.reason": 4 * MAX_REASON_CHARACTERS,
    "ClusterInfo.daemons": MAX_DESCRIBED_DAEMONS,
    "ClusterInfo.subscriptions": 0,
    **dict.fromkeys(["shards", "earlier_shards"], MAX_SHARDS),
    "FeatureLevel.problems": MAX_SHOWN + 1,
    "FeatureLevel.problems.item": SENTENCE,
    "DaemonInfo.components": 10,
    "SubscriptionSummary.blocking_segments": MAX_BLOCKING_SEGMENTS,
    "SegmentAssignment.blocked_by": MAX_NAMED_BLOCKERS,
    "SegmentAssignment.bucket_ranges": SLICES,
    "ConsumerInfo.segments": SLICES,
    "ConsumerInfo.bucket_ranges": SLICES,
    "SubscriptionInfo.consumers": MAX_CONSUMERS,
    "SubscriptionInfo.segments": MAX_SEGMENTS,
    "SeekResult.moves": MAX_SEGMENTS,
    "ProducerInfo.producer": NAME,
    "BacklogInfo.segments": MAX_SEGMENTS,
    "ProposedSegment.parents": PARENTS,
    "ProposedSegment.blocked_by": MAX_NAMED_BLOCKERS,
    "Plan.created": 3 * 100,
    "Plan.after_rebalance": MOVES,
    "Plan.after_drain": MOVES,
    "Plan.consumers": MAX_CONSUMERS + 1000,
    "BlockingSegment.consumers": KEY_BUCKETS,
    "BlockingSegment.consumers.item": NAME,
    "SegmentReasons.consumers": KEY_BUCKETS,
    "SegmentReasons.consumers.item": NAME,
    "SegmentReasons.blocked_by": MAX_NAMED_BLOCKERS,
    "SegmentReasons.sentences": MAX_NAMED_BLOCKERS + 2,
    "SegmentReasons.sentences.item": SENTENCE + KEY_BUCKETS * NAME,
    "ConsumerReasons.segments": MAX_SEGMENTS,
    "ConsumerReasons.sentences": 5,
    "ConsumerReasons.sentences.item": MAX_SEGMENTS * KEY_BUCKETS * NAME // 4,
    "Explanation.summary": 5,
    "Explanation.summary.item": SENTENCE,
    # One segment and one consumer. An explanation of everything may be refused: the text says to ask for less.
    "Explanation.segments": 1,
    "Explanation.consumers": 1,
}
ANNOUNCEMENTS = (ClusterDescription, LeaderAnnouncement, HeadAnnouncement, Presence)
MESSAGES = [*typing.get_args(AnyReplyBody), *typing.get_args(AnyPush)]


def limit_of(path: str) -> int:
    """Return the limit of a text, list or map at ``path`` (message.field, or message.field.item)."""
    field = path.partition(".")[2]
    assert path in LIMITS or field in LIMITS, f"{path} has no limit here: how large can it be?"
    return LIMITS.get(path, LIMITS.get(field, 0))


def largest(of: shapes.Type, path: str) -> int:
    """Return the most bytes of an encoded value; numbers and headers count as nine and five bytes."""
    match of:
        case shapes.StructType(cls=kind, fields=fields):
            names = 0 if kind.__struct_config__.array_like else sum(2 + len(field.encode_name) for field in fields)
            return 5 + 40 + names + sum(largest(field.type, f"{kind.__name__}.{field.name}") for field in fields)
        case shapes.UnionType(types=types):
            return max(largest(each, path) for each in types)
        case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item) if path in PAGED:
            return 5 + codec.PAGE_BYTES + largest(item, path)
        case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item):
            return 5 + limit_of(path) * largest(item, f"{path}.item")
        case shapes.NamedTupleType(fields=fields):
            return 5 + sum(largest(field.type, path) for field in fields)
        case shapes.TupleType(item_types=items):
            return 5 + sum(largest(item, path) for item in items)
        case shapes.StrType() | shapes.BytesType():
            return 5 + limit_of(path)
        case shapes.LiteralType(values=values):
            return 5 + max(len(str(value)) for value in values)
        case shapes.EnumType(cls=kind):
            return 5 + max(len(str(member.value)) for member in kind)
        case shapes.IntType() | shapes.FloatType() | shapes.BoolType() | shapes.NoneType():
            return 9
    raise AssertionError(f"{path}: {of}")


def largest_message(kind: type[msgspec.Struct]) -> int:
    return largest(shapes.type_info(kind), kind.__name__)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_the_largest_reply_or_push_can_be_sent(kind):
    assert largest_message(kind) <= codec.MAX_REPLY_BYTES


@pytest.mark.parametrize("kind", ANNOUNCEMENTS, ids=lambda kind: kind.__name__)
def test_announcements_fit_into_one_message(kind):
    assert largest_message(kind) <= codec.PART_BYTES


def test_the_envelopes_fit_into_a_message_that_brokers_accept():
    part = MessagePart(
        shard=2**31,
        leader_epoch=2**31,
        number=2**40,
        index=codec.MAX_PARTS,
        count=codec.MAX_PARTS,
        content=b"x" * codec.PART_BYTES,
    )

    assert len(codec.encode(part)) < 1_000_000
    assert MAX_MESSAGE_BYTES == MAX_PAYLOAD_BYTES
    assert 2 * codec.MAX_REPLY_BYTES <= MAX_OUTGOING_BYTES, "a transport takes all parts at once"


def test_the_size_of_a_message_is_not_underestimated():
    segment = SegmentInfo(
        segment=2**63 - 1, first_hash=65535, last_hash=65535, state="x" * len("active"), parents=(2**63 - 1,) * PARENTS,
        children=(2**63 - 1,) * PARENTS, next_offset=2**63 - 1, size_bytes=2**63 - 1, created_at_ms=2**63 - 1,
        sealed_at_ms=2**63 - 1, label="x" * LABEL,
    )  # fmt: skip

    assert len(codec.encode(segment)) <= largest_message(SegmentInfo) <= 1.1 * len(codec.encode(segment))
