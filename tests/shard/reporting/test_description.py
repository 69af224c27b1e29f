"""Descriptions of a subscription in states that a coordinator passes through quickly."""

from typing import Any

import pytest

from headgate.model import entries as e
from headgate.model.entries import SubscriptionType
from headgate.model.layout import BucketRange
from shard.reporting.description import describe, idle_reasons
from shard.state.consumers import Holding, RegisteredConsumer
from shard.state.subscription import Subscription
from shard.steps import complete
from shard.subscriptions.gate import Gate, compute_gate
from tests.support.worlds.command_shard import imported_topic


def test_a_shared_segment_also_shows_the_buckets_that_no_consumer_holds() -> None:
    topic = imported_topic(e.ImportedSegment(segment=0, label="a"))
    subscription = Subscription(1, "t", 2, "s", e.SubscriptionType.STREAM, "strict")
    subscription.consumers["ada"] = RegisteredConsumer("ada", 1, "ada", supports_bucket_ranges=True)
    subscription.holdings[BucketRange(0, 2, 8)] = Holding("ada", 1)
    gate = compute_gate(topic.layout, set(), subscription.type, subscription.order)
    (segment,) = complete(describe(subscription, topic, gate)).segments

    assert [(each.first_bucket, each.end_bucket, each.consumer) for each in segment.bucket_ranges] == [
        (0, 2, None),
        (2, 8, "ada"),
        (8, 16, None),
    ]


CANNOT = {"supports_bucket_ranges": False}
WHOLE = "its client reads whole segments only, and each has a consumer"
STALLED = "it made no progress for too long, and its program has not asked for a record since"
UNSHARED = "segments of a subscription of {} are not shared, and each has a consumer"


@pytest.mark.parametrize(
    ("readable", "blocked", "about", "reason"),
    [
        (0, 2, {}, "all 2 segments are blocked"),
        (0, 1, {}, "the only segment left is blocked"),
        (0, 0, {}, "all segments are drained"),
        (2, 1, {"bob": CANNOT}, f"{WHOLE}; 1 of 3 segments are blocked"),
        (1, 0, {"bob": CANNOT}, WHOLE),
        (2, 0, {"balance": "load"}, "moving a segment to it would not even out the load"),
        (1, 0, {"balance": "load", "bob": CANNOT}, WHOLE),
        (1, 0, {"type": SubscriptionType.CHECKPOINT}, UNSHARED.format("type CHECKPOINT")),
        (1, 0, {"type": None}, UNSHARED.format("unknown type")),
        (1, 0, {"ada": CANNOT}, "the clients of the other consumers read whole segments only"),
        (1, 0, {}, "each segment is already shared by 16 consumers"),
        (1, 1, {"bob": {"stalled_at_ms": 1}}, STALLED),
        (1, 0, {"held": BucketRange(0, 0, 15)}, "a segment is moving between consumers"),
    ],
)
def test_the_first_reason_that_applies(readable: int, blocked: int, about: dict[str, Any], reason: str) -> None:
    """The first consumer holds all segments that are readable."""
    subscription = Subscription(1, "t", 2, "s", about.get("type", SubscriptionType.STREAM), "strict")
    subscription.balance = about.get("balance", "count")
    for name in ("ada", "bob"):
        known = {"supports_bucket_ranges": True} | about.get(name, {})
        subscription.consumers[name] = RegisteredConsumer(name, 1, name, **known)
    for segment in range(readable):
        subscription.holdings[about.get("held", segment)] = Holding("ada", 1)
    gate = Gate(tuple(range(readable)), {10 + each: (0,) for each in range(blocked)}, frozenset())

    assert idle_reasons(subscription, gate) == dict.fromkeys(["bob"] if readable else ["ada", "bob"], reason)
