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
    device_mark_topic,
    head_topic,
    leader_topic,
    presence_topic,
    publish_filter,
    published_to,
    replies_topic,
    requests_topic,
)
from headgate.protocol.replies import (
    Alive,
    AnyReply,
    AssignmentChanged,
    BacklogAnswer,
    BucketStart,
    Committed,
    ConsumerDescription,
    ConsumerFenced,
    Done,
    ExplanationAnswer,
    ExternalDescription,
    ExternalGrant,
    Grant,
    KeptSegment,
    PlanAnswer,
    ProducerIdentity,
    Pruned,
    Push,
    Refused,
    Registered,
    Reply,
    Revocation,
    SegmentDescription,
    SegmentMove,
    SegmentProgress,
    ShareProgress,
    SoughtAnswer,
    SubscriptionAnswer,
    SubscriptionDescription,
    SubscriptionList,
    TopicAnswer,
    TopicDescription,
    TopicImportAnswer,
    TopicList,
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
    "Alive",
    "AnyReply",
    "AnyRequest",
    "AssignmentChanged",
    "BacklogAnswer",
    "BlockingAncestor",
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
    "ExplanationAnswer",
    "ExternalDescription",
    "ExternalGrant",
    "Grant",
    "HashText",
    "HeadAnnouncement",
    "Heartbeat",
    "ImportTopic",
    "KeptSegment",
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
    "PlanAnswer",
    "PlanChanges",
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
    "Refused",
    "RegisterConsumer",
    "Registered",
    "Reply",
    "Request",
    "Revocation",
    "SeekSubscription",
    "SegmentBacklog",
    "SegmentDescription",
    "SegmentExplanation",
    "SegmentImport",
    "SegmentMove",
    "SegmentProgress",
    "SetSubscriptionOrder",
    "SetTopicPolicy",
    "ShareProgress",
    "SoughtAnswer",
    "SplitSegment",
    "Start",
    "SubscriptionAnswer",
    "SubscriptionBacklog",
    "SubscriptionDescription",
    "SubscriptionExplanation",
    "SubscriptionList",
    "Token",
    "TopicAnswer",
    "TopicDescription",
    "TopicImportAnswer",
    "TopicList",
    "TopicPolicy",
    "Verdict",
    "cluster_topic",
    "decode",
    "decode_presence",
    "decode_reply",
    "decode_request",
    "device_mark_topic",
    "encode",
    "head_topic",
    "leader_topic",
    "presence_topic",
    "publish_filter",
    "published_to",
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
    """Retained per client; the broker publishes ``here`` False as its last will."""

    client_id: str
    here: bool


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
