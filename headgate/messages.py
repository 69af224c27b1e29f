"""What travels over the broker: every request, reply and announcement, and the topics they travel on.

Each message is one msgpack map with a ``type`` tag. A request carries its own ``request_id`` and the ``client_id`` to
answer, so brokers of MQTT 3.1.1 and 5 both serve. Fields may be added with a default. docs/protocol.md tells the same
in prose, and a test holds the two together.

Nothing here decides anything, and nothing here promises delivery: a message may be lost, doubled or late, and only a
reply from the leader counts.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from headgate.entries import Order, Placement, SubscriptionType
from headgate.errors import InvalidNameError

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""No message may be larger: a leader refuses to decode it, whatever the broker allows."""
MAX_RECORD_BYTES = 1024 * 1024
"""Key and value of one record together; leaves room for the envelope of a batch of one."""

Verdict = Literal["invalid", "not_leader", "fenced", "out_of_order", "unavailable"]
Start = Literal["earliest", "latest"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Not "$": that lets a newline follow.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
Token = Annotated[str, Meta(min_length=1, max_length=64)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def require_name(kind: str, name: str) -> str:
    """Return ``name`` if it can name a ``kind`` (topic, consumer, …).

    Raises:
        InvalidNameError: with the rule.

    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{kind} name {name!r}: use 1 to 100 letters, digits, dots, dashes or underscores, "
            "starting with a letter or digit",
        )
    return name


# --- topics of the broker ---------------------------------------------------------------------------------------------


def cluster_topic(cluster: str) -> str:
    """Retained `ClusterDescription`."""
    return f"headgate/{cluster}/cluster"


def requests_topic(cluster: str, shard: int) -> str:
    """Client → leader."""
    return f"headgate/{cluster}/shards/{shard}/requests"


def replies_topic(cluster: str, client_id: str) -> str:
    """Leader → client."""
    return f"headgate/{cluster}/clients/{client_id}/replies"


def presence_topic(cluster: str, client_id: str) -> str:
    """Retained `Presence`; the last will says "gone". With ``+`` as the client: everybody's."""
    return f"headgate/{cluster}/clients/{client_id}/presence"


def leader_topic(cluster: str, shard: int) -> str:
    """Retained `LeaderAnnouncement`."""
    return f"headgate/{cluster}/shards/{shard}/leader"


def head_topic(cluster: str, shard: int) -> str:
    """`HeadAnnouncement` after commits, so that consumers read on."""
    return f"headgate/{cluster}/shards/{shard}/head"


def publish_filter(cluster: str, topic: str) -> str:
    """Everything that plain devices publish to ``topic``; the levels after it are the key."""
    return f"headgate/{cluster}/publish/{topic}/#"


def published_to(cluster: str, mqtt_topic: str) -> tuple[str, str]:
    """Return (topic, key) of what a device published to ``mqtt_topic``, which matches a `publish_filter`.

    The key is all that follows the topic's name, further slashes included; it is empty where nothing follows.
    """
    topic, _, key = mqtt_topic.removeprefix(f"headgate/{cluster}/publish/").partition("/")
    return topic, key


# --- client → leader --------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every request.

    ``leader_epoch`` pins the reign it was meant for. A batch without one comes from a client too old to be
    safe and is refused with a delay; other requests may leave it out.

    ``protocol`` is left out by clients of the first version. A leader refuses any other than its own.
    """

    request_id: Natural
    client_id: Name
    leader_epoch: Epoch | None = None
    protocol: Epoch = 1


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One keyed record of a batch."""

    key: bytes
    value: bytes
    timestamp_ms: Natural


class ProduceBatch(Request, frozen=True, tag="produce"):
    """Records of one topic. Never rebuilt: a retry carries the same bytes under the same sequence."""

    topic: Name
    records: Annotated[list[Record], Meta(min_length=1, max_length=100_000)]
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0
    sequence: Natural = 0
    source_position: Annotated[bytes, Meta(max_length=1024)] | None = None


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """Records ``first_offset`` up to, not including, ``end_offset``; STREAM is cumulative and ignores the first."""

    segment: Natural
    generation: Natural
    first_offset: Natural
    end_offset: Natural


class AcknowledgeBatch(Request, frozen=True, tag="acknowledge"):
    """Acknowledgements of one consumer; judged by the same table as records."""

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    acknowledgements: Annotated[list[Acknowledgement], Meta(min_length=1, max_length=10_000)]
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0
    sequence: Natural = 0


class OpenProducer(Request, frozen=True, tag="open_producer"):
    """Ask for an identity, or for the next incarnation of (``producer_id``, ``producer_epoch``) or of ``name``.

    The same ``token`` gets the same answer: a lost reply costs nothing.
    """

    token: Token
    name: Name | None = None
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0


class RegisterConsumer(Request, frozen=True, tag="register"):
    """Join a subscription, or come back to it. Creates the subscription where it is missing.

    ``incarnation`` rises with every start of the program, so that the newer of two with one name wins.
    """

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    subscription_type: SubscriptionType
    start: Start = "latest"
    order: Order | None = None


class Heartbeat(Request, frozen=True, tag="heartbeat"):
    """Say that a consumer lives; the answer tells the head of the ledger.

    ``held``: every (segment, generation) that the consumer reads or finishes now. The leader pushes again what was
    lost on the way: grants that are missing, revocations not confirmed, final ones for what it does not hold any more.
    """

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    held: Annotated[list[tuple[Natural, Natural]], Meta(max_length=100_000)] | None = None


class LeaveConsumer(Request, frozen=True, tag="leave"):
    """Leave at once and free what is held."""

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural


class ConfirmRevoked(Request, frozen=True, tag="confirm_revoked"):
    """The consumer has finished with a revoked segment: everything it delivered is acknowledged or given up."""

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    segment: Natural
    generation: Natural


class CreateTopic(Request, frozen=True, tag="create_topic"):
    """Create a topic of ``segments`` equal segments."""

    topic: Name
    token: Token
    segments: Annotated[int, Meta(ge=1, le=1024)] = 1


class DeleteTopic(Request, frozen=True, tag="delete_topic"):
    """Delete a topic that no consumer uses; ``force`` deletes it all the same."""

    topic: Name
    token: Token
    force: bool = False


class ListTopics(Request, frozen=True, tag="list_topics"):
    """List the topics of one shard."""


class DescribeTopic(Request, frozen=True, tag="describe_topic"):
    """Ask for a topic's layout."""

    topic: Name


class SplitSegment(Request, frozen=True, tag="split_segment"):
    """Split an active segment at the middle of its range."""

    topic: Name
    segment: Natural
    token: Token


class MergeSegments(Request, frozen=True, tag="merge_segments"):
    """Merge two active neighbours."""

    topic: Name
    segments: tuple[Natural, Natural]
    token: Token


class ListSubscriptions(Request, frozen=True, tag="list_subscriptions"):
    """List the subscriptions of one topic, or of the whole shard."""

    topic: Name | None = None


class DescribeSubscription(Request, frozen=True, tag="describe_subscription"):
    """Ask who reads what, what is blocked and by which ancestors."""

    topic: Name
    subscription: Name


class DeleteSubscription(Request, frozen=True, tag="delete_subscription"):
    """Delete a subscription that no consumer uses; ``force`` deletes it all the same."""

    topic: Name
    subscription: Name
    token: Token
    force: bool = False


AnyRequest = (
    ProduceBatch
    | AcknowledgeBatch
    | OpenProducer
    | RegisterConsumer
    | Heartbeat
    | LeaveConsumer
    | ConfirmRevoked
    | CreateTopic
    | DeleteTopic
    | ListTopics
    | DescribeTopic
    | SplitSegment
    | MergeSegments
    | ListSubscriptions
    | DescribeSubscription
    | DeleteSubscription
)


# --- leader → client --------------------------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every reply."""

    request_id: int
    leader_epoch: int


class Committed(Reply, frozen=True, tag="committed"):
    """The batch is durable.

    ``placements`` None: acknowledgements, or records stored so long ago that nobody remembers where.
    ``refused``: acknowledgements of the batch that do not count, as (segment, reason); the others do.
    """

    placements: list[Placement] | None = None
    duplicate: bool = False
    refused: list[tuple[int, str]] = []


class Refused(Reply, frozen=True, tag="refused"):
    """The request was not taken; ``verdict`` says what follows, ``reason`` is for people.

    For ``not_leader``, ``leader_epoch`` and ``instance`` are what this node knows of the leader.
    """

    verdict: Verdict
    reason: str
    instance: str = ""


class ProducerIdentity(Reply, frozen=True, tag="producer_identity"):
    """Answer to `OpenProducer`; ``source_position`` is the last one committed under the name."""

    producer_id: int
    producer_epoch: int
    source_position: bytes | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to read one segment.

    Reading starts at ``start_offset``, which stands in chunk ``start_chunk`` or later; QUEUE consumers skip the
    ``acknowledged`` ranges (first, end). ``end_offset`` is known when the segment is sealed.
    """

    segment: int
    generation: int
    first_hash: int
    last_hash: int
    start_offset: int
    start_chunk: int
    end_offset: int | None = None
    acknowledged: list[tuple[int, int]] = []


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """Finish this segment and confirm. ``final``: it has been taken already (drained, or fenced); just stop."""

    segment: int
    generation: int
    final: bool = False


class Registered(Reply, frozen=True, tag="registered"):
    """Answer to `RegisterConsumer`: all that this consumer holds now; whatever it thought it held beside is gone."""

    topic_id: int
    subscription_id: int
    grants: list[Grant]
    head: int
    blocked: int
    heartbeat_interval_seconds: float


class Alive(Reply, frozen=True, tag="alive"):
    """Answer to `Heartbeat`.

    ``settled``: no grant of this subscription is waiting for a handover.
    ``blocked``: how many segments wait for undrained ancestors.
    """

    head: int
    blocked: int
    settled: bool


class Done(Reply, frozen=True, tag="done"):
    """The command has been carried out and is durable."""


class SegmentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One segment as people and programs see it."""

    segment: int
    first_hash: int
    last_hash: int
    state: str
    parents: list[int]
    children: list[int]
    next_offset: int
    size_bytes: int
    created_at_ms: int
    sealed_at_ms: int | None = None


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as people and programs see it."""

    topic: str
    topic_id: int
    shard: int
    layout_epoch: int
    segments: list[SegmentDescription]
    subscriptions: list[str]


class TopicAnswer(Reply, frozen=True, tag="topic"):
    """Answer to `DescribeTopic`, and to whatever changes one."""

    topic: TopicDescription


class TopicList(Reply, frozen=True, tag="topic_list"):
    """Answer to `ListTopics`."""

    topics: list[TopicDescription]


class SegmentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one subscription is in one segment.

    ``status``: ``granted``, ``revoking``, ``waiting`` (grantable, nobody holds it), ``blocked`` or ``drained``.
    """

    segment: int
    status: str
    acknowledged_offset: int
    next_offset: int
    consumer: str | None = None
    generation: int | None = None
    blocked_by: list[int] = []


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a subscription."""

    consumer: str
    incarnation: int
    connected: bool
    segments: list[int]


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription as people and programs see it."""

    topic: str
    subscription: str
    subscription_id: int
    type: str | None
    order: str
    seek_generation: int
    consumers: list[ConsumerDescription]
    segments: list[SegmentProgress]


class SubscriptionAnswer(Reply, frozen=True, tag="subscription"):
    """Answer to `DescribeSubscription`."""

    subscription: SubscriptionDescription


class SubscriptionList(Reply, frozen=True, tag="subscription_list"):
    """Answer to `ListSubscriptions`."""

    subscriptions: list[SubscriptionDescription]


class Push(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every message that the leader sends to a consumer unasked."""

    topic: str
    subscription: str
    consumer: str
    incarnation: int
    leader_epoch: int


class AssignmentChanged(Push, frozen=True, tag="assignment"):
    """Pushed to a consumer: what it gained and must give up. Older (leader epoch, generation) are ignored."""

    granted: list[Grant] = []
    revoked: list[Revocation] = []


class ConsumerFenced(Push, frozen=True, tag="consumer_fenced"):
    """Pushed to a consumer whose name a newer incarnation has taken, or that was evicted: stop, or register again."""

    reason: str


AnyReply = (
    Committed
    | Refused
    | ProducerIdentity
    | Registered
    | Alive
    | Done
    | TopicAnswer
    | TopicList
    | SubscriptionAnswer
    | SubscriptionList
    | AssignmentChanged
    | ConsumerFenced
)


# --- announcements ----------------------------------------------------------------------------------------------------


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
