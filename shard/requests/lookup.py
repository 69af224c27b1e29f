"""Find the topic or subscription of a request, or refuse it. Pure.

The refusal names no others: the user may not be allowed to see them, and most are in other shards. Clients ask for
those that exist (headgate.client.unknown_names).
"""

from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.subscriptions.refusal import Refusal


def find_topic(name: str, state: ShardState) -> Topic | Refusal:
    topic = state.topics.get(name)
    return Refusal("invalid", f"there is no topic {name!r}", after_barrier=True) if topic is None else topic


def find_subscription(topic_name: str, name: str, state: ShardState) -> tuple[Topic, Subscription] | Refusal:
    topic = find_topic(topic_name, state)
    if isinstance(topic, Refusal):
        return topic
    subscription = topic.subscriptions.get(name)
    if subscription is not None:
        return topic, subscription
    return Refusal("invalid", f"topic {topic_name!r} has no subscription {name!r}", after_barrier=True)
