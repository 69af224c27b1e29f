"""Documents of the API as a leader would answer, a source of them, and health, for tests of the API and of the page."""

from headgate.model.entries import SubscriptionType
from headgate.model.layout import SegmentState
from headgate.views.cluster import ComponentInfo, ComponentState, SubscriptionSummary
from headgate.views.explanations import BlockingSegment, Explanation, SegmentReasons
from headgate.views.subscriptions import (
    BacklogInfo,
    BucketRangeAssignment,
    ConsumerInfo,
    HeldBucketRange,
    SegmentAssignment,
    SegmentBacklogInfo,
    SubscriptionInfo,
)
from headgate.views.topics import ExternalSource, SegmentInfo, TopicInfo
from metrics.health import HealthFacts
from metrics.status import ShardStatus
from web.api import documents
from web.api.overview import NotAnsweredError, Overview, UnknownNameError, merged

NOW_MS = 1_700_000_000_000
HOSTILE = "<script>alert(1)</script>\U0001f600&\"'"


def shard_document(shard=0, role="leading", leader_epoch=3, **fields):
    values = {"head_chunk": 8, "fault": "", "producers": 1, "in_flight_batches": 0, "queue_bytes": 0}
    return ShardStatus(shard=shard, role=role, leader_epoch=leader_epoch, **values | fields)


def daemon_document(name="one", *shards, **fields):
    values = {
        "url": f"http://{name}.example:9464",
        "state": "ready",
        "version": "1.0",
        "as_of_ms": NOW_MS,
        "components": (ComponentInfo(component="drain", state=ComponentState.OK, reason="ready"),),
        "shards": shards or (shard_document(),),
        "history": HISTORY,
    }
    return documents.DaemonDocument(daemon=name, **values | fields)


def topic_summary(topic="orders", **fields):
    values = {
        "topic_id": 1,
        "shard": 0,
        "daemon": "one",
        "external": False,
        "active_segments": 2,
        "sealed_segments": 1,
        "records": 1200,
        "size_bytes": 50_000,
        "stored_per_second": 20.0,
        "subscriptions": 1,
        "connected_consumers": 1,
        "blocked_segments": 0,
        "backlog_records": 100,
    }
    return documents.TopicSummary(topic=topic, **values | fields)


def subscription_summary(topic="orders", subscription="billing", **fields):
    values = {
        "subscription_id": 1,
        "type": SubscriptionType.STREAM,
        "daemon": "one",
        "connected_consumers": 1,
        "disconnected_consumers": 1,
        "blocked_segments": 2,
        "draining_segments": 1,
        "blocked_since_ms": NOW_MS - 90_000,
        "outlook": "shrinking",
        "backlog_records": 100,
        "oldest_ms": NOW_MS - 30_000,
        "stored_per_second": 20.0,
        "acknowledged_per_second": 25.0,
        "drained_in_seconds": 20.0,
    }
    return SubscriptionSummary(topic=topic, subscription=subscription, **values | fields)


def history(*samples):
    """Return samples of (stored, acknowledged, backlog), the last of them at `NOW_MS`."""
    return tuple(
        documents.HistorySample(
            at_ms=NOW_MS - (len(samples) - 1 - number) * 15_000,
            stored_per_second=stored,
            acknowledged_per_second=acknowledged,
            backlog_records=backlog,
        )
        for number, (stored, acknowledged, backlog) in enumerate(samples)
    )


HISTORY = history((10.0, None, 50), (20.0, 15.0, 125), (20.0, 25.0, 100))


def part(name="one", topics=(), subscriptions=(), **fields):
    return documents.DaemonPart(
        daemon=daemon_document(name, **fields), topics=tuple(topics), subscriptions=tuple(subscriptions)
    )


def segment(number, first, last, *, sealed_at_ms=None, parents=(), created_at_ms=NOW_MS - 600_000):
    return SegmentInfo(
        segment=number,
        first_hash=first,
        last_hash=last,
        state=SegmentState.ACTIVE if sealed_at_ms is None else SegmentState.SEALED,
        parents=parents,
        children=(),
        next_offset=400,
        size_bytes=40_000,
        created_at_ms=created_at_ms,
        sealed_at_ms=sealed_at_ms,
    )


SEALED_AT_MS = NOW_MS - 60_000
SEGMENTS = (
    segment(0, 0, 32767, sealed_at_ms=SEALED_AT_MS),
    segment(1, 32768, 65535),
    segment(2, 0, 16383, parents=(0,), created_at_ms=SEALED_AT_MS),
    segment(3, 16384, 32767, parents=(0,), created_at_ms=SEALED_AT_MS),
)


