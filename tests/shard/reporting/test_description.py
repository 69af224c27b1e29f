"""Descriptions of a subscription in states that a coordinator passes through quickly."""

from headgate.model import entries as e
from headgate.model.hashing import BucketRange
from shard.reporting.description import describe
from shard.state.consumers import RegisteredConsumer
from shard.state.holdings import Holding
from shard.state.subscription import Subscription
from shard.steps import complete
from shard.subscriptions.gate import compute_gate
from tests.support.worlds.imported_topic import imported_topic


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
