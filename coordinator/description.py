"""Say what a subscription looks like from outside: grants for consumers, descriptions for people.

Values in, messages out; nothing is decided here.
"""

from __future__ import annotations

from coordinator.gate import Gate
from coordinator.subscription import Subscription
from coordinator.topic_view import TopicView
from headgate import messages as m


def grant_of(subscription: Subscription, topic: TopicView, segment: int) -> m.Grant:
    """Return the grant of a held ``segment``: reading begins at what the subscription has acknowledged."""
    start = subscription.position(segment)
    described = topic.layout.segments[segment]
    return m.Grant(
        segment=segment,
        generation=subscription.holdings[segment].generation,
        first_hash=described.first_hash,
        last_hash=described.last_hash,
        start_offset=start,
        start_chunk=topic.tails[segment].chunk_of(start),
        end_offset=described.end_offset,
        acknowledged=list(subscription.above.get(segment, [])),
    )


def describe(subscription: Subscription, topic: TopicView, gate: Gate) -> m.SubscriptionDescription:
    """Return ``subscription`` as people and programs see it."""
    return m.SubscriptionDescription(
        topic=topic.name,
        subscription=subscription.name,
        subscription_id=subscription.subscription_id,
        type=subscription.type,
        order=subscription.order,
        seek_generation=subscription.seek_generation,
        consumers=_consumers(subscription),
        segments=[_progress(subscription, topic, gate, segment) for segment in sorted(topic.layout.segments)],
    )


def _consumers(subscription: Subscription) -> list[m.ConsumerDescription]:
    segments: dict[str, list[int]] = {name: [] for name in subscription.consumers}
    for segment, holding in sorted(subscription.holdings.items()):
        segments[holding.consumer].append(segment)
    return [
        m.ConsumerDescription(
            consumer=name,
            incarnation=consumer.incarnation,
            connected=consumer.disconnected_at_ms is None,
            segments=segments[name],
        )
        for name, consumer in sorted(subscription.consumers.items())
    ]


def _progress(subscription: Subscription, topic: TopicView, gate: Gate, segment: int) -> m.SegmentProgress:
    holding = subscription.holdings.get(segment)
    if segment in gate.retired:
        status = "drained"
    elif holding is not None:
        status = "granted" if holding.revoked_at_ms is None else "revoking"
    else:
        status = "blocked" if segment in gate.blocked else "waiting"
    return m.SegmentProgress(
        segment=segment,
        status=status,
        acknowledged_offset=subscription.position(segment),
        next_offset=topic.tails[segment].next_offset,
        consumer=None if holding is None else holding.consumer,
        generation=None if holding is None else holding.generation,
        blocked_by=list(gate.blocked.get(segment, ())),
    )
