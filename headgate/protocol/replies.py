"""Replies and pushes: what a leader sends to clients, once the change it reports is durable."""

from typing import TYPE_CHECKING, Literal

import msgspec

from headgate.model.entries import NO_POLICY, DeliveryPolicy, Placement, Positions, TopicPolicy, union_of
from headgate.model.layout import KEY_BUCKETS
from headgate.protocol.request_fields import LedgerId, PolicyField
from headgate.views.cluster import ClusterInfo, SubscriptionSummary
from headgate.views.explanations import Explanation, Plan
from headgate.views.subscriptions import BacklogInfo, ParkedKeyInfo, SeekResult, SubscriptionInfo
from headgate.views.topics import ProducerInfo, PruneResult, TopicImportResult, TopicInfo

BatchRefusal = Literal[
    "invalid", "forbidden", "not_leader", "fenced", "forgotten", "out_of_order", "unavailable", "expired"
]
Verdict = Literal[BatchRefusal, "quota_exceeded", "out_of_range", "other_history"]


class ReplyBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base class of reply bodies."""


class PageReply(ReplyBody, frozen=True, kw_only=True):
    """Base class of replies that are one page of a list. ``next``: the cursor of the next page; None: the last one."""

    next: str | None = None


class Committed(ReplyBody, frozen=True, tag="committed"):
    """The batch is durable.

    ``placements`` None: a duplicate older than the deduplication window. ``topic_id``: the topic
    that the placements are in; None for such a duplicate. A duplicate may be of a topic that was
    deleted since; one that was created again under the name has another id.
    """

    placements: list[Placement] | None = None
    topic_id: int | None = None
    duplicate: bool = False


class Redelivery(msgspec.Struct, frozen=True, array_like=True):
    """A record that has failed: deliver it in ``delay_ms``, as delivery number ``delivery``; 0: it is dead.

    It is in chunk ``start_chunk`` or later.
    """

    offset: int
    delivery: int
    delay_ms: int
    start_chunk: int


class Acknowledged(ReplyBody, frozen=True, tag="acknowledged"):
    """The acknowledgements are durable, except those in ``rejected``: (index in the batch, reason).

    ``negative_rejected``: the same of the negative ones. ``redeliveries``: (index of a negative one, what follows).
    """

    rejected: list[tuple[int, str]] = []
    negative_rejected: list[tuple[int, str]] = []
    redeliveries: list[tuple[int, Redelivery]] = []


class DeliveriesBegun(ReplyBody, frozen=True, tag="deliveries_begun"):
    """Reply to `BeginDeliveries`. All but these have begun, which is durable.

    ``rejected``: (index, reason); do not deliver them. ``delayed``: indexes of records whose segment has too many that
    failed or were begun; ask again later.
    """

    rejected: list[tuple[int, str]] = []
    delayed: list[int] = []


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead record, to be sent to ``topic`` unless it is there. Dead records are sent in the order of ``number``.

    ``parked_number``: its number among the records of its parked key; 0: it is of a QUEUE.
    """

    number: int
    died_at_ms: int
    segment: int
    offset: int
    start_chunk: int
    deliveries: int
    reason: str
    topic: str
    parked_number: int = 0


class ResumingKey(msgspec.Struct, frozen=True, array_like=True):
    """A parked key that is being resumed. Its records up to ``number`` were processed.

    Those up to ``last`` are parked, and those up to ``stored`` are in the dead-letter ``topic``. ``parking`` rises each
    time that a key of the subscription is parked.
    """

    segment: int
    generation: int
    key: bytes
    parking: int
    topic: str
    number: int
    last: int
    stored: int


class Rejected(ReplyBody, frozen=True, tag="rejected"):
    """The leader rejected the request. Programs act on ``verdict``; ``reason`` is for people.

    ``instance``: the daemon that rejected it. ``term_age_ms``, if ``verdict`` is ``expired``: how
    long the term has lasted, so that the client can state a deadline. ``shards``, if ``verdict`` is ``invalid`` and the
    cluster has grown: all its numbers of shards. The topic may be on another shard than the client took for its own.
    """

    verdict: Verdict
    reason: str
    instance: str = ""
    term_age_ms: int | None = None
    shards: list[int] = []


class LeaderReply(ReplyBody, frozen=True, tag="leader"):
    """Reply to `DescribeLeader`: what the leader of the envelope's epoch supports; see `LeaderAnnouncement`."""

    instance: str
    window: int


class ProducerIdentity(ReplyBody, frozen=True, tag="producer_identity"):
    """Reply to `OpenProducer`.

    ``created``: the request created the producer; False: it continued one, whose previous epoch ended before sequence
    ``previous_next_sequence``. Its batches below are stored, and the others never will be.
    """

    producer_id: int
    producer_epoch: int
    created: bool = False
    previous_next_sequence: int | None = None


