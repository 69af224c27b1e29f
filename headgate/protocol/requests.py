"""Requests: what clients send to the leader of a shard.

Every request is safe to repeat: it has a token or a sequence, or repeating it has no further effect.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from headgate.model.entries import NO_POLICY, Balance, Order, Positions, SubscriptionType, TopicPolicy, union_of
from headgate.model.headers import Header, Headers
from headgate.protocol.request_fields import (
    MAX_BATCH_ACKNOWLEDGEMENTS,
    MAX_BATCH_RECORDS,
    MAX_BEGUN_RECORDS,
    MAX_CAPACITY_PERCENT,
    MAX_CONFIRMED_SEGMENTS,
    MAX_DELIVERIES,
    MAX_FAILURE_CHARACTERS,
    MAX_HELD_SEGMENTS,
    MAX_PROBLEM_CHARACTERS,
    Behind,
    Bucket,
    Checkpoint,
    Command,
    ConsumerRequest,
    DelayMs,
    DeliveryCount,
    Epoch,
    HashText,
    History,
    Label,
    LedgerId,
    ListRequest,
    Name,
    Natural,
    ParentLabel,
    ParkedKeyBytes,
    PolicyField,
    ProgramText,
    ReaderRequest,
    RequestBody,
    Secret,
    SegmentCount,
    ShardCount,
    ShardCounts,
    Start,
    SubscriptionCommand,
    SubscriptionRequest,
    Token,
    TopicCommand,
    TopicRequest,
)


class TransferShard(Command, frozen=True, tag="transfer_shard"):
    """Transfer the shard to a daemon, which has read its ledger before the present leader stops.

    The reply ``done`` is that of the new leader: the old one does not reply if the transfer succeeds. The envelope
    must have a ``leader_epoch``: a transfer ends the term that it is for, so a late copy transfers nothing.
    """

    daemon: Name


class SetShards(Command, frozen=True, tag="set_shards"):
    """Give the cluster ``shards`` in place of ``before``, if that is its number. Any leader stores it."""

    shards: ShardCount
    before: ShardCount


class SetMaintenance(Command, frozen=True, tag="set_maintenance"):
    """Begin or end the maintenance of a daemon. Any leader stores it, whatever its shard."""

    daemon: Name
    on: bool


class RaiseLevel(Command, frozen=True, tag="raise_level"):
    """Raise the feature level of the cluster, if every daemon supports ``level``. Any leader does it.

    A level that the cluster has already is ``done``, so a late copy changes nothing.
    """

    level: Annotated[int, Meta(ge=1, le=2**31 - 1)]


def _require_whole_identity(producer_id: int | None, producer_epoch: int, sequence: int | None) -> None:
    """Raise ValueError if a batch states a part of an identity: a field with a typing error would go unnoticed."""
    if (producer_id is None) != (sequence is None):
        missing, given = ("producer_id", "sequence") if producer_id is None else ("sequence", "producer_id")
        raise ValueError(f"{given} without {missing}: a batch has both, or neither if it may be stored twice")
    _require_id_of_epoch(producer_id, producer_epoch)


def _require_id_of_epoch(producer_id: int | None, producer_epoch: int) -> None:
    if producer_id is None and producer_epoch:
        raise ValueError("producer_epoch without producer_id")


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One keyed record of a batch. A surplus element has no name, so ignoring it could lose what it means."""

    key: bytes
    value: bytes
    timestamp_ms: Natural


class RecordHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One header of the record with the index ``record`` in its batch. As in a `Record`, nothing may follow."""

    record: Natural
    name: str
    value: bytes


class ProduceBatch(RequestBody, frozen=True, tag="produce", dict=True):
    """Store records of one topic. A retry carries the same records under the same sequence.

    ``producer_id`` and ``sequence``: both, or neither for a batch that may be stored twice.
    ``source_position``, of a named producer only: how far it has read its source with these records. It
    requires ``topic_id``: a position in another topic of that name would skip records. ``previous_position``: the one
    that it follows, as the leader or the batch before has said it. None: there was none, or the client does not say.
    ``headers``: those of all records, because a batch without any costs nothing then, and their number has one limit
    before any is decoded: with the records, `MAX_BATCH_RECORDS`. ``reserved_headers``: names may be headgate's own
    (`headgate.model.headers`): the records are dead letters, or copies.
    """

    topic: Name
    records: Annotated[list[Record], Meta(min_length=1, max_length=MAX_BATCH_RECORDS)]
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0
    sequence: Natural | None = None
    source_position: Annotated[bytes, Meta(max_length=1024)] | None = None
    topic_id: Natural | None = None
    previous_position: Annotated[bytes, Meta(max_length=1024)] | None = None
    headers: Annotated[list[RecordHeader], Meta(max_length=MAX_BATCH_RECORDS)] = []
    reserved_headers: bool = False

    def __post_init__(self) -> None:
        if len(self.records) + len(self.headers) > MAX_BATCH_RECORDS:
            raise ValueError(
                f"{len(self.records)} records and {len(self.headers)} headers: a batch has at most {MAX_BATCH_RECORDS} "
                "of both together"
            )
        if self.source_position is not None and self.producer_id is None:
            raise ValueError("source_position without producer_id: it belongs to a producer with a name")
        if self.source_position is not None and self.topic_id is None:
            raise ValueError("source_position without topic_id: ask for the position in the topic first")
        _require_whole_identity(self.producer_id, self.producer_epoch, self.sequence)

    @cached_property
    def headers_by_record(self) -> dict[int, Headers]:
        """Index of a record → its headers, of the records that have any."""
        found: dict[int, list[Header]] = {}
        for header in self.headers:
            found.setdefault(header.record, []).append((header.name, header.value))
        return {record: tuple(headers) for record, headers in found.items()}


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Acknowledge records ``first_offset`` up to, not including, ``end_offset``.

    STREAM acknowledgements are cumulative: the leader ignores their ``first_offset``. QUEUE: ``delivery``
    is the delivery count of all these records. Surplus elements are refused, as in a `Record`.
    """

    segment: Natural
    generation: Natural
    first_offset: Natural
    end_offset: Natural
    delivery: DeliveryCount = 1


class BegunRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Delivery number ``delivery`` of a record in key bucket ``bucket``."""

    segment: Natural
    generation: Natural
    offset: Natural
    bucket: Bucket
    delivery: DeliveryCount


class NegativeAcknowledgement(BegunRecord, frozen=True):
    """QUEUE: this delivery has failed. Deliver the record again, after ``delay_ms`` at the earliest.

    ``reason`` is for people.
    """

    delay_ms: DelayMs = 0
    reason: Annotated[str, Meta(max_length=MAX_FAILURE_CHARACTERS)] = ""


class ParkedRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """STREAM: a record of a parked key. It counts if an acknowledgement of the same batch that covers it does."""

    segment: Natural
    generation: Natural
    offset: Natural
    key: ParkedKeyBytes


class ResumedKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """STREAM: the parked records of ``key`` up to ``number`` were processed.

    It counts if an acknowledgement of the same holding in the same batch does.
    """

    segment: Natural
    generation: Natural
    key: ParkedKeyBytes
    number: Natural


class AcknowledgeBatch(ReaderRequest, frozen=True, tag="acknowledge"):
    """Acknowledgements of one consumer. Repeating them has no further effect, so they need no producer identity.

    ``checkpoints``, for external topics: segment → where its next holder continues. A checkpoint
    counts only if an acknowledgement of its segment in the same batch counts. ``number`` rises with
    each batch of the program: a late copy of a batch does not replace the checkpoint of a later one.
    ``negative``: QUEUE, records to be delivered again. ``parked``, ``resumed``: STREAM, what becomes of parked keys.
    """

    acknowledgements: Annotated[list[Acknowledgement], Meta(max_length=MAX_BATCH_ACKNOWLEDGEMENTS)] = []
    negative: Annotated[list[NegativeAcknowledgement], Meta(max_length=MAX_BATCH_ACKNOWLEDGEMENTS)] = []
    checkpoints: Annotated[dict[Natural, Checkpoint], Meta(max_length=MAX_BATCH_ACKNOWLEDGEMENTS)] = {}
    number: Natural = 0
    parked: Annotated[list[ParkedRecord], Meta(max_length=MAX_BATCH_ACKNOWLEDGEMENTS)] = []
    resumed: Annotated[list[ResumedKey], Meta(max_length=MAX_BATCH_ACKNOWLEDGEMENTS)] = []


class ParkKey(ReaderRequest, frozen=True, tag="park_key"):
    """STREAM: park the key of a record that this consumer has and has not acknowledged.

    ``number``: that of a parked record which is delivered again, and ``parking`` as the leader named it then; 0: the
    record at ``offset`` of the segment. The reply comes once the key is parked for every later holder, or this consumer
    holds it no more. Repeating it has no effect.
    """

    segment: Natural
    generation: Natural
    offset: Natural
    key: ParkedKeyBytes
    number: Natural = 0
    parking: Natural = 0
    reason: Annotated[str, Meta(max_length=MAX_FAILURE_CHARACTERS)] = ""


class UnparkKey(ReaderRequest, frozen=True, tag="unpark_key"):
    """STREAM: the parked records of a resumed key were processed, up to number ``last``. This consumer parks no more.

    ``parking``: as the leader named it. Repeating the request has no further effect.
    """

    segment: Natural
    generation: Natural
    key: ParkedKeyBytes
    parking: Natural
    last: Natural


class BeginDeliveries(ReaderRequest, frozen=True, tag="begin_deliveries"):
    """QUEUE with a delivery policy: these records are about to be handed to the program.

    The consumer hands over those that are accepted, after the reply. If the consumer is lost, the deliveries count as
    failed. Repeating the request has no further effect.
    """

    records: Annotated[list[BegunRecord], Meta(min_length=1, max_length=MAX_BEGUN_RECORDS)]


class ConfirmDeadLetters(ReaderRequest, frozen=True, tag="confirm_dead_letters"):
    """Dead records are stored in their dead-letter topic, so they are acknowledged.

    ``stored``: (number, time of death in milliseconds) of each.
    """

    stored: Annotated[list[tuple[Natural, Natural]], Meta(min_length=1, max_length=MAX_BEGUN_RECORDS)]


class OpenProducer(RequestBody, frozen=True, tag="open_producer"):
    """Request a producer identity, or the next epoch of (``producer_id``, ``producer_epoch``) or of ``name``.

    The same ``token`` gets the same reply until the identity is used, so a lost reply is harmless.
    ``incarnation``, required with a name: it rises with each start of the program. The highest one
    holds the name; a lower one is fenced, and one that held the name when it was deleted is forgotten.
    ``secret``: opens a name that ends with its digest (`shared_name`) also if another user holds it.
    ``accept_new``: if the shard no longer knows ``producer_id``, open a new identity instead of
    rejecting the request as ``forgotten``. What was sent under the old one is unknown then.
    """

    token: Token
    name: Name | None = None
    incarnation: Natural | None = None
    producer_id: Natural | None = None
    producer_epoch: Epoch = 0
    accept_new: bool = False
    secret: Secret = ""

    def __post_init__(self) -> None:
        _require_id_of_epoch(self.producer_id, self.producer_epoch)
        if (self.name is None) != (self.incarnation is None):
            raise ValueError("name and incarnation: both, or neither for an anonymous producer")


class DescribePosition(RequestBody, frozen=True, tag="describe_position"):
    """Ask how far a named producer has read its source into one topic. Open the name first: then it does not change.

    ``incarnation``: once the name has reached it, the reply waits for nothing, and the position may be an older one.
    """

    producer: Name
    topic: Name
    incarnation: Natural | None = None


class ListProducers(ListRequest, frozen=True, tag="list_producers"):
    """List the named producers of one shard by name."""


class DescribeProducer(RequestBody, frozen=True, tag="describe_producer"):
    """Describe a named producer of one shard."""

    producer: Name


class DeleteProducer(Command, frozen=True, tag="delete_producer"):
    """Delete a named producer of one shard, with its source positions. Its sender is shut out.

    ``producer_id``: of the one that was seen, and no other is deleted.
    """

    producer: Name
    producer_id: Natural | None = None


class RegisterConsumer(ReaderRequest, frozen=True, tag="register"):
    """Join a subscription, or return to it. Creates the subscription if it does not exist.

    ``incarnation`` rises with each start of the program; the higher incarnation keeps the consumer name. ``external``:
    the consumer reads the topic's own source; required for external topics, rejected for others.
    ``supports_bucket_ranges``: the consumer can read some key buckets of a segment (see `Grant`); other consumers get
    whole segments only. ``subscription_id``: the subscription this program joined before. If that one has been deleted,
    the registration is rejected and creates nothing. ``positions``, CHECKPOINT only: the (segment, next offset) pairs
    at which the consumer will read; one that the topic does not have is rejected as ``out_of_range``. So are positions
    of another topic than ``positions_topic_id``. ``behind``: whether positions in pruned segments are rejected, or
    passed over. ``host``, ``version``: where the program runs, and the version of its library, as it says; only shown.
    """

    subscription_type: SubscriptionType
    start: Start = "latest"
    order: Order | None = None
    external: bool = False
    supports_bucket_ranges: bool = False
    balance: Balance | None = None
    capacity: Annotated[int, Meta(ge=1, le=MAX_CAPACITY_PERCENT)] = 100
    subscription_id: Natural | None = None
    host: ProgramText = ""
    version: ProgramText = ""
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=MAX_HELD_SEGMENTS)] = []
    positions_topic_id: Natural | None = None
    behind: Behind = "error"

    def __post_init__(self) -> None:
        if self.positions and self.subscription_type != SubscriptionType.CHECKPOINT:
            raise ValueError("positions: only for type CHECKPOINT; the leader stores those of other types")


class Heartbeat(ReaderRequest, frozen=True, tag="heartbeat"):
    """Report that a consumer is alive.

    ``held``: every (segment, generation) that the consumer reads or finishes. The leader repeats the pushes that were
    lost: missing grants, unconfirmed revocations, and final revocations of segments that the consumer no longer holds.
    ``asks_unread``: count what nothing reads. ``dead_letter_problem``: why it could not send dead records to their
    topic; empty: it could, or had none. ``ready``: the program has asked for a record since the last heartbeat, so it
    can be given segments again. ``unhandled``, external topics: (segment, generation, arrival) of held segments: when
    the oldest record arrived at the source that is not handled; None: there is none. ``follows``: it has read to the
    end of the shard, and takes announced chunks.
    """

    held: Annotated[list[tuple[Natural, Natural]], Meta(max_length=MAX_HELD_SEGMENTS)] | None = None
    asks_unread: bool = False
    dead_letter_problem: Annotated[str, Meta(max_length=MAX_PROBLEM_CHARACTERS)] = ""
    ready: bool = False
    unhandled: Annotated[list[tuple[Natural, Natural, Natural | None]], Meta(max_length=MAX_HELD_SEGMENTS)] = []
    follows: bool = False


class LeaveConsumer(ConsumerRequest, frozen=True, tag="leave"):
    """Leave the subscription and release all held segments.

    ``failed``: the program ended with an error, so the deliveries that it had begun have failed.
    """

    failed: bool = False


class ConfirmRevoked(ConsumerRequest, frozen=True, tag="confirm_revoked"):
    """Confirm revocations: every delivered record of the segments is acknowledged or given up.

    ``released``: (segment, generation) of each.
    """

    released: Annotated[list[tuple[Natural, Natural]], Meta(min_length=1, max_length=MAX_CONFIRMED_SEGMENTS)]


class CreateTopic(TopicRequest, frozen=True, tag="create_topic"):
    """Create a topic of ``segments`` equal segments.

    ``shards``: all numbers of shards that the client knows, rising. By these, it has asked every other shard that can
    have the topic (`FindTopic`). A leader that knows more of them, or fewer, creates nothing.
    """

    token: Token
    segments: SegmentCount = 1
    shards: ShardCounts = []


class SegmentImport(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One segment of an external topic. ``segment`` and ``parents`` are the source's names.

    ``hashes``: first and last hash, inclusive, in the source's own numbers. A sealed segment has an
    ``end_offset`` if positions are ``offsets``, and has ``sealed`` set if they are ``opaque``.
    """

    segment: Label
    parents: Annotated[list[ParentLabel], Meta(max_length=64)] = []
    hashes: tuple[HashText, HashText] | None = None
    sealed: bool = False
    end_offset: Natural | None = None


