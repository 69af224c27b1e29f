"""What the leader of a shard sends to clients: replies to requests, and what it pushes unasked.

None leaves before what it says is durable. headgate.protocol.messages gathers these with the requests; import from
there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.entries import NO_POLICY, Placement, Positions, TopicPolicy
from headgate.model.hashing import KEY_BUCKETS
from headgate.protocol.backlog import SubscriptionBacklog
from headgate.protocol.explanations import ChangePlan, SubscriptionExplanation

Verdict = Literal["invalid", "not_leader", "fenced", "out_of_order", "unavailable"]


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every reply."""

    request_id: int
    leader_epoch: int


class Committed(Reply, frozen=True, tag="committed"):
    """The batch is durable.

    ``placements`` None: acknowledgements, or records stored so long ago that nobody remembers where.
    ``rejected``: acknowledgements of the batch that do not count, as (segment, reason); the others do.
    """

    placements: list[Placement] | None = None
    duplicate: bool = False
    rejected: list[tuple[int, str]] = []


class Rejected(Reply, frozen=True, tag="rejected"):
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


class ExternalGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a grant of an external topic says beside: the segment's name at its source, and where to go on there.

    ``checkpoint`` None: from the segment's beginning, or from the grant's ``start_offset`` where offsets count.
    """

    label: str
    positions: Positions
    checkpoint: str | None = None


class BucketStart(msgspec.Struct, frozen=True, array_like=True):
    """Where reading begins in the buckets ``first_bucket`` up to, not including, ``end_bucket`` of a segment."""

    first_bucket: int
    end_bucket: int
    start_offset: int
    acknowledged: list[tuple[int, int]] = []


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Permission to read one segment, or the keys of some of its buckets.

    Reading starts at ``start_offset``, which stands in chunk ``start_chunk`` or later; QUEUE consumers skip the
    ``acknowledged`` ranges (first, end). ``end_offset`` is known when the segment is sealed.

    The buckets are ``first_bucket`` up to, not including, ``end_bucket`` of ``buckets``; 0, 0 means all of them.
    ``starts`` takes the place of ``start_offset`` and ``acknowledged`` in the buckets that it names.
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
    """Finish this segment and confirm. ``final``: it has been taken already (drained, or fenced); just stop.

    ``first_bucket`` and ``end_bucket`` are those of its grant.
    """

    segment: int
    generation: int
    final: bool = False
    first_bucket: int = 0
    end_bucket: int = 0


class Registered(Reply, frozen=True, tag="registered"):
    """Answer to `RegisterConsumer`: all that this consumer holds now; whatever it thought it held beside is gone."""

    topic_id: int
    subscription_id: int
    grants: list[Grant]
    head: int
    blocked: int
    heartbeat_interval_seconds: float


class HeartbeatReply(Reply, frozen=True, tag="heartbeat_reply"):
    """Answer to `Heartbeat`.

    ``stable``: no grant of this subscription is waiting for a handover.
    ``blocked``: how many segments wait for undrained ancestors.
    """

    head: int
    blocked: int
    stable: bool


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
    label: str | None = None


class ExternalDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Where an external topic's records stand, as far as whoever imported it has said, and how it counts."""

    source: str
    positions: Positions
    hash_bits: int


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as people and programs see it."""

    topic: str
    topic_id: int
    shard: int
    layout_epoch: int
    segments: list[SegmentDescription]
    subscriptions: list[str]
    policy: TopicPolicy = NO_POLICY
    external: ExternalDescription | None = None


class TopicReply(Reply, frozen=True, tag="topic"):
    """Answer to `DescribeTopic`, and to whatever changes one."""

    topic: TopicDescription


class TopicImportReply(Reply, frozen=True, tag="topic_import"):
    """Answer to `ImportTopic`: the topic as it is now, or would be after a dry run, and what that changed.

    All three are the source's names. ``expired_parents``: parents that the source does not have any more.
    """

    topic: TopicDescription
    created: list[str]
    sealed: list[str]
    expired_parents: list[str] = []


class RetainedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment that stays, and why."""

    segment: int
    reason: str


class Pruned(Reply, frozen=True, tag="pruned"):
    """Answer to `PruneTopic`.

    ``abandoned``: subscriptions that were not asked, because nobody has used them for too long.
    """

    segments: list[int]
    retained: list[RetainedSegment]
    abandoned: list[str] = []


class TopicList(Reply, frozen=True, tag="topic_list"):
    """Answer to `ListTopics`."""

    topics: list[TopicDescription]


class BucketRangeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one subscription is in some key buckets of a segment that consumers share.

    ``status``: ``granted``, ``revoking`` or ``waiting`` (nobody holds these buckets).
    """

    first_bucket: int
    end_bucket: int
    status: str
    acknowledged_offset: int
    consumer: str | None = None
    generation: int | None = None


class SegmentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one subscription is in one segment.

    ``status``: ``granted``, ``revoking``, ``waiting`` (grantable, nobody holds it), ``shared``, ``blocked`` or
    ``drained``. A shared one has no ``consumer`` of its own: ``bucket_ranges`` tells who reads which buckets.
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


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a subscription.

    ``bucket_ranges``: (segment, first bucket, end bucket) of those of its ``segments`` of which it reads a part.
    ``idle``: why it reads nothing; empty if it reads something.
    """

    consumer: str
    incarnation: int
    connected: bool
    segments: list[int]
    bucket_ranges: list[tuple[int, int, int]] = []
    idle: str = ""
    capacity: int = 100


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
    balance: str = "count"


class SubscriptionReply(Reply, frozen=True, tag="subscription"):
    """Answer to `DescribeSubscription`."""

    subscription: SubscriptionDescription


class SubscriptionList(Reply, frozen=True, tag="subscription_list"):
    """Answer to `ListSubscriptions`."""

    subscriptions: list[SubscriptionDescription]


class SegmentMove(msgspec.Struct, frozen=True, kw_only=True):
    """Where a seek took a subscription in one segment; forward, what lies between counts as acknowledged."""

    segment: int
    from_offset: int
    to_offset: int
    end_offset: int


class SeekReply(Reply, frozen=True, tag="seek"):
    """Answer to `SeekSubscription`; segments that are not among the ``moves`` stay where they are."""

    seek_generation: int
    moves: list[SegmentMove]


class ExplanationReply(Reply, frozen=True, tag="explanation"):
    """Answer to `ExplainSubscription`."""

    explanation: SubscriptionExplanation


class PlanReply(Reply, frozen=True, tag="plan"):
    """Answer to `PlanChanges`."""

    plan: ChangePlan


class BacklogReply(Reply, frozen=True, tag="backlog"):
    """Answer to `DescribeBacklog`: by topic and subscription, as of now or a little before."""

    backlogs: list[SubscriptionBacklog]


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
    """Pushed to a consumer that was replaced by a newer incarnation or evicted, or whose subscription was deleted.

    It stops reading and registers again; the answer says whether for good.
    """

    reason: str


AnyReply = (
    Committed
    | Rejected
    | ProducerIdentity
    | Registered
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
    | AssignmentChanged
    | ConsumerFenced
)
