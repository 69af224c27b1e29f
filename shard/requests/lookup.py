"""Find the topic, subscription or producer of a request, or refuse it. Pure.

The refusal names no others: the user may not be allowed to see them, and most are in other shards. Clients ask for
those that exist (headgate.client.cluster_query).
"""

from typing import TypeVar

from shard.state.producers import ProducerState
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.subscriptions.refusal import RequestRefusedError, invalid

FoundT = TypeVar("FoundT")


def find_topic(name: str, state: ShardState) -> Topic:
    return _require(state.topics.get(name), f"there is no topic {name!r}")


def find_subscription(topic_name: str, name: str, state: ShardState) -> tuple[Topic, Subscription]:
    topic = find_topic(topic_name, state)
    return topic, _require(topic.subscriptions.get(name), f"topic {topic_name!r} has no subscription {name!r}")


def find_producer(name: str, state: ShardState) -> ProducerState:
    return _require(state.producers.of_name(name), f"there is no producer {name!r} on this shard")


def _require(found: FoundT | None, problem: str) -> FoundT:
    if found is None:
        raise RequestRefusedError(invalid(problem))
    return found
