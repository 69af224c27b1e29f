"""The largest valid message of each kind, and the state in which it costs most.

Lengths of lists follow the limits of the fields in `headgate.protocol.messages`, so a raised limit is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from bench.harness.one_leader import CLIENT
from controller.snapshots.format import decode_steps, encode_snapshot
from headgate.model import entries as e
from headgate.model.hashing import KEY_BUCKETS
from headgate.protocol import messages as m
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


@dataclass(frozen=True, slots=True)
class Case:
    """One message in one state. ``body`` is built from the state."""

    world: Callable[[], ShardState]
    body: Callable[[ShardState], m.AnyRequestBody]
    refused: bool = False
    """Whether the leader must reject it."""


def name_of(number: int) -> str:
    """Return a name of the greatest length."""
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
        ids: dict[str, Any] = {"topic_id": 1, "subscription_id": self.state.next_id}
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
    ids: dict[str, Any] = {"topic_id": 1, "subscription_id": world.state.next_id}
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
    ids: dict[str, Any] = {"topic_id": 1, "subscription_id": world.state.next_id}
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
        topic_id = world.state.next_id
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
    """Return many named producers."""
    world = _World()
    world.topic(1)
    world.apply(
        *(e.ProducerOpened(producer_id=n + 1, producer_epoch=0, token="t", name=name_of(n)) for n in range(NAMED))  # noqa: S106
    )
    return world


# Messages


def _on(subscription: str, consumer: int | None = None, incarnation: int = 1) -> dict[str, Any]:
    where: dict[str, Any] = {"topic": TOPIC, "subscription": subscription}
    return where if consumer is None else {**where, "consumer": name_of(consumer), "incarnation": incarnation}


def _tiny_records(_: ShardState) -> m.ProduceBatch:
    count = limit_of(m.ProduceBatch, "records")
    return m.ProduceBatch(topic=TOPIC, records=[m.Record(str(n).encode(), b"", 0) for n in range(count)], **PRODUCER)


def _tiny_headers(state: ShardState) -> m.ProduceBatch:
    batch = _tiny_records(state)
    half = batch.records[::2]
    headers = [m.RecordHeader(n, "a", b"") for n in range(len(half))]
    return msgspec.structs.replace(batch, records=half, headers=headers)


def _rejected_acknowledgements(_: ShardState) -> m.AcknowledgeBatch:
    count = limit_of(m.AcknowledgeBatch, "acknowledgements")
    return m.AcknowledgeBatch(
        **_on("crowd", 0), acknowledgements=[m.Acknowledgement(n % 4094, 0, 0, 1) for n in range(count)]
    )


def _shared_acknowledgements(state: ShardState) -> m.AcknowledgeBatch:
    """Every part opens a gap in a bucket that the consumer holds."""
    count = limit_of(m.AcknowledgeBatch, "acknowledgements")
    holdings = state.topics[TOPIC].subscriptions[QUEUE].holdings
    mine = [(held, each.generation) for held, each in holdings.items() if each.consumer == name_of(0)]
    parts = []
    for n in range(count):
        held, generation = mine[n % len(mine)]
        assert not isinstance(held, int), "the segments are shared"
        parts.append(m.Acknowledgement(held.segment, generation, 3 * n + 1000, 3 * n + 1001))
    return m.AcknowledgeBatch(**_on(QUEUE, 0), acknowledgements=parts)


def _failed(state: ShardState) -> m.AcknowledgeBatch:
    """As many negative acknowledgements as possible, of a bucket that the consumer holds."""
    return m.AcknowledgeBatch(
        **_on(QUEUE, 0), negative=[m.NegativeAcknowledgement(*each, 0, "r" * 200) for each in _deliveries(state)]
    )


def _deliveries(state: ShardState) -> list[tuple[int, int, int, int, int]]:
    """Return as many deliveries as possible: (segment, generation, offset, bucket, delivery)."""
    holdings = state.topics[TOPIC].subscriptions[QUEUE].holdings
    held, generation = next((held, each.generation) for held, each in holdings.items() if each.consumer == name_of(0))
    assert not isinstance(held, int), "the segments are shared"
    offsets = range(3 * RANGES + 10, 3 * RANGES + 10 + limit_of(m.BeginDeliveries, "records"))
    return [(held.segment, generation, offset, held.first_bucket, 1) for offset in offsets]


def _parked(_: ShardState) -> m.AcknowledgeBatch:
    count = limit_of(m.AcknowledgeBatch, "parked")
    acknowledgements = [m.Acknowledgement(0, 1, 0, count)]
    parked = [m.ParkedRecord(0, 1, offset, PARKED) for offset in range(count)]
    return m.AcknowledgeBatch(**_on("one", 0), acknowledgements=acknowledgements, parked=parked)


def _begun(state: ShardState) -> m.BeginDeliveries:
    return m.BeginDeliveries(**_on(QUEUE, 0), records=[m.BegunRecord(*each) for each in _deliveries(state)])


def _lost_grants(_: ShardState) -> m.Heartbeat:
    """Return a heartbeat of a consumer that has lost its grants and reports as many others as it may."""
    count = limit_of(m.Heartbeat, "held")
    return m.Heartbeat(**_on("one", 0), held=[(n, 10**9 + n) for n in range(count)])


def _register(_: ShardState, subscription: str, consumer: int, **fields: Any) -> m.RegisterConsumer:
    return m.RegisterConsumer(**_on(subscription, consumer), subscription_type=STREAM, **fields)


def _import(_: ShardState) -> m.ImportTopic:
    """As many segments as possible, with as many parents as fit into a message."""
    names = [name_of(n) for n in range(limit_of(m.ImportTopic, "segments"))]
    listed = [
        m.SegmentImport(segment=name, parents=names[max(0, n - 7) : n], end_offset=1) for n, name in enumerate(names)
    ]
    return m.ImportTopic(topic="new", token="1", segments=listed)  # noqa: S106 - no secret


def _extend(state: ShardState) -> m.ImportTopic:
    """Return the import that seals the last segment of the deepest topic and gives it a child."""
    segments = state.topics[TOPIC].layout.segments
    listed = [
        m.SegmentImport(
            segment=name_of(n), parents=[name_of(p) for p in segment.parents], end_offset=segment.end_offset or 200
        )
        for n, segment in segments.items()
    ]
    child = m.SegmentImport(segment="child", parents=[name_of(len(segments) - 1)])
    return m.ImportTopic(topic=TOPIC, token="1", segments=[*listed, child])  # noqa: S106 - no secret


def _plan(_: ShardState) -> m.PlanChanges:
    """Return a plan of splits of the first segments, merges of the next, and as many consumers as possible."""
    splits, merges = limit_of(m.PlanChanges, "splits"), limit_of(m.PlanChanges, "merges")
    first = splits
    return m.PlanChanges(
        **_on("one"),
        splits=list(range(splits)),
        merges=[(first + 2 * n, first + 2 * n + 1) for n in range(merges)],
        add_consumers=[name_of(n + 1) for n in range(limit_of(m.PlanChanges, "add_consumers"))],
    )


def _confirmed(_: ShardState) -> m.ConfirmRevoked:
    """Confirm as many revocations as possible. Each of the segments then gets another owner."""
    count = limit_of(m.ConfirmRevoked, "released")
    return m.ConfirmRevoked(**_on("moving", 0), released=[(n, n + 1) for n in range(count)])


def _positions(_: ShardState) -> m.SeekSubscription:
    """Every second segment is named, so the others are descendants of named ones."""
    named = [(n, 0) for n in range(0, MAX_SEGMENTS - 1, 2)]
    return m.SeekSubscription(**_on("one"), token="1", positions=named)  # noqa: S106 - no secret


def _new_at_positions(state: ShardState) -> m.CreateSubscription:
    """Every second segment is named, as for a seek."""
    named = [(n, 0) for n in sorted(state.topics[TOPIC].layout.segments)[::2]]
    return m.CreateSubscription(**_on("new"), subscription_type=STREAM, token="1", positions=named)  # noqa: S106


def _token(kind: Callable[..., m.AnyRequestBody], **fields: Any) -> Callable[[ShardState], m.AnyRequestBody]:
    return lambda _: kind(**{"topic": TOPIC, "token": "1", **fields})


def _asked(kind: Callable[..., m.AnyRequestBody], **fields: Any) -> Callable[[ShardState], m.AnyRequestBody]:
    return lambda _: kind(**fields)


PLAIN_BATCH: Final = Case(
    plain,
    _asked(m.ProduceBatch, topic=TOPIC, records=[m.Record(f"key-{n}".encode(), b"v" * 1000, 0) for n in range(64)]),
)
"""64 records of 1 KB."""

CASES: Final[dict[type[m.RequestBody], dict[str, Case]]] = {
    m.DescribeLeader: {"later": Case(plain, _asked(m.DescribeLeader, heard_epoch=2**31 - 1))},
    m.ProduceBatch: {
        "records": Case(wide, _tiny_records),
        "headers": Case(wide, _tiny_headers),
        "bytes": Case(
            wide, lambda _: m.ProduceBatch(topic=TOPIC, records=[m.Record(b"k", b"v" * (2**20 - 1), 0)] * 3, **PRODUCER)
        ),
    },
    m.AcknowledgeBatch: {
        "rejected": Case(wide, _rejected_acknowledgements),
        "shared": Case(shared, _shared_acknowledgements),
        "failed": Case(shared, _failed),
        "parked": Case(parked, _parked),
    },
    m.ParkKey: {
        "parked": Case(parked, _asked(m.ParkKey, **_on("one", 0), segment=0, generation=1, offset=0, key=PARKED))
    },
    m.UnparkKey: {
        "parked": Case(
            parked, _asked(m.UnparkKey, **_on("one", 0), segment=0, generation=1, key=PARKED, parking=1, last=0)
        )
    },
    m.ListParkedKeys: {"parked": Case(parked, _asked(m.ListParkedKeys, **_on("one")))},
    m.ResumeKey: {"parked": Case(parked, _token(m.ResumeKey, subscription="one", key=PARKED))},
    m.BeginDeliveries: {"shared": Case(shared, _begun)},
    m.ConfirmDeadLetters: {
        "unknown": Case(
            shared,
            lambda _: m.ConfirmDeadLetters(
                **_on(QUEUE, 0), stored=[(n, n) for n in range(limit_of(m.ConfirmDeadLetters, "stored"))]
            ),
        )
    },
    m.OpenProducer: {"new": Case(plain, _asked(m.OpenProducer, token="1", name=name_of(1), incarnation=1))},  # noqa: S106
    m.ListProducers: {"named": Case(producers, _asked(m.ListProducers))},
    m.DescribePosition: {"named": Case(producers, _asked(m.DescribePosition, producer=name_of(0), topic=TOPIC))},
    m.DescribeProducer: {"named": Case(producers, _asked(m.DescribeProducer, producer=name_of(0)))},
    m.DeleteProducer: {"named": Case(producers, _asked(m.DeleteProducer, producer=name_of(0), token="1"))},  # noqa: S106
    m.RegisterConsumer: {
        "first": Case(wide, lambda state: _register(state, "none", 0)),
        "second": Case(wide, lambda state: _register(state, "one", 1)),
        "last": Case(wide, lambda state: _register(state, name_of(0), 2)),
        "creates": Case(wide, lambda state: _register(state, "new", 0, start="latest")),
        "deep": Case(deep, lambda state: _register(state, name_of(0), 0, external=True)),
        "returns": Case(wide, lambda state: _register(state, "one", 0)),
    },
    m.Heartbeat: {"lost": Case(wide, _lost_grants), "parked": Case(parked, _asked(m.Heartbeat, **_on("one", 0)))},
    m.LeaveConsumer: {
        "wide": Case(wide, _asked(m.LeaveConsumer, **_on("one", 0))),
        "half": Case(wide, _asked(m.LeaveConsumer, **_on(name_of(0), 0))),
        "shared": Case(shared, _asked(m.LeaveConsumer, **_on(QUEUE, 0))),
    },
    m.ConfirmRevoked: {"moving": Case(moving, _confirmed)},
    m.CreateTopic: {"wide": Case(plain, _asked(m.CreateTopic, topic="new", token="1", segments=1024))},  # noqa: S106
    m.ImportTopic: {"new": Case(plain, _import), "extends": Case(deep, _extend)},
    m.DeleteTopic: {"wide": Case(wide, _token(m.DeleteTopic, force=True))},
    m.ListTopics: {"many": Case(many, _asked(m.ListTopics)), "wide": Case(wide, _asked(m.ListTopics))},
    m.DescribeTopic: {"wide": Case(wide, _asked(m.DescribeTopic, topic=TOPIC))},
    m.FindTopic: {"wide": Case(wide, _asked(m.FindTopic, topic=TOPIC))},
    m.SplitSegment: {"wide": Case(wide, _token(m.SplitSegment, segment=0))},
    m.MergeSegments: {"wide": Case(wide, _token(m.MergeSegments, segments=(0, 1)))},
    m.SetTopicPolicy: {"wide": Case(wide, _token(m.SetTopicPolicy, policy=e.TopicPolicy(max_age_ms=1)))},
    m.PruneTopic: {"sealed": Case(sealed, _token(m.PruneTopic)), "deep": Case(deep, _token(m.PruneTopic))},
    m.ListSubscriptions: {
        "wide": Case(wide, _asked(m.ListSubscriptions)),
        "many": Case(many, _asked(m.ListSubscriptions)),
    },
    m.DescribeBacklog: {"wide": Case(wide, _asked(m.DescribeBacklog)), "many": Case(many, _asked(m.DescribeBacklog))},
    m.DescribeCluster: {"wide": Case(wide, _asked(m.DescribeCluster)), "many": Case(many, _asked(m.DescribeCluster))},
    m.TransferShard: {"own": Case(plain, _asked(m.TransferShard, daemon=name_of(0), token="1"), refused=True)},  # noqa: S106
    m.RaiseLevel: {"own": Case(plain, _asked(m.RaiseLevel, level=1, token="1"))},  # noqa: S106
    m.SetShards: {"own": Case(plain, _asked(m.SetShards, shards=2, before=1, token="1"))},  # noqa: S106
    m.SetMaintenance: {"own": Case(plain, _asked(m.SetMaintenance, daemon=name_of(0), on=True, token="1"))},  # noqa: S106
    m.DescribeSubscription: {
        "wide": Case(wide, _asked(m.DescribeSubscription, **_on("crowd"))),
        "deep": Case(deep, _asked(m.DescribeSubscription, **_on("one"))),
        "shared": Case(shared, _asked(m.DescribeSubscription, **_on(QUEUE))),
    },
    m.ExplainSubscription: {
        "wide": Case(wide, _asked(m.ExplainSubscription, **_on("crowd"))),
        "deep": Case(deep, _asked(m.ExplainSubscription, **_on("one"))),
        "shared": Case(shared, _asked(m.ExplainSubscription, **_on(QUEUE))),
    },
    m.PlanChanges: {"wide": Case(wide, _plan)},
    m.CreateSubscription: {
        "wide": Case(wide, _token(m.CreateSubscription, subscription="new", subscription_type="STREAM")),
        "positions": Case(wide, _new_at_positions),
    },
    m.DeleteSubscription: {"crowd": Case(wide, _token(m.DeleteSubscription, subscription="crowd", force=True))},
    m.EvictConsumer: {"crowd": Case(wide, _token(m.EvictConsumer, subscription="crowd", consumer=name_of(0)))},
    m.SeekSubscription: {
        "wide": Case(wide, _token(m.SeekSubscription, subscription="crowd", to="earliest")),
        "deep": Case(deep, _positions),
    },
    m.SetDeliveryPolicy: {"shared": Case(shared, _token(m.SetDeliveryPolicy, subscription=QUEUE, ack_timeout_ms=1))},
    m.SetSubscriptionOrder: {"deep": Case(deep, _token(m.SetSubscriptionOrder, subscription="one", order="none"))},
}

QUERIES: Final[frozenset[type[m.RequestBody]]] = frozenset(
    {
        m.ListProducers,
        m.DescribeProducer,
        m.ListParkedKeys,
        m.ListTopics,
        m.DescribeTopic,
        m.ListSubscriptions,
        m.DescribeBacklog,
        m.DescribeCluster,
        m.DescribeSubscription,
        m.ExplainSubscription,
        m.PlanChanges,
    }
)
"""Requests that change nothing, so that several can be sent to one leader."""
