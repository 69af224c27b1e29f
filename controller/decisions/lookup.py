"""Find the topic or subscription of a request, or refuse it with the names that exist. Pure."""

from __future__ import annotations

from controller.state.shard_state import ShardState
from controller.state.topic import Topic
from coordinator.decisions.refusal import Refusal
from coordinator.state.subscription import Subscription


def find_topic(name: str, state: ShardState) -> Topic | Refusal:
    """Return the topic, or a refusal that lists some of the existing topics."""
    topic = state.topics.get(name)
    if topic is not None:
        return topic
    known = ", ".join(sorted(state.topics)[:10])
    hint = f"; this shard has: {known}" if known else ""
    return Refusal("invalid", f"there is no topic {name!r}{hint}", after_barrier=True)


def find_subscription(topic_name: str, name: str, state: ShardState) -> tuple[Topic, Subscription] | Refusal:
    """Return the topic and the subscription, or a refusal that lists the existing names."""
    topic = find_topic(topic_name, state)
    if isinstance(topic, Refusal):
        return topic
    subscription = topic.subscriptions.get(name)
    if subscription is not None:
        return topic, subscription
    known = ", ".join(sorted(topic.subscriptions)) or "none"
    return Refusal("invalid", f"topic {topic_name!r} has no subscription {name!r}; it has: {known}", after_barrier=True)