class ImportTopic(TopicCommand, frozen=True, tag="import_topic"):
    """Create an external topic, or update it: add new segments and seal others.

    ``complete``: every segment that the source still has is listed; False: unlisted segments stay as they are.
    ``missing_parents`` ``expired``: unlisted parents have left the source together with all their records. ``dry_run``:
    validate and reply, but change nothing. ``shards``: see `CreateTopic`; an update needs none.
    """

    segments: Annotated[list[SegmentImport], Meta(min_length=1, max_length=4096)]
    positions: Positions = "offsets"
    hash_bits: Annotated[int, Meta(ge=0, le=128)] = 0
    source: Annotated[str, Meta(max_length=256)] = ""
    complete: bool = True
    missing_parents: Literal["rejected", "expired"] = "rejected"
    dry_run: bool = False
    shards: ShardCounts = []


class DeleteTopic(TopicCommand, frozen=True, tag="delete_topic"):
    """Delete a topic. ``force`` is required while consumers use it."""

    force: bool = False


class ListTopics(ListRequest, frozen=True, tag="list_topics"):
    """List the topics of one shard."""


class DescribeLeader(RequestBody, frozen=True, tag="describe_leader"):
    """Ask who leads the shard. The request is for every term: its envelope has no ``leader_epoch``.

    ``heard_epoch``: the highest epoch that the client has heard of, for example from an announcement, which any program
    may have forged. A leader of a lower epoch replies after a barrier, which proves that this term had not begun.
    """

    heard_epoch: Epoch = 0


