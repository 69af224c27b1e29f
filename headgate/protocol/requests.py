"""What clients send to the leader of a shard: every request, with the limits on each field.

Decoding enforces the limits, so whatever is handed on has them. A request may be lost, doubled or late: each is
harmless to repeat, by a token, a sequence, or its nature. headgate.protocol.messages gathers these with the replies;
import them from there.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headgate.errors import InvalidNameError
from headgate.model.entries import Balance, Order, Positions, SubscriptionType

Start = Literal["earliest", "latest"]
PolicyField = Literal["auto_split", "auto_merge", "min_segments", "max_segments", "retention_ms"]
MAX_CAPACITY_PERCENT = 1000
"""Ten ordinary consumers in one: more is better told by several names."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Not "$": that lets a newline follow.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
Token = Annotated[str, Meta(min_length=1, max_length=64)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SegmentCount = Annotated[int, Meta(ge=1, le=1024)]
Label = Annotated[str, Meta(pattern=r"^[!-~]{1,128}\Z")]
"""What a segment is called at the source of an external topic: printable ASCII without spaces."""
HashText = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,38})\Z")]
"""A hash of up to 128 bits as decimal text: msgpack's integers end at 64."""
Checkpoint = Annotated[str, Meta(max_length=1024)]


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


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every request.

    ``leader_epoch`` pins the reign it was meant for. A batch without one comes from a client too old to be
    safe and is rejected with a delay; other requests may leave it out.

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
    """Acknowledgements of one consumer; judged by the same table as records.

    ``checkpoints``: external topics, segment → where its next holder goes on. One counts if an acknowledgement of its
    segment in the same batch does.
    """

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    acknowledgements: Annotated[list[Acknowledgement], Meta(min_length=1, max_length=10_000)]
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0
    sequence: Natural = 0
    checkpoints: Annotated[dict[Natural, Checkpoint], Meta(max_length=4096)] = {}


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

    ``incarnation`` rises with every start of the program, so that the newer of two with one name wins. ``external``: it
    reads the topic's own source; needed for external topics and rejected for others. ``supports_bucket_ranges``: it
    can read a share of a segment, which is what `Grant` says of buckets; others get whole segments only.
    ``subscription_id``: of the subscription that it has been in already; should that be deleted, it does not begin
    another.
    """

    topic: Name
    subscription: Name
    consumer: Name
    incarnation: Natural
    subscription_type: SubscriptionType
    start: Start = "latest"
    order: Order | None = None
    external: bool = False
    supports_bucket_ranges: bool = False
    balance: Balance | None = None
    capacity: Annotated[int, Meta(ge=1, le=MAX_CAPACITY_PERCENT)] = 100
    subscription_id: Natural | None = None


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
    segments: SegmentCount = 1


class SegmentImport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment of an external topic as its source tells it; ``segment`` and ``parents`` are names of the source.

    ``hashes``: first and last, inclusive, in the source's own numbers. A sealed segment has its ``end_offset`` if
    positions are ``offsets``, and just says ``sealed`` if they are ``opaque``.
    """

    segment: Label
    parents: Annotated[list[Label], Meta(max_length=64)] = []
    hashes: tuple[HashText, HashText] | None = None
    sealed: bool = False
    end_offset: Natural | None = None


class ImportTopic(Request, frozen=True, tag="import_topic"):
    """Create an external topic, or tell what its source has become: segments that are new, and those sealed since.

    ``complete``: every segment that the source still knows is listed; False: others stay as they are.
    ``missing_parents`` ``expired``: at the first import, parents that are not listed have left the source, nothing of
    them is left to read. ``dry_run``: judge and answer, change nothing.
    """

    topic: Name
    token: Token
    segments: Annotated[list[SegmentImport], Meta(min_length=1, max_length=4096)]
    positions: Positions = "offsets"
    hash_bits: Annotated[int, Meta(ge=0, le=128)] = 0
    source: Annotated[str, Meta(max_length=256)] = ""
    complete: bool = True
    missing_parents: Literal["rejected", "expired"] = "rejected"
    dry_run: bool = False


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


