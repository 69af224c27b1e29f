"""Replies and pushes: what a leader sends to clients, once the change it reports is durable."""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.entries import NO_POLICY, Placement, Positions, TopicPolicy
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.identifiers import ANONYMOUS
from headgate.protocol.backlog import SubscriptionBacklog
from headgate.protocol.cluster import ClusterOverview, SubscriptionSummaryDescription
from headgate.protocol.explanations import ChangePlan, SubscriptionExplanation

Verdict = Literal[
    "invalid",
    "forbidden",
    "quota_exceeded",
    "not_leader",
    "fenced",
    "forgotten",
    "out_of_order",
    "out_of_range",
    "other_history",
    "unavailable",
    "expired",
]


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


class Acknowledged(ReplyBody, frozen=True, tag="acknowledged"):
    """The acknowledgements are durable, except those in ``rejected``: (index in the batch, reason)."""

    rejected: list[tuple[int, str]] = []


class Rejected(ReplyBody, frozen=True, tag="rejected"):
    """The leader rejected the request. Programs act on ``verdict``; ``reason`` is for people.

    ``instance``: the daemon that rejected it. ``term_age_ms``, if ``verdict`` is ``expired``: how
    long the term has lasted, so that the client can state a deadline.
    """

    verdict: Verdict
    reason: str
    instance: str = ""
    term_age_ms: int | None = None


class LeaderReply(ReplyBody, frozen=True, tag="leader"):
    """Reply to `DescribeLeader`: what the leader of the envelope's epoch supports; see `LeaderAnnouncement`."""

    instance: str
    pipelining: bool
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
    """Reply to `DescribePosition`. ``position``: the last one committed in this topic; None: there is none."""

    topic_id: int
    position: bytes | None = None


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a named producer has read its source into one topic."""

    topic: str
    topic_id: int
    position: bytes


class ProducerDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named producer on one shard. ``last_used_at_ms``: time of its last opening or batch."""

    producer: str
    shard: int
    producer_id: int
    producer_epoch: int
    next_sequence: int
    last_used_at_ms: int
    positions: list[TopicPosition] = []


class ProducerReply(ReplyBody, frozen=True, tag="producer"):
    """Reply to `DescribeProducer`."""

    producer: ProducerDescription


class ProducerList(PageReply, frozen=True, kw_only=True, tag="producer_list"):
    """Reply to `ListProducers`."""

    producers: list[ProducerDescription]


class ExternalGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a grant that only external topics have: the segment's name at its source, and where to continue.

    ``checkpoint`` None: start at the segment's beginning, or at the grant's ``start_offset`` if
    positions are offsets.
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

    The consumer starts at ``start_offset``, which is in chunk ``start_chunk`` or later. QUEUE
    consumers skip the ``acknowledged`` ranges (first, end). ``end_offset`` is set once the segment
    is sealed.

    The buckets are ``first_bucket`` up to, not including, ``end_bucket`` of ``buckets``; 0, 0 means
    all of them. ``starts`` replaces ``start_offset`` and ``acknowledged`` for the buckets it names.
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

    ``revoke_timeout_seconds``: how long after a revocation the leader fences its segment. ``term_id``: the term that
    wrote chunk ``head``, which is the leader's.
    """

    topic_id: int
    subscription_id: int
    grants: list[Grant]
    head: int
    blocked: int
    heartbeat_interval_seconds: float
    revoke_timeout_seconds: float = 30.0
    term_id: int = 0


class HeartbeatReply(ReplyBody, frozen=True, tag="heartbeat_reply"):
    """Reply to `Heartbeat`.

    ``stable``: no handover is in progress in this subscription. ``blocked``: number of segments
    with undrained ancestors. ``term_id``: as in `Registered`. ``unread``, if it was asked for: number of
    segments with unacknowledged records that neither this nor another connected consumer reads.
    """

    head: int
    blocked: int
    stable: bool
    term_id: int = 0
    unread: int = 0


class Done(ReplyBody, frozen=True, tag="done"):
    """The command was executed and is durable."""


class SegmentDescription(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One segment of a topic."""

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
    label: str | None = None


class ExternalDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The source of an external topic, as given at its import, and how the source counts records."""

    source: str
    positions: Positions
    hash_bits: int


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    topic: str
    topic_id: int
    shard: int
    layout_epoch: int
    segments: list[SegmentDescription]
    subscriptions: list[str]
    policy: TopicPolicy = NO_POLICY
    external: ExternalDescription | None = None
    user: str = ANONYMOUS


class TopicReply(ReplyBody, frozen=True, tag="topic"):
    """Reply to `DescribeTopic` and to the commands that change a topic."""

    topic: TopicDescription


class TopicImportReply(ReplyBody, frozen=True, tag="topic_import"):
    """Reply to `ImportTopic`: the topic after the import (or as a dry run would leave it), and what changed.

    The three lists hold the source's names. ``expired_parents``: parents that the source no longer
    has.
    """

    topic: TopicDescription
    created: list[str]
    sealed: list[str]
    expired_parents: list[str] = []


class RetainedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment that was not pruned, and why."""

    segment: int
    reason: str


class Pruned(ReplyBody, frozen=True, tag="pruned"):
    """Reply to `PruneTopic`.

    ``abandoned``: subscriptions that did not prevent pruning, because they have been unused for too
    long.
    """

    segments: list[int]
    retained: list[RetainedSegment]
    abandoned: list[str] = []


class TopicList(PageReply, frozen=True, kw_only=True, tag="topic_list"):
    """Reply to `ListTopics`."""

    topics: list[TopicDescription]


class BucketRangeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one subscription in some key buckets of a shared segment.

    ``status``: ``granted``, ``revoking`` or ``waiting`` (no consumer holds these buckets).
    """

    first_bucket: int
    end_bucket: int
    status: str
    acknowledged_offset: int
    consumer: str | None = None
    generation: int | None = None
    unacknowledged: int | None = None
    estimated: bool = False


class SegmentProgress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Progress of one subscription in one segment.

    ``status``: ``granted``, ``revoking``, ``waiting`` (grantable, but no consumer holds it),
    ``shared``, ``blocked`` or ``drained``. A shared segment has no ``consumer``; its
    ``bucket_ranges`` name the consumer of each bucket. ``unacknowledged`` None: not tracked, or known
    only to the source of an external topic; ``estimated``: key buckets differ.
    """

    segment: int
    status: str
    acknowledged_offset: int
    next_offset: int
    consumer: str | None = None
    generation: int | None = None
    blocked_by: list[int] = []
    label: str | None = None
    checkpoint: str | None = None
    bucket_ranges: list[BucketRangeProgress] = []
    weight: int | None = None
    unacknowledged: int | None = None
    estimated: bool = False


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a subscription.

    ``bucket_ranges``: (segment, first bucket, end bucket) for those ``segments`` that it reads in
    part. ``idle``: why it reads nothing; empty if it reads something. ``host`` and ``version``: as it says itself.
    ``last_heard_age_ms``: since its last message, or since the term began; None while it is disconnected.
    """

    consumer: str
    incarnation: int
    connected: bool
    segments: list[int]
    bucket_ranges: list[tuple[int, int, int]] = []
    idle: str = ""
    capacity: int = 100
    host: str = ""
    version: str = ""
    registered_at_ms: int | None = None
    disconnected_at_ms: int | None = None
    last_heard_age_ms: int | None = None


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription."""

    topic: str
    subscription: str
    subscription_id: int
    type: str | None
    order: str
    seek_generation: int
    consumers: list[ConsumerDescription]
    segments: list[SegmentProgress]
    balance: str = "count"
    user: str = ANONYMOUS


class SubscriptionReply(ReplyBody, frozen=True, tag="subscription"):
    """Reply to `DescribeSubscription` and `SetSubscriptionOrder`."""

    subscription: SubscriptionDescription


class SubscriptionList(PageReply, frozen=True, kw_only=True, tag="subscription_list"):
    """Reply to `ListSubscriptions`."""

    subscriptions: list[SubscriptionDescription]


class SegmentMove(msgspec.Struct, frozen=True, kw_only=True):
    """How a seek moved a subscription in one segment. A move forward acknowledges the records it skips."""

    segment: int
    from_offset: int
    to_offset: int
    end_offset: int


class SeekReply(ReplyBody, frozen=True, tag="seek"):
    """Reply to `SeekSubscription`. Segments without a move keep their position."""

    seek_generation: int
    moves: list[SegmentMove]


class ExplanationReply(ReplyBody, frozen=True, tag="explanation"):
    """Reply to `ExplainSubscription`."""

    explanation: SubscriptionExplanation


class PlanReply(ReplyBody, frozen=True, tag="plan"):
    """Reply to `PlanChanges`."""

    plan: ChangePlan


class BacklogReply(PageReply, frozen=True, kw_only=True, tag="backlog"):
    """Reply to `DescribeBacklog`, sorted by topic and subscription; may be up to a minute old."""

    backlogs: list[SubscriptionBacklog]


class ClusterReply(PageReply, frozen=True, kw_only=True, tag="cluster"):
    """Reply to `DescribeCluster`, sorted by topic and subscription. ``overview``: only on the first page."""

    subscriptions: list[SubscriptionSummaryDescription]
    overview: ClusterOverview | None = None


class Push(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every push. ``leader_epoch`` is the term that sends it."""

    topic: str
    subscription: str
    consumer: str
    incarnation: int
    leader_epoch: int


class AssignmentChanged(Push, frozen=True, tag="assignment"):
    """Tells a consumer what it gained and what it must give up. It ignores lower epochs and generations."""

    granted: list[Grant] = []
    revoked: list[Revocation] = []


class ConsumerFenced(Push, frozen=True, tag="consumer_fenced"):
    """Tells a consumer that a newer incarnation replaced it, that it was evicted, or that its subscription was deleted.

    It stops reading and registers again. If that is rejected as ``fenced``, it stops for good.
    """

    reason: str


AnyReplyBody = (
    Committed
    | Rejected
    | LeaderReply
    | ProducerIdentity
    | SourcePosition
    | ProducerReply
    | ProducerList
    | Registered
    | Acknowledged
    | HeartbeatReply
    | Done
    | TopicReply
    | TopicImportReply
    | Pruned
    | TopicList
    | SubscriptionReply
    | SubscriptionList
    | SeekReply
    | ExplanationReply
    | PlanReply
    | BacklogReply
    | ClusterReply
)


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reply"):
    """The envelope of every reply. ``leader_epoch`` is the term of the leader that replies."""

    request_id: int
    leader_epoch: int
    body: AnyReplyBody


class MessagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="part"):
    """A part of a reply or push that is too large for one message.

    ``content`` of all ``count`` parts of message ``number`` of this term, by ``index``, is the
    encoded reply or push.
    """

    shard: int
    leader_epoch: int
    number: int
    index: int
    count: int
    content: bytes


AnyPush = AssignmentChanged | ConsumerFenced
AnyReply = Reply | AnyPush | MessagePart