class DescribeTopic(TopicRequest, frozen=True, tag="describe_topic"):
    """Describe a topic and its layout, and where segments ended that were ``pruned``."""

    pruned: Annotated[list[Natural], Meta(max_length=MAX_HELD_SEGMENTS)] = []


class FindTopic(TopicRequest, frozen=True, tag="find_topic"):
    """Ask whether this shard has a topic: in a cluster that has grown, more than one shard can have it."""


class SplitSegment(TopicCommand, frozen=True, tag="split_segment"):
    """Split an active segment at the middle of its range."""

    segment: Natural


class MergeSegments(TopicCommand, frozen=True, tag="merge_segments"):
    """Merge two active segments with adjacent ranges."""

    segments: tuple[Natural, Natural]


class SetTopicPolicy(TopicCommand, frozen=True, tag="set_topic_policy"):
    """Override cluster settings for one topic. None leaves a field as it is; ``reset`` removes overrides."""

    policy: TopicPolicy = NO_POLICY
    reset: Annotated[list[PolicyField], Meta(max_length=16)] = []


class PruneTopic(TopicCommand, frozen=True, tag="prune_topic"):
    """Prune every drained segment now, despite retention. ``dry_run``: only report them. ``shown``: refuse others."""

    dry_run: bool = False
    shown: Annotated[tuple[Natural, ...], Meta(max_length=MAX_HELD_SEGMENTS)] | None = None


class ListSubscriptions(ListRequest, frozen=True, tag="list_subscriptions"):
    """List the subscriptions of one topic, or of the whole shard."""

    topic: Name | None = None


class DescribeBacklog(ListRequest, frozen=True, tag="describe_backlog"):
    """Report the unacknowledged records of one subscription, of one topic, or of the whole shard."""

    topic: Name | None = None
    subscription: Name | None = None


class DescribeSubscription(SubscriptionRequest, frozen=True, tag="describe_subscription"):
    """Describe who reads which segment, and which ancestors block the others."""


class ExplainSubscription(SubscriptionRequest, frozen=True, tag="explain_subscription"):
    """Explain the assignment of one segment, of one consumer, or of the whole subscription."""

    segment: Natural | None = None
    consumer: Name | None = None


class PlanChanges(SubscriptionRequest, frozen=True, tag="plan_changes"):
    """Report which segments would move if the layout or the consumers changed. Changes nothing.

    Applied in this order: splits, merges, added consumers, removed consumers.
    """

    splits: Annotated[list[Natural], Meta(max_length=100)] = []
    merges: Annotated[list[tuple[Natural, Natural]], Meta(max_length=100)] = []
    add_consumers: Annotated[list[Name], Meta(max_length=1000)] = []
    remove_consumers: Annotated[list[Name], Meta(max_length=1000)] = []


class CreateSubscription(SubscriptionRequest, frozen=True, tag="create_subscription"):
    """Create a subscription before its first consumer registers.

    It starts at ``start``, or at ``positions``, (segment, offset) pairs: the first record of any other
    segment. ``if_absent``: one that exists and has this type is no error, and stays as it is. ``topic_id``: of the
    topic that it is for, and that the positions are of.
    """

    subscription_type: SubscriptionType
    token: Token
    start: Start = "latest"
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=4096)] = []
    if_absent: bool = False
    topic_id: Natural | None = None