class SourcePosition(ReplyBody, frozen=True, tag="source_position"):
    """Reply to `DescribePosition`. ``position``: the last one committed in this topic; None: there is none.

    ``incarnation``: of the program that holds the name.
    """

    topic_id: int
    position: bytes | None = None
    incarnation: int = 0


class ProducerReply(ReplyBody, frozen=True, tag="producer"):
    """Reply to `DescribeProducer`."""

    producer: ProducerInfo


class ProducerList(PageReply, frozen=True, kw_only=True, tag="producer_list"):
    """Reply to `ListProducers`."""

    producers: list[ProducerInfo]


class ExternalGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a grant that only external topics have: the segment's name at its source, and where to continue.

    ``checkpoint`` None: start at the segment's beginning, or at the grant's ``start_offset`` if positions are offsets.
    """

    label: str
    positions: Positions
    checkpoint: str | None = None


class BucketStart(msgspec.Struct, frozen=True, array_like=True):
    """Where to start reading in buckets ``first_bucket`` up to, not including, ``end_bucket`` of a segment."""

    first_bucket: int
    end_bucket: int
    start_offset: int
    acknowledged: list[tuple[int, int]] = []


class Grant(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Permission to read one segment, or some of its key buckets.

    The consumer starts at ``start_offset``, which is in chunk ``start_chunk`` or later. QUEUE consumers skip the
    ``acknowledged`` ranges (first, end). ``end_offset`` is set once the segment is sealed.

    The buckets are ``first_bucket`` up to, not including, ``end_bucket`` of ``buckets``; 0, 0 means
    all of them. ``starts`` replaces ``start_offset`` and ``acknowledged`` for the buckets it names.
    ``failed`` (QUEUE): records of these buckets that are delivered later, and not when they are read in their turn.
    ``parked`` (STREAM): the parked keys of these buckets. Their records are not delivered.
    """

    segment: int
    generation: int
    first_hash: int
    last_hash: int
    start_offset: int
    start_chunk: int
    end_offset: int | None = None
    acknowledged: list[tuple[int, int]] = []
    external: ExternalGrant | None = None
    first_bucket: int = 0
    end_bucket: int = 0
    buckets: int = KEY_BUCKETS
    starts: list[BucketStart] = []
    failed: list[Redelivery] = []
    parked: list[bytes] = []


class Revocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Finish this segment and confirm. ``final``: the grant has ended (drained or fenced); stop without confirming.

    ``first_bucket`` and ``end_bucket`` are those of the grant.
    """

    segment: int
    generation: int
    final: bool = False
    first_bucket: int = 0
    end_bucket: int = 0


class Registered(ReplyBody, frozen=True, tag="registered"):
    """Reply to `RegisterConsumer`. ``grants`` is complete: the consumer holds nothing else.

    ``revoke_timeout_seconds``: how long after a revocation the leader fences its segment. ``lease_seconds``: how long
    after this request, or a heartbeat, no other consumer gets the segments. ``term_id``: the term that wrote chunk
    ``head``, which is the leader's. ``policy``: the delivery policy of the subscription.
    """

    topic_id: int
    subscription_id: int
    grants: list[Grant]
    head: int
    blocked: int
    heartbeat_interval_seconds: float
    revoke_timeout_seconds: float = 30.0
    lease_seconds: float = 30.0
    term_id: int = 0
    policy: DeliveryPolicy = DeliveryPolicy()


class HeartbeatReply(ReplyBody, frozen=True, tag="heartbeat_reply"):
    """Reply to `Heartbeat`.

    ``stable``: no handover is in progress in this subscription. ``blocked``: number of segments
    with undrained ancestors. ``term_id``: as in `Registered`. ``unread``, if it was asked for: number of
    segments with unacknowledged records that neither this nor another connected consumer reads.
    ``policy``: the present delivery policy. ``dead_letters``: the first ones that this consumer is to send to their
    topics. ``sender_since_ms``: the incarnation of the producer for these ones, later than any before.
    ``sender_secret``: its secret. ``resuming``: keys of this consumer's segments that are being resumed.
    ``chunk_key``, if the consumer follows: the key of the announced chunks of this term.
    """

    head: int
    blocked: int
    stable: bool
    term_id: int = 0
    unread: int = 0
    policy: DeliveryPolicy = DeliveryPolicy()
    dead_letters: list[DeadLetter] = []
    sender_since_ms: int = 0
    sender_secret: str = ""
    resuming: list[ResumingKey] = []
    chunk_key: int = 0


class Done(ReplyBody, frozen=True, tag="done"):
    """The command was executed and is durable."""


class TopicReply(ReplyBody, frozen=True, tag="topic"):
    """Reply to `DescribeTopic` and to the commands that change a topic.

    ``cluster_policy``, after `DescribeTopic`: what applies where the topic overrides nothing. ``configured``: fields of
    it that a setting of the leader's daemon gives; the others are defaults. ``pruned_ends``: (segment, offset after its
    last record) of those ``pruned`` segments of the request that are remembered.
    """

    topic: TopicInfo
    cluster_policy: TopicPolicy = NO_POLICY
    configured: list[PolicyField] = []
    pruned_ends: list[tuple[int, int]] = []


class TopicPlace(ReplyBody, frozen=True, tag="topic_place"):
    """Reply to `FindTopic`. ``topic_id`` None: this shard does not have the topic.

    It never will, if the last one of ``shards`` places the name on another shard: the ledger of this shard has the
    list. Empty: the cluster has had one number of shards.
    """

    topic_id: int | None = None
    shards: list[int] = []


class TopicImportReply(ReplyBody, frozen=True, tag="topic_import"):
    """Reply to `ImportTopic`: the topic after the import (or as a dry run would leave it), and what changed."""

    result: TopicImportResult


class PruneReply(ReplyBody, frozen=True, tag="pruned"):
    """Reply to `PruneTopic`."""

    result: PruneResult


class TopicList(PageReply, frozen=True, kw_only=True, tag="topic_list"):
    """Reply to `ListTopics`."""

    topics: list[TopicInfo]


class SubscriptionReply(ReplyBody, frozen=True, tag="subscription"):
    """Reply to `DescribeSubscription` and to the commands that create or change a subscription."""

    subscription: SubscriptionInfo


class SubscriptionList(PageReply, frozen=True, kw_only=True, tag="subscription_list"):
    """Reply to `ListSubscriptions`."""

    subscriptions: list[SubscriptionInfo]


class ParkedKeyList(PageReply, frozen=True, kw_only=True, tag="parked_key_list"):
    """Reply to `ListParkedKeys`."""

    keys: list[ParkedKeyInfo]


class SeekReply(ReplyBody, frozen=True, tag="seek"):
    """Reply to `SeekSubscription`. Segments without a move keep their position."""

    result: SeekResult


class ExplanationReply(ReplyBody, frozen=True, tag="explanation"):
    """Reply to `ExplainSubscription`."""

    explanation: Explanation


class PlanReply(ReplyBody, frozen=True, tag="plan"):
    """Reply to `PlanChanges`."""

    plan: Plan


class BacklogReply(PageReply, frozen=True, kw_only=True, tag="backlog"):
    """Reply to `DescribeBacklog`, sorted by topic and subscription; may be up to a minute old."""

    backlogs: list[BacklogInfo]


class ClusterReply(PageReply, frozen=True, kw_only=True, tag="cluster"):
    """Reply to `DescribeCluster`, sorted by topic and subscription. ``overview``: only on the first page."""

    subscriptions: list[SubscriptionSummary]
    overview: ClusterInfo | None = None


class Push(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every push. ``leader_epoch`` is the term that sends it, ``ledger_id`` its ledger."""

    topic: str
    subscription: str
    consumer: str
    incarnation: int
    leader_epoch: int
    ledger_id: LedgerId = b""


class AssignmentChanged(Push, frozen=True, tag="assignment"):
    """Tells a consumer what it gained and what it must give up. It ignores lower epochs and generations."""

    granted: list[Grant] = []
    revoked: list[Revocation] = []


class ConsumerFenced(Push, frozen=True, tag="consumer_fenced"):
    """Tells a consumer that a newer incarnation replaced it, that it was evicted, or that its subscription was deleted.

    It stops reading and registers again. If that is rejected as ``fenced``, it stops for good.
    """

    reason: str


if TYPE_CHECKING:
    AnyReplyBody = ReplyBody
else:
    AnyReplyBody = union_of(ReplyBody)


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reply", omit_defaults=True):
    """The envelope of every reply. ``leader_epoch`` is the term of the leader that replies; see `Request`."""

    request_id: int
    leader_epoch: int
    ledger_id: LedgerId = b""
    body: AnyReplyBody


class MessagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="part", omit_defaults=True):
    """A part of a reply or push that is too large for one message.

    ``content`` of all ``count`` parts of message ``number`` of this term, by ``index``, is the encoded reply or push.
    """

    shard: int
    leader_epoch: int
    ledger_id: LedgerId = b""
    number: int
    index: int
    count: int
    content: bytes


AnyPush = AssignmentChanged | ConsumerFenced
AnyReply = Reply | AnyPush | MessagePart
