"""What travels over the broker: every request, reply and announcement, and the topics they travel on.

Each message is one msgpack map with a ``type`` tag. A request carries its own ``request_id`` and the ``client_id`` to
answer, so brokers of MQTT 3.1.1 and 5 both serve. Fields may be added with a default. docs/protocol.md tells the same
in prose, and a test holds the two together.

Nothing here decides anything, and nothing here promises delivery: a message may be lost, doubled or late, and only a
reply from the leader counts.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headgate.model.entries import Placement, TopicPolicy
from headgate.protocol.backlog import SegmentBacklog, SubscriptionBacklog
from headgate.protocol.explanations import (
    BlockingAncestor,
    ChangePlan,
    ConsumerExplanation,
    ConsumerLoad,
    PlannedMove,
    PlannedSegment,
    SegmentExplanation,
    SubscriptionExplanation,
)
from headgate.protocol.mqtt_topics import (
    cluster_topic,
    device_sentinel_topic,
    head_topic,
    leader_topic,
    parse_publish_address,
    presence_topic,
    publish_filter,
    replies_topic,
    requests_topic,
)
from headgate.protocol.replies import (
    AnyReply,
    AssignmentChanged,
    BacklogReply,
    BucketRangeProgress,
    BucketStart,
    Committed,
    ConsumerDescription,
    ConsumerFenced,
    Done,
    ExplanationReply,
    ExternalDescription,
    ExternalGrant,
    Grant,
    HeartbeatReply,
    PlanReply,
    ProducerIdentity,
    Pruned,
    Push,
    Registered,
    Rejected,
    Reply,
    RetainedSegment,
    Revocation,
    SeekReply,
    SegmentDescription,
    SegmentMove,
    SegmentProgress,
    SubscriptionDescription,
    SubscriptionList,
    SubscriptionReply,
    TopicDescription,
    TopicImportReply,
    TopicList,
    TopicReply,
    Verdict,
)
from headgate.protocol.requests import (
    MAX_CAPACITY_PERCENT,
    AcknowledgeBatch,
    Acknowledgement,
    AnyRequest,
    Checkpoint,
    ConfirmRevoked,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DescribeBacklog,
    DescribeSubscription,
    DescribeTopic,
    Epoch,
    ExplainSubscription,
    HashText,
    Heartbeat,
    ImportTopic,
    Label,
    LeaveConsumer,
    ListSubscriptions,
    ListTopics,
    MergeSegments,
    Name,
    Natural,
    OpenProducer,
    PlanChanges,
    PolicyField,
    ProduceBatch,
    PruneTopic,
    Record,
    RegisterConsumer,
    Request,
    SeekSubscription,
    SegmentImport,
    SetSubscriptionOrder,
    SetTopicPolicy,
    SplitSegment,
    Start,
    Token,
    require_name,
)

__all__ = [
    "MAX_CAPACITY_PERCENT",
    "MAX_MESSAGE_BYTES",
    "MAX_RECORD_BYTES",
    "PROTOCOL_VERSION",
    "AcknowledgeBatch",
    "Acknowledgement",
    "AnyReply",
    "AnyRequest",
    "AssignmentChanged",
    "BacklogReply",
    "BlockingAncestor",
    "BucketRangeProgress",
    "BucketStart",
    "ChangePlan",
    "Checkpoint",
    "ClusterDescription",
    "Committed",
    "ConfirmRevoked",
    "ConsumerDescription",
    "ConsumerExplanation",
    "ConsumerFenced",
    "ConsumerLoad",
    "CreateTopic",
    "DeleteSubscription",
    "DeleteTopic",
    "DescribeBacklog",
    "DescribeSubscription",
    "DescribeTopic",
    "Done",
    "Epoch",
    "ExplainSubscription",
    "ExplanationReply",
    "ExternalDescription",
    "ExternalGrant",
    "Grant",
    "HashText",
    "HeadAnnouncement",
    "Heartbeat",
    "HeartbeatReply",
    "ImportTopic",
    "Label",
    "LeaderAnnouncement",
    "LeaveConsumer",
    "ListSubscriptions",
    "ListTopics",
    "MergeSegments",
    "Name",
    "Natural",
    "OpenProducer",
    "Placement",
    "PlanChanges",
    "PlanReply",
    "PlannedMove",
    "PlannedSegment",
    "PolicyField",
    "Presence",
    "ProduceBatch",
    "ProducerIdentity",
    "PruneTopic",
    "Pruned",
    "Push",
    "Record",
    "RegisterConsumer",
    "Registered",
    "Rejected",
    "Reply",
    "Request",
    "RetainedSegment",
    "Revocation",
    "SeekReply",
    "SeekSubscription",
    "SegmentBacklog",
    "SegmentDescription",
    "SegmentExplanation",
    "SegmentImport",
    "SegmentMove",
    "SegmentProgress",
    "SetSubscriptionOrder",
    "SetTopicPolicy",
    "SplitSegment",
    "Start",
    "SubscriptionBacklog",
    "SubscriptionDescription",
    "SubscriptionExplanation",
    "SubscriptionList",
    "SubscriptionReply",
    "Token",
    "TopicDescription",
    "TopicImportReply",
    "TopicList",
    "TopicPolicy",
    "TopicReply",
    "Verdict",
    "cluster_topic",
    "decode",
    "decode_presence",
    "decode_reply",
    "decode_request",
    "device_sentinel_topic",
    "encode",
    "head_topic",
    "leader_topic",
    "parse_publish_address",
    "presence_topic",
    "publish_filter",
    "replies_topic",
    "requests_topic",
    "require_name",
]

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""No message may be larger: a leader refuses to decode it, whatever the broker allows."""
MAX_RECORD_BYTES = 1024 * 1024
"""Key and value of one record together; leaves room for the envelope of a batch of one."""


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Retained: what a client must know of the cluster."""

    protocol: int
    shards: int
    ledger_url: str


class LeaderAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """Retained per shard: who leads, and what this leader can do.

    ``window``: finished batches remembered per producer, hence the most batches a producer may have in flight.
    ``pipelining`` False: send one batch at a time.
    """

    shard: int
    leader_epoch: int
    instance: str
    pipelining: bool
    window: int


class HeadAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """The newest durable chunk of a shard."""

    shard: int
    leader_epoch: int
    head: int


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Retained per client; the broker publishes ``online`` False as its last will."""

    client_id: str
    online: bool


_ENCODER = msgspec.msgpack.Encoder()
_REQUEST: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_PRESENCE: msgspec.msgpack.Decoder[Presence] = msgspec.msgpack.Decoder(Presence)
_REPLY: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)

Message = TypeVar("Message")


def encode(message: msgspec.Struct) -> bytes:
    """Return the msgpack form of any message of this module."""
    return _ENCODER.encode(message)


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message:
    """Return the message in ``data``.

    Raises:
        msgspec.DecodeError: whatever is wrong with it. Bytes come from anybody, so nothing else may come out.

    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def decode_request(data: bytes) -> AnyRequest:
    """Return the request in ``data``; raises ``msgspec.DecodeError`` (also for values out of range)."""
    return decode(_REQUEST, data)


def decode_reply(data: bytes) -> AnyReply:
    """Return the reply or push in ``data``; raises ``msgspec.DecodeError``."""
    return decode(_REPLY, data)


def decode_presence(data: bytes) -> Presence:
    """Return the presence in ``data``; raises ``msgspec.DecodeError``."""
    return decode(_PRESENCE, data)