class DeleteSubscription(SubscriptionCommand, frozen=True, tag="delete_subscription"):
    """Delete a subscription. ``force`` is required while it has consumers."""

    force: bool = False


class EvictConsumer(SubscriptionCommand, frozen=True, tag="evict_consumer"):
    """Remove a consumer as if its grace period had ended. The running program must not register again.

    ``consumer_incarnation``: of the program that was seen; no later one is removed.
    """

    consumer: Name
    consumer_incarnation: Natural | None = None


class SeekSubscription(SubscriptionCommand, frozen=True, tag="seek_subscription"):
    """Move a subscription while its consumers run.

    Give exactly one of ``to`` and ``positions``, which holds (segment, offset) pairs. ``dry_run``:
    report the moves and change nothing. ``history``: as in `ReaderRequest`, what the positions were taken from, and
    ``topic_id``: of the topic that they are of.
    """

    to: Start | None = None
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=4096)] = []
    dry_run: bool = False
    history: History = []


class SetSubscriptionOrder(SubscriptionCommand, frozen=True, tag="set_subscription_order"):
    """Make children wait for their ancestors (``strict``) or not (``none``), from now on."""

    order: Order


class SetDeliveryPolicy(SubscriptionCommand, frozen=True, tag="set_delivery_policy"):
    """Change what happens to records that a subscription has not acknowledged. None leaves a field as it is.

    ``max_deliveries`` 0, ``ack_timeout_ms`` 0 and an empty ``dead_letter_topic`` switch each of them off; the first two
    are for a QUEUE. ``max_deliveries`` requires a dead-letter topic. ``max_processing_ms`` 0: no limit. A CHECKPOINT
    subscription has only ``ignored_by_retention``.
    """

    max_deliveries: Annotated[int, Meta(ge=0, le=MAX_DELIVERIES)] | None = None
    ack_timeout_ms: DelayMs | None = None
    dead_letter_topic: Annotated[str, Meta(max_length=100)] | None = None
    max_processing_ms: DelayMs | None = None
    ignored_by_retention: bool | None = None


class ListParkedKeys(ListRequest, frozen=True, tag="list_parked_keys"):
    """List the parked keys of a STREAM, in the order in which they were parked; or one of them."""

    topic: Name
    subscription: Name
    key: ParkedKeyBytes | None = None


class ResumeKey(SubscriptionCommand, frozen=True, tag="resume_key"):
    """Deliver the records of a parked key in order, before newer ones. ``drop``: without those that are parked now.

    ``parking``: number of the parking that was seen, and no other one is ended.
    """

    key: ParkedKeyBytes
    drop: bool = False
    parking: Natural | None = None


class DescribeCluster(ListRequest, frozen=True, tag="describe_cluster"):
    """Describe the whole cluster, with its subscriptions in pages. Any leader answers, whatever its shard.

    ``blocked``: only subscriptions that have blocked segments.
    """

    blocked: bool = False


if TYPE_CHECKING:
    AnyRequestBody = RequestBody
else:
    AnyRequestBody = union_of(RequestBody)


def is_command(body: RequestBody) -> bool:
    """Return whether a client sends ``body`` with a deadline: it asks for a change, which its token identifies.

    A producer is opened without one: what an opening leaves behind is forgotten.
    """
    return isinstance(body, Command | CreateTopic | TopicCommand | CreateSubscription | SubscriptionCommand)


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The envelope of every request.

    ``leader_epoch``: the term this request is for. Batches must carry it, because their order cannot
    be kept without it. Other requests may leave it out.

    ``max_term_age_ms``: the deadline, by the clock of that term: once the term has lasted this long,
    the leader refuses the request as ``expired``. None: no deadline.

    ``protocol``: clients of version 1 leave it out. A leader rejects every other version than its
    own, with one line that names both.

    ``ledger_id``: the ledger that it is for. The leaders of another cluster of the same name leave it alone.
    """

    request_id: Natural
    client_id: Name
    leader_epoch: Epoch | None = None
    max_term_age_ms: Natural | None = None
    protocol: Epoch
    ledger_id: LedgerId = b""
    body: AnyRequestBody