class SetTopicPolicy(Request, frozen=True, tag="set_topic_policy"):
    """Change what a topic wants otherwise than the cluster's settings; None leaves a field as it is.

    ``reset`` names fields that go back to the cluster's settings.
    """

    topic: Name
    token: Token
    auto_split: bool | None = None
    auto_merge: bool | None = None
    min_segments: SegmentCount | None = None
    max_segments: SegmentCount | None = None
    retention_ms: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    reset: Annotated[list[PolicyField], Meta(max_length=16)] = []


class PruneTopic(Request, frozen=True, tag="prune_topic"):
    """Prune now what everybody has drained, whatever the retention; ``dry_run``: only say what would go."""

    topic: Name
    token: Token
    dry_run: bool = False


class ListSubscriptions(Request, frozen=True, tag="list_subscriptions"):
    """List the subscriptions of one topic, or of the whole shard."""

    topic: Name | None = None


class DescribeBacklog(Request, frozen=True, tag="describe_backlog"):
    """Ask what the subscriptions of one topic, or of the whole shard, have not acknowledged."""

    topic: Name | None = None
    subscription: Name | None = None


class DescribeSubscription(Request, frozen=True, tag="describe_subscription"):
    """Ask who reads what, what is blocked and by which ancestors."""

    topic: Name
    subscription: Name


class ExplainSubscription(Request, frozen=True, tag="explain_subscription"):
    """Ask why segments are, or are not, with somebody: one segment, one consumer, or all of the subscription."""

    topic: Name
    subscription: Name
    segment: Natural | None = None
    consumer: Name | None = None


class PlanChanges(Request, frozen=True, tag="plan_changes"):
    """Ask what would move if the layout or the consumers changed; nothing is done.

    Splits come first, then merges, then consumers that join and that leave.
    """

    topic: Name
    subscription: Name
    splits: Annotated[list[Natural], Meta(max_length=100)] = []
    merges: Annotated[list[tuple[Natural, Natural]], Meta(max_length=100)] = []
    add_consumers: Annotated[list[Name], Meta(max_length=1000)] = []
    remove_consumers: Annotated[list[Name], Meta(max_length=1000)] = []


class DeleteSubscription(Request, frozen=True, tag="delete_subscription"):
    """Delete a subscription that no consumer uses; ``force`` deletes it all the same."""

    topic: Name
    subscription: Name
    token: Token
    force: bool = False


class SeekSubscription(Request, frozen=True, tag="seek_subscription"):
    """Move a subscription, while its consumers run: ``to`` a place, or to ``positions`` as (segment, offset).

    Exactly one of the two. ``dry_run``: say what would move, and move nothing.
    """

    topic: Name
    subscription: Name
    token: Token
    to: Start | None = None
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=4096)] = []
    dry_run: bool = False


class SetSubscriptionOrder(Request, frozen=True, tag="set_subscription_order"):
    """Let children wait for their ancestors (``strict``) or not (``none``), from now on."""

    topic: Name
    subscription: Name
    order: Order
    token: Token


AnyRequest = (
    ProduceBatch
    | AcknowledgeBatch
    | OpenProducer
    | RegisterConsumer
    | Heartbeat
    | LeaveConsumer
    | ConfirmRevoked
    | CreateTopic
    | ImportTopic
    | DeleteTopic
    | ListTopics
    | DescribeTopic
    | SplitSegment
    | MergeSegments
    | SetTopicPolicy
    | PruneTopic
    | ListSubscriptions
    | DescribeBacklog
    | DescribeSubscription
    | ExplainSubscription
    | PlanChanges
    | DeleteSubscription
    | SeekSubscription
    | SetSubscriptionOrder
)
