"""The largest valid message of each kind, and the state in which it costs most.

Lengths of lists follow the limits of the fields in `headgate.protocol.request_fields`, so a raised limit is measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from bench.harness.one_leader import CLIENT
from controller.snapshots.format import decode_steps, encode_snapshot
from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS
from headgate.protocol import requests
from headgate.protocol.request_fields import RequestBody
from shard.requests.topic_commands import MAX_SEGMENTS
from shard.state.shard_state import ShardState
from shard.steps import complete
from shard.subscriptions.parking import MAX_PARKED_KEYS
from shard.subscriptions.registration import MAX_CONSUMERS

STREAM, QUEUE = e.SubscriptionType.STREAM, e.SubscriptionType.QUEUE
TOPIC: Final = "bench"
CREATED_SEGMENTS: Final = 1024
"""Most segments of a new topic; those of a larger one were split."""
AT_MS: Final = 1_700_000_000_000
SUBSCRIPTIONS: Final = 40
"""Subscriptions of the widest topic."""
SHARED_SEGMENTS: Final = 64
SEALED: Final = MAX_SEGMENTS // 3
PRODUCER: Final[dict[str, Any]] = {"producer_id": 1_000_000, "sequence": 0}
"""The identity of a batch: its leader computes a digest of the content."""
NAMED: Final = 20_000
RANGES: Final = 100
"""Acknowledged ranges of each bucket of a shared segment."""
RECORDS: Final = 1_000_000
"""Records of each segment of which ranges are acknowledged."""
PARKED: Final = b"%0256d" % 0
"""A parked key, of the greatest length."""
HOLDING: Final = {"segment": 0, "generation": 1}


@dataclass(frozen=True, slots=True)
class Case:
    kind: type[RequestBody]
    name: str
    world: Callable[[], ShardState]
    fields: Mapping[str, Any] | Callable[[ShardState], Mapping[str, Any]] | None = None
    """Those of the message, or a function that makes them from the state."""
    refused: bool = False
    """Whether the leader must reject it."""

    def body(self, state: ShardState) -> Any:
        return self.kind(**(self.fields(state) if callable(self.fields) else self.fields or {}))


def name_of(number: int) -> str:
    return f"{number:0100}"


def limit_of(kind: type[msgspec.Struct], field: str) -> int:
    """Return the limit of a list or map in a request."""
    (found,) = (each.type for each in msgspec.inspect.type_info(kind).fields if each.name == field)  # type: ignore[attr-defined]
    limits = [getattr(each, "max_length", None) for each in getattr(found, "types", (found,))]
    (limit,) = (each for each in limits if each is not None)
    return int(limit)


# Worlds: built once, and copied for each message


class _World:
    def __init__(self) -> None:
        self.state = ShardState(0)
        self.apply(e.TermStarted(leader_epoch=1, instance="bench"))

    def apply(self, *entries: e.AnyEntry) -> None:
        self.state.apply_all(entries, chunk=self.state.chunk + 1, at_ms=AT_MS)

    def topic(self, segments: int) -> None:
        self.apply(e.TopicCreated(topic_id=1, topic=TOPIC, segments=segments, token="topic"))  # noqa: S106 - no secret
        self.state.topics[TOPIC].first_segments = min(segments, CREATED_SEGMENTS)

    def subscribe(
        self, name: str, kind: e.SubscriptionType, consumers: int = 0, *, slices: int = 1, position: int = 0
    ) -> None:
        """Add a subscription whose consumers hold all active segments in turn, each in ``slices`` parts."""
        topic = self.state.topics[TOPIC]
        ids: dict[str, Any] = {"topic_id": 1, "subscription_id": self.state.ids.next_id}
        order: e.Order = "strict" if kind == STREAM else "none"
        positions = dict.fromkeys(topic.layout.segments, position)
        self.apply(
            e.SubscriptionCreated(**ids, subscription=name, subscription_type=kind, order=order, positions=positions)
        )
        self.apply(
            *(
                e.ConsumerRegistered(
                    **ids, consumer=name_of(n), incarnation=1, client_id=CLIENT, supports_bucket_ranges=slices > 1
                )
                for n in range(consumers)
            )
        )
        if not consumers:
            return
        parts = [(n, s) for n, s in enumerate((s.segment_id, p) for s in topic.layout.active() for p in range(slices))]
        width = KEY_BUCKETS // slices
        self.apply(
            *(
                e.SegmentGranted(
                    **ids,
                    segment=segment,
                    consumer=name_of(n % consumers),
                    generation=n + 1,
                    first_bucket=part * width if slices > 1 else 0,
                    end_bucket=(part + 1) * width if slices > 1 else 0,
                )
                for n, (segment, part) in parts
            )
        )


def _copied(build: Callable[[], _World]) -> Callable[[], ShardState]:
    """Return a function that returns a new copy of what ``build`` returns."""

    @cache
    def encoded() -> tuple[int, bytes]:
        state = build().state
        return state.chunk, encode_snapshot(state, written_at_ms=0)

    def copy() -> ShardState:
        chunk, data = encoded()
        return complete(decode_steps(data, shard=0, chunk=chunk))

    return copy


@_copied
def plain() -> _World:
    world = _World()
    world.topic(64)
    return world


@_copied
def wide() -> _World:
    """Return the largest layout with many subscriptions, one of them with as many consumers as allowed."""
    world = _World()
    world.topic(MAX_SEGMENTS - 2)
    for number in range(SUBSCRIPTIONS):
        world.subscribe(name_of(number), STREAM, 2)
    world.subscribe("crowd", STREAM, MAX_CONSUMERS - 1)
    world.subscribe("one", STREAM, 1)
    world.subscribe("none", STREAM)
    world.apply(e.ProducerOpened(producer_id=PRODUCER["producer_id"], producer_epoch=0, token=""))
    return world


@_copied
def moving() -> _World:
    """Return the largest layout with one consumer, all of whose segments are revoked for others."""
    world = _World()
    world.topic(MAX_SEGMENTS - 2)
    ids: dict[str, Any] = {"topic_id": 1, "subscription_id": world.state.ids.next_id}
    world.subscribe("moving", STREAM, 1)
    world.apply(
        *(
            e.ConsumerRegistered(**ids, consumer=name_of(n), incarnation=1, client_id=CLIENT)
            for n in range(1, MAX_CONSUMERS)
        ),
        *(
            e.SegmentRevoked(**ids, segment=segment.segment_id, generation=n)
            for n, segment in enumerate(world.state.topics[TOPIC].layout.active(), start=1)
        ),
    )
    return world


@_copied
def deep() -> _World:
    """Return the largest external topic: each segment has the one before as its parent; the last is active."""
    world = _World()
    last = MAX_SEGMENTS - 2
    segments = [
        e.ImportedSegment(
            segment=n, label=name_of(n), parents=[n - 1] if n else [], end_offset=100 if n < last else None
        )
        for n in range(last + 1)
    ]
    world.apply(e.TopicImported(topic_id=1, topic=TOPIC, token="", segments=segments, positions="offsets"))
    for number in range(SUBSCRIPTIONS):
        world.subscribe(name_of(number), STREAM)
    ids: dict[str, Any] = {"topic_id": 1, "subscription_id": world.state.ids.next_id}
    world.subscribe("one", STREAM)
    world.apply(
        e.ConsumerRegistered(**ids, consumer=name_of(0), incarnation=1, client_id=CLIENT),
        e.SegmentGranted(**ids, segment=0, consumer=name_of(0), generation=1),
    )
    return world


@_copied
def sealed() -> _World:
    """Return a topic of which a third of the segments is sealed, and read by all subscriptions."""
    world = _World()
    world.topic(SEALED)
    for segment in range(SEALED):
        world.apply(e.SegmentSplit(topic_id=1, segment=segment, end_offset=0, token=""))
    for number in range(SUBSCRIPTIONS):
        world.subscribe(name_of(number), STREAM, 2)
    return world


@_copied
def shared() -> _World:
    """Return a queue whose segments are shared by as many consumers as possible, with gaps in every bucket."""
    world = _World()
    world.topic(SHARED_SEGMENTS)
    world.subscribe(QUEUE, QUEUE, min(MAX_CONSUMERS, SHARED_SEGMENTS * KEY_BUCKETS), slices=KEY_BUCKETS)
    count = RECORDS * SHARED_SEGMENTS
    placements = [e.Placement(segment, 0, 65535, 0, RECORDS) for segment in range(SHARED_SEGMENTS)]
    world.apply(e.RecordsStored(topic_id=1, count=count, placements=placements, size_bytes=count))
    world.apply(
        e.RecordsAcknowledged(
            topic_id=1,
            subscription_id=2,
            seek_generation=0,
            ranges=[
                e.AcknowledgedRange(segment, 3 * n + 1 + bucket % 2, 3 * n + 2 + bucket % 2, bucket, bucket + 1)
                for segment in range(SHARED_SEGMENTS)
                for bucket in range(KEY_BUCKETS)
                for n in range(RANGES)
            ],
        )
    )
    return world


@_copied
def parked() -> _World:
    """Return as many parked keys as possible, all of them being resumed."""
    world, ids = _World(), dict[str, Any](topic_id=1, subscription_id=2)
    world.topic(1)
    world.subscribe("one", STREAM, 1)
    placements = [e.Placement(0, 0, 65535, 0, RECORDS)]
    world.apply(e.RecordsStored(topic_id=1, count=RECORDS, placements=placements, size_bytes=RECORDS))
    keys = [PARKED, *(b"%0256d" % number for number in range(1, MAX_PARKED_KEYS))]
    world.apply(*(e.KeyParked(**ids, key=key, reason="r" * 200) for key in keys))
    world.apply(*(e.KeyResumed(**ids, key=key, dropped=False, token="") for key in keys))
    return world


@_copied
def many() -> _World:
    """Return many small topics, subscriptions and consumers."""
    world = _World()
    for number in range(1000):
        topic_id = world.state.ids.next_id
        ids: dict[str, Any] = {"topic_id": topic_id, "subscription_id": topic_id + 1}
        world.apply(
            e.TopicCreated(topic_id=topic_id, topic=name_of(number), segments=4, token=""),
            e.SubscriptionCreated(
                **ids,
                subscription="one",
                subscription_type=STREAM,
                order="strict",
                positions=dict.fromkeys(range(4), 0),
            ),
            *(e.ConsumerRegistered(**ids, consumer=f"c{n}", incarnation=1, client_id=CLIENT) for n in range(4)),
            *(e.SegmentGranted(**ids, segment=n, consumer=f"c{n}", generation=n + 1) for n in range(4)),
        )
    return world


@_copied
def producers() -> _World:
    world = _World()
    world.topic(1)
    world.apply(
        *(e.ProducerOpened(producer_id=n + 1, producer_epoch=0, token="t", name=name_of(n)) for n in range(NAMED))  # noqa: S106
    )
    return world


# Messages

COMMAND: Final = {"topic": TOPIC, "token": "1"}


def _on(subscription: str, consumer: int | None = None) -> dict[str, Any]:
    where: dict[str, Any] = {"topic": TOPIC, "subscription": subscription}
    return where if consumer is None else {**where, "consumer": name_of(consumer), "incarnation": 1}


def _registered(subscription: str, consumer: int, **fields: Any) -> dict[str, Any]:
    return {**_on(subscription, consumer), "subscription_type": STREAM, **fields}


def _tiny_records(_: ShardState) -> dict[str, Any]:
    count = limit_of(requests.ProduceBatch, "records")
    return {"topic": TOPIC, "records": [requests.Record(str(n).encode(), b"", 0) for n in range(count)], **PRODUCER}


def _tiny_headers(state: ShardState) -> dict[str, Any]:
    batch = _tiny_records(state)
    half = batch["records"][::2]
    return {**batch, "records": half, "headers": [requests.RecordHeader(n, "a", b"") for n in range(len(half))]}


def _rejected_acknowledgements(_: ShardState) -> dict[str, Any]:
    count = limit_of(requests.AcknowledgeBatch, "acknowledgements")
    return {**_on("crowd", 0), "acknowledgements": [requests.Acknowledgement(n % 4094, 0, 0, 1) for n in range(count)]}


def _shared_acknowledgements(state: ShardState) -> dict[str, Any]:
    """Every part opens a gap in a bucket that the consumer holds."""
    count = limit_of(requests.AcknowledgeBatch, "acknowledgements")
    holdings = state.topics[TOPIC].subscriptions[QUEUE].holdings
    mine = [(held, each.generation) for held, each in holdings.items() if each.consumer == name_of(0)]
    parts = []
    for n in range(count):
        held, generation = mine[n % len(mine)]
        assert not isinstance(held, int), "the segments are shared"
        parts.append(requests.Acknowledgement(held.segment, generation, 3 * n + 1000, 3 * n + 1001))
    return {**_on(QUEUE, 0), "acknowledgements": parts}


def _failed(state: ShardState) -> dict[str, Any]:
    """As many negative acknowledgements as possible, of a bucket that the consumer holds."""
    negative = [requests.NegativeAcknowledgement(*each, 0, "r" * 200) for each in _deliveries(state)]
    return {**_on(QUEUE, 0), "negative": negative}


def _deliveries(state: ShardState) -> list[tuple[int, int, int, int, int]]:
    """Return as many deliveries as possible: (segment, generation, offset, bucket, delivery)."""
    holdings = state.topics[TOPIC].subscriptions[QUEUE].holdings
    held, generation = next((held, each.generation) for held, each in holdings.items() if each.consumer == name_of(0))
    assert not isinstance(held, int), "the segments are shared"
    offsets = range(3 * RANGES + 10, 3 * RANGES + 10 + limit_of(requests.BeginDeliveries, "records"))
    return [(held.segment, generation, offset, held.first_bucket, 1) for offset in offsets]


def _parked(_: ShardState) -> dict[str, Any]:
    count = limit_of(requests.AcknowledgeBatch, "parked")
    parked = [requests.ParkedRecord(0, 1, offset, PARKED) for offset in range(count)]
    return {**_on("one", 0), "acknowledgements": [requests.Acknowledgement(0, 1, 0, count)], "parked": parked}


def _begun(state: ShardState) -> dict[str, Any]:
    return {**_on(QUEUE, 0), "records": [requests.BegunRecord(*each) for each in _deliveries(state)]}


def _lost_grants(_: ShardState) -> dict[str, Any]:
    """Return a heartbeat of a consumer that has lost its grants and reports as many others as it may."""
    return {**_on("one", 0), "held": [(n, 10**9 + n) for n in range(limit_of(requests.Heartbeat, "held"))]}


def _import(_: ShardState) -> dict[str, Any]:
    """As many segments as possible, with as many parents as fit into a message."""
    names = [name_of(n) for n in range(limit_of(requests.ImportTopic, "segments"))]
    listed = [
        requests.SegmentImport(segment=name, parents=names[max(0, n - 7) : n], end_offset=1)
        for n, name in enumerate(names)
    ]
    return {**COMMAND, "topic": "new", "segments": listed}


def _extend(state: ShardState) -> dict[str, Any]:
    """Return the import that seals the last segment of the deepest topic and gives it a child."""
    segments = state.topics[TOPIC].layout.segments
    listed = [
        requests.SegmentImport(
            segment=name_of(n), parents=[name_of(p) for p in segment.parents], end_offset=segment.end_offset or 200
        )
        for n, segment in segments.items()
    ]
    child = requests.SegmentImport(segment="child", parents=[name_of(len(segments) - 1)])
    return {**COMMAND, "segments": [*listed, child]}


def _plan(_: ShardState) -> dict[str, Any]:
    """Return a plan of splits of the first segments, merges of the next, and as many consumers as possible."""
    splits, merges = limit_of(requests.PlanChanges, "splits"), limit_of(requests.PlanChanges, "merges")
    return {
        **_on("one"),
        "splits": list(range(splits)),
        "merges": [(splits + 2 * n, splits + 2 * n + 1) for n in range(merges)],
        "add_consumers": [name_of(n + 1) for n in range(limit_of(requests.PlanChanges, "add_consumers"))],
    }


def _confirmed(_: ShardState) -> dict[str, Any]:
    """Confirm as many revocations as possible. Each of the segments then gets another owner."""
    return {**_on("moving", 0), "released": [(n, n + 1) for n in range(limit_of(requests.ConfirmRevoked, "released"))]}


def _dead_letters(_: ShardState) -> dict[str, Any]:
    return {**_on(QUEUE, 0), "stored": [(n, n) for n in range(limit_of(requests.ConfirmDeadLetters, "stored"))]}


def _positions(_: ShardState) -> dict[str, Any]:
    """Every second segment is named, so the others are descendants of named ones."""
    return {**COMMAND, "subscription": "one", "positions": [(n, 0) for n in range(0, MAX_SEGMENTS - 1, 2)]}


def _new_at_positions(state: ShardState) -> dict[str, Any]:
    """Every second segment is named, as for a seek."""
    named = [(n, 0) for n in sorted(state.topics[TOPIC].layout.segments)[::2]]
    return {**COMMAND, "subscription": "new", "subscription_type": STREAM, "positions": named}


PLAIN_RECORDS: Final = [requests.Record(f"key-{n}".encode(), b"v" * 1000, 0) for n in range(64)]
PLAIN_BATCH: Final = Case(requests.ProduceBatch, "plain", plain, {"topic": TOPIC, "records": PLAIN_RECORDS})
"""64 records of 1 KB."""
LARGE_RECORDS: Final = [requests.Record(b"k", b"v" * (2**20 - 1), 0)] * 3

QUERIES: Final = (
    Case(requests.ListProducers, "named", producers),
    Case(requests.DescribeProducer, "named", producers, {"producer": name_of(0)}),
    Case(requests.ListParkedKeys, "parked", parked, _on("one")),
    Case(requests.ListTopics, "many", many),
    Case(requests.ListTopics, "wide", wide),
    Case(requests.DescribeTopic, "wide", wide, {"topic": TOPIC}),
    Case(requests.ListSubscriptions, "wide", wide),
    Case(requests.ListSubscriptions, "many", many),
    Case(requests.DescribeBacklog, "wide", wide),
    Case(requests.DescribeBacklog, "many", many),
    Case(requests.DescribeCluster, "wide", wide),
    Case(requests.DescribeCluster, "many", many),
    Case(requests.DescribeSubscription, "wide", wide, _on("crowd")),
    Case(requests.DescribeSubscription, "deep", deep, _on("one")),
    Case(requests.DescribeSubscription, "shared", shared, _on(QUEUE)),
    Case(requests.ExplainSubscription, "wide", wide, _on("crowd")),
    Case(requests.ExplainSubscription, "deep", deep, _on("one")),
    Case(requests.ExplainSubscription, "shared", shared, _on(QUEUE)),
    Case(requests.PlanChanges, "wide", wide, _plan),
)
"""Requests that change nothing, so that several can be sent to one leader."""
CASES: Final = (
    *QUERIES,
    Case(requests.DescribeLeader, "later", plain, {"heard_epoch": 2**31 - 1}),
    Case(requests.ProduceBatch, "records", wide, _tiny_records),
    Case(requests.ProduceBatch, "headers", wide, _tiny_headers),
    Case(requests.ProduceBatch, "bytes", wide, {"topic": TOPIC, "records": LARGE_RECORDS, **PRODUCER}),
    Case(requests.AcknowledgeBatch, "rejected", wide, _rejected_acknowledgements),
    Case(requests.AcknowledgeBatch, "shared", shared, _shared_acknowledgements),
    Case(requests.AcknowledgeBatch, "failed", shared, _failed),
    Case(requests.AcknowledgeBatch, "parked", parked, _parked),
    Case(requests.ParkKey, "parked", parked, {**_on("one", 0), **HOLDING, "offset": 0, "key": PARKED}),
    Case(requests.UnparkKey, "parked", parked, {**_on("one", 0), **HOLDING, "key": PARKED, "parking": 1, "last": 0}),
    Case(requests.ResumeKey, "parked", parked, {**COMMAND, "subscription": "one", "key": PARKED}),
    Case(requests.BeginDeliveries, "shared", shared, _begun),
    Case(requests.ConfirmDeadLetters, "unknown", shared, _dead_letters),
    Case(requests.OpenProducer, "new", plain, {"token": "1", "name": name_of(1), "incarnation": 1}),
    Case(requests.DescribePosition, "named", producers, {"producer": name_of(0), "topic": TOPIC}),
    Case(requests.DeleteProducer, "named", producers, {"producer": name_of(0), "token": "1"}),
    Case(requests.RegisterConsumer, "first", wide, _registered("none", 0)),
    Case(requests.RegisterConsumer, "second", wide, _registered("one", 1)),
    Case(requests.RegisterConsumer, "last", wide, _registered(name_of(0), 2)),
    Case(requests.RegisterConsumer, "creates", wide, _registered("new", 0, start="latest")),
    Case(requests.RegisterConsumer, "deep", deep, _registered(name_of(0), 0, external=True)),
    Case(requests.RegisterConsumer, "returns", wide, _registered("one", 0)),
    Case(requests.Heartbeat, "lost", wide, _lost_grants),
    Case(requests.Heartbeat, "parked", parked, _on("one", 0)),
    Case(requests.LeaveConsumer, "wide", wide, _on("one", 0)),
    Case(requests.LeaveConsumer, "half", wide, _on(name_of(0), 0)),
    Case(requests.LeaveConsumer, "shared", shared, _on(QUEUE, 0)),
    Case(requests.ConfirmRevoked, "moving", moving, _confirmed),
    Case(requests.CreateTopic, "wide", plain, {**COMMAND, "topic": "new", "segments": CREATED_SEGMENTS}),
    Case(requests.ImportTopic, "new", plain, _import),
    Case(requests.ImportTopic, "extends", deep, _extend),
    Case(requests.DeleteTopic, "wide", wide, {**COMMAND, "force": True}),
    Case(requests.FindTopic, "wide", wide, {"topic": TOPIC}),
    Case(requests.SplitSegment, "wide", wide, {**COMMAND, "segment": 0}),
    Case(requests.MergeSegments, "wide", wide, {**COMMAND, "segments": (0, 1)}),
    Case(requests.SetTopicPolicy, "wide", wide, {**COMMAND, "policy": e.TopicPolicy(max_age_ms=1)}),
    Case(requests.PruneTopic, "sealed", sealed, COMMAND),
    Case(requests.PruneTopic, "deep", deep, COMMAND),
    Case(requests.TransferShard, "own", plain, {"daemon": name_of(0), "token": "1"}, refused=True),
    Case(requests.RaiseLevel, "own", plain, {"level": 1, "token": "1"}),
    Case(requests.SetShards, "own", plain, {"shards": 2, "before": 1, "token": "1"}),
    Case(requests.SetMaintenance, "own", plain, {"daemon": name_of(0), "on": True, "token": "1"}),
    Case(requests.CreateSubscription, "wide", wide, {**COMMAND, "subscription": "new", "subscription_type": "STREAM"}),
    Case(requests.CreateSubscription, "positions", wide, _new_at_positions),
    Case(requests.DeleteSubscription, "crowd", wide, {**COMMAND, "subscription": "crowd", "force": True}),
    Case(requests.EvictConsumer, "crowd", wide, {**COMMAND, "subscription": "crowd", "consumer": name_of(0)}),
    Case(requests.SeekSubscription, "wide", wide, {**COMMAND, "subscription": "crowd", "to": "earliest"}),
    Case(requests.SeekSubscription, "deep", deep, _positions),
    Case(requests.SetDeliveryPolicy, "shared", shared, {**COMMAND, "subscription": QUEUE, "ack_timeout_ms": 1}),
    Case(requests.SetSubscriptionOrder, "deep", deep, {**COMMAND, "subscription": "one", "order": "none"}),
)