def topic_document(**fields):
    topic = TopicInfo(
        topic="orders",
        topic_id=1,
        shard=0,
        layout_epoch=1,
        segments=SEGMENTS,
        subscriptions=("billing",),
        external=fields.pop("external", None),
    )
    values = {
        "as_of_ms": NOW_MS,
        "daemon": "one",
        "summary": topic_summary(),
        "subscriptions": (subscription_summary(),),
        "history": HISTORY,
    }
    return documents.TopicDocument(topic=topic, **values | fields)


def assignment(number, status, **fields):
    values = {"acknowledged_offset": 300, "next_offset": 400, "unacknowledged": 100}
    return SegmentAssignment(segment=number, status=status, **values | fields)


def bucket_range(first, end, consumer, **fields):
    values = {"status": "granted", "acknowledged_offset": 350, "unacknowledged": 50, "estimated": True}
    return BucketRangeAssignment(first_bucket=first, end_bucket=end, consumer=consumer, **values | fields)


CONSUMERS = (
    ConsumerInfo(
        consumer="ada",
        incarnation=NOW_MS - 300_000,
        connected=True,
        segments=(0, 1),
        host="plant-7",
        version="1.0",
        last_heard_age_ms=3000,
        bucket_ranges=(HeldBucketRange(1, 8, 12), HeldBucketRange(1, 12, 16)),
    ),
    ConsumerInfo(
        consumer="bob",
        incarnation=NOW_MS - 200_000,
        connected=False,
        segments=(1,),
        bucket_ranges=(HeldBucketRange(1, 0, 8),),
    ),
)


WAITS = SegmentReasons(
    segment=2,
    status="blocked",
    sentences=("Segment 2 is blocked.", "Segment 0 has 100 unacknowledged records."),
    blocked_by=(BlockingSegment(segment=0, state="sealed", backlog_records=100, expected_seconds=10.0),),
)


def subscription_document(assignments=None, **fields):
    """Return a subscription whose segment 0 was split into 2 and 3, and is draining at ``ada``."""
    assignments = assignments or (
        assignment(0, "granted", consumer="ada", generation=1),
        assignment(1, "shared", bucket_ranges=(bucket_range(0, 8, "bob"), bucket_range(8, 16, "ada"))),
        assignment(2, "blocked", blocked_by=(0,)),
        assignment(3, "blocked", blocked_by=(0,)),
    )
    found = SubscriptionInfo(
        topic="orders",
        subscription="billing",
        subscription_id=2,
        type=SubscriptionType.STREAM,
        order="strict",
        seek_generation=0,
        consumers=CONSUMERS,
        segments=assignments,
    )
    backlog = BacklogInfo(
        topic="orders",
        subscription="billing",
        subscription_type=SubscriptionType.STREAM,
        counted_by="spark",
        as_of_ms=NOW_MS - 5000,
        outlook="shrinking",
        segments=(SegmentBacklogInfo(segment=0, sealed=True, records=100),),
        records=100,
    )
    values = {
        "as_of_ms": NOW_MS,
        "daemon": "one",
        "summary": subscription_summary(),
        "subscription": found,
        "backlog": backlog,
        "layout": SEGMENTS,
        "explanation": Explanation(
            topic="orders", subscription="billing", summary=("Billing.", "Next."), segments=(WAITS,), consumers=()
        ),
        "history": HISTORY,
    }
    return documents.SubscriptionDocument(**values | fields)


EXTERNAL = ExternalSource(source=HOSTILE, positions="offsets", hash_bits=16)


class FakeSource:
    """Answers from values that a test can replace."""

    def __init__(self, *parts):
        self.parts = list(parts) or [part(topics=[topic_summary()], subscriptions=[subscription_summary()])]
        self.topics = {"orders": topic_document()}
        self.subscriptions = {("orders", "billing"): subscription_document()}
        self.problem = None
        self.asked = 0

    async def overview(self) -> Overview:
        self.asked += 1
        if self.problem is not None:
            raise NotAnsweredError(self.problem)
        return merged("test", "one", NOW_MS, 1, self.parts)

    async def part(self):
        return self.parts[0]

    async def topic(self, topic, *, own):
        if topic not in self.topics:
            raise UnknownNameError(f"there is no topic {topic!r}")
        return self.topics[topic]

    async def subscription(self, topic, subscription, *, own):
        if self.problem is not None:
            raise NotAnsweredError(self.problem)
        if (topic, subscription) not in self.subscriptions:
            raise UnknownNameError(f"topic {topic!r} has no subscription {subscription!r}")
        return self.subscriptions[topic, subscription]


HEALTHY_FACTS = HealthFacts(
    tick_age_seconds=0.1,
    zookeeper="connected",
    broker_connected=True,
    drain="ready",
    drain_reason="",
    shards=4,
    shards_led=2,
)
