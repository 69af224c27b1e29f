"""Say which topic or subscription was probably meant by a name that does not exist.

A topic's name selects its shard, so only the lists of all shards have the near names: the leader that refuses a request
names none. A user who may not list what exists gets the leader's words.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Protocol

from headgate.errors import HeadgateError, RequestRejectedError
from headgate.model.text import listed
from headgate.protocol.requests import AnyRequestBody, CreateSubscription, CreateTopic, ImportTopic, RegisterConsumer
from headgate.views.subscriptions import SubscriptionInfo
from headgate.views.topics import TopicInfo


class Lists(Protocol):
    """What exists, as an `Admin` can ask."""

    async def list_topics(self) -> Sequence[TopicInfo]: ...
    async def list_subscriptions(self, topic: str) -> Sequence[SubscriptionInfo]: ...


def unknown_topic(topic: str, existing: Iterable[str]) -> str:
    """Return that ``topic`` does not exist, and which of the ``existing`` ones may be meant."""
    hint = (
        _hint(topic, existing)
        or f"create it first: headgate topic create {topic}, or topic import if another system stores it"
    )
    return f"topic {topic!r} does not exist; {hint}"


def unknown_subscription(topic: str, subscription: str, existing: Iterable[str]) -> str:
    """Return that ``topic`` has no such subscription, and which of the ``existing`` ones may be meant."""
    hint = _hint(subscription, existing) or "it has none: a consumer creates its own"
    return f"topic {topic!r} has no subscription {subscription!r}; {hint}"


async def explained(lists: Lists, request: AnyRequestBody, error: RequestRejectedError) -> RequestRejectedError:
    """Return a better error than ``error`` if it was caused by a name in ``request``, otherwise ``error``."""
    topic, subscription = getattr(request, "topic", None), getattr(request, "subscription", None)
    if error.verdict != "invalid" or topic is None or isinstance(request, CreateTopic | ImportTopic):
        return error
    try:
        topics = [each.topic for each in await lists.list_topics()]
        if topic not in topics:
            return RequestRejectedError(error.verdict, unknown_topic(topic, topics))
        if subscription is None or isinstance(request, CreateSubscription | RegisterConsumer):
            return error
        subscriptions = [each.subscription for each in await lists.list_subscriptions(topic)]
    except HeadgateError:  # The user may not list them, or a shard has no leader.
        return error
    if subscription in subscriptions:
        return error
    return RequestRejectedError(error.verdict, unknown_subscription(topic, subscription, subscriptions))


def _hint(name: str, existing: Iterable[str]) -> str:
    names = sorted(existing)
    if near := get_close_matches(name, names):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are: {listed(names)}" if names else ""
