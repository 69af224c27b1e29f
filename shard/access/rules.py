"""Judge whether a user may do something. Pure.

The broker authenticates a user and vouches for the sender of a request by its ACL. The daemon asks
these rules before it reads anything else of the request.

Rules:

1. What no right allows is denied. A user without rights may do nothing.
2. A right is a role with topics and, for consumers, subscriptions. ``*`` means all of them, and
   ``orders-*`` all that begin so.
3. A right to produce to a topic, or to consume it, includes looking at it. An administrator may do
   everything with its topics.
4. A beginning such as ``team-*`` allows no publication as a device: the broker enforces these
   rights, and MQTT has no wildcard for a part of a level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from headgate.protocol import requests
from headgate.protocol.request_fields import RequestBody
from shard.access.quotas import DEFAULT_LIMITS, UNLIMITED, Limits
from shard.subscriptions.refusal import Refusal, refuse

ANY: Final = "*"


class Action(StrEnum):
    PUBLISH = "publish"
    """Publish records as an MQTT device."""
    PRODUCE = "produce"
    CONSUME = "consume"
    """Consume, acknowledge and move a subscription; create it by registering."""
    DESCRIBE = "describe"
    """Look at topics, subscriptions and backlogs."""
    ADMINISTER = "administer"
    """Create, change and delete topics, subscriptions and named producers."""


class Role(StrEnum):
    DEVICE = "device"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    OBSERVER = "observer"
    ADMINISTRATOR = "administrator"


ACTIONS: Final[Mapping[Role, frozenset[Action]]] = {
    Role.DEVICE: frozenset({Action.PUBLISH}),
    Role.PRODUCER: frozenset({Action.PRODUCE, Action.DESCRIBE}),
    Role.CONSUMER: frozenset({Action.CONSUME, Action.DESCRIBE}),
    Role.OBSERVER: frozenset({Action.DESCRIBE}),
    Role.ADMINISTRATOR: frozenset(Action),
}


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a user wants to do.

    ``topic`` None: on any topic, or on all of them if ``on_all_topics``. ``subscription`` None: on no particular one.
    """

    action: Action
    topic: str | None = None
    subscription: str | None = None
    on_all_topics: bool = False

    def __str__(self) -> str:
        """Return what is done to what, as in "consume subscription billing of topic orders"."""
        to = "to " if self.action in {Action.PUBLISH, Action.PRODUCE} else ""
        if self.topic is None:
            return f"{self.action} {to}all topics" if self.on_all_topics else self.action.value
        subscription = "" if self.subscription is None else f"subscription {self.subscription} of "
        return f"{self.action} {to}{subscription}topic {self.topic}"


class Right(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One role of a user, limited to topics and subscriptions."""

    role: Role
    topics: tuple[str, ...] = (ANY,)
    subscriptions: tuple[str, ...] = (ANY,)

    def allows(self, act: Act) -> bool:
        if act.action not in ACTIONS[self.role]:
            return False
        if act.action is Action.PUBLISH and act.topic is not None:
            return ANY in self.topics or act.topic in self.published_topics
        if act.topic is None:
            return not act.on_all_topics or ANY in self.topics
        return _matches(self.topics, act.topic) and (
            act.subscription is None or _matches(self.subscriptions, act.subscription)
        )

    @property
    def published_topics(self) -> tuple[str, ...]:
        """The topics to which this right allows publications as a device: names, or `ANY`."""
        if Action.PUBLISH not in ACTIONS[self.role]:
            return ()
        return tuple(topic for topic in self.topics if topic == ANY or not topic.endswith(ANY))

    def __str__(self) -> str:
        """Return the right as in "consumer of orders (subscriptions billing)"."""
        topics = "" if ANY in self.topics else f" of {', '.join(self.topics)}"
        subscriptions = "" if ANY in self.subscriptions else f" (subscriptions {', '.join(self.subscriptions)})"
        return f"{self.role}{topics}{subscriptions}"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether an act is allowed, and why."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rights and quotas of all users. ``is_open``: every user may do everything, for a node on loopback."""

    users: Mapping[str, tuple[Right, ...]]
    is_open: bool = False
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Quotas of users for which not the default applies."""
    default_limits: Limits = DEFAULT_LIMITS

    def limits_of(self, user: str) -> Limits:
        """Return the quotas of ``user``; the default if it is unknown."""
        return self.limits.get(user, self.default_limits)

    def judge(self, user: str, act: Act) -> AccessDecision:
        if self.is_open:
            return AccessDecision(allowed=True, reason="access control is off")
        rights = self.users.get(user)
        if rights is None:
            return AccessDecision(allowed=False, reason=f"user {user} may not {act}: the access file has no such user")
        for right in rights:
            if right.allows(act):
                return AccessDecision(allowed=True, reason=f"user {user} is {right}")
        return AccessDecision(
            allowed=False, reason=f"user {user} may not {act}: the user is {'; '.join(map(str, rights))}"
        )


OPEN: Final = AccessRules({}, is_open=True, default_limits=UNLIMITED)
"""Every user may do everything, as often as it likes."""


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith(ANY) else name == pattern for pattern in patterns)


def refuse_access(rules: AccessRules, user: str, body: RequestBody) -> Refusal | None:
    act = required(body)
    if act is None:
        return None
    decision = rules.judge(user, act)
    return None if decision.allowed else refuse("forbidden", decision.reason)


def required(body: RequestBody) -> Act | None:
    """Return the act that a user must be allowed for the request ``body``; None if every user may send it.

    Every kind of request has one entry in `_ACTS`; a test fails for a new kind without one.
    """
    return _ACTS[type(body)](body)


def _on_topic(action: Action) -> Callable[[Any], Act]:
    return lambda body: Act(action, body.topic)


def _on_subscription(action: Action) -> Callable[[Any], Act]:
    return lambda body: Act(action, body.topic, body.subscription)


def _on_optional_topic(body: requests.ListSubscriptions | requests.DescribeBacklog) -> Act:
    return Act(Action.DESCRIBE, body.topic, on_all_topics=body.topic is None)


def _on_all_topics(_: RequestBody) -> Act:
    return Act(Action.DESCRIBE, on_all_topics=True)


_ACTS: Final[dict[type[RequestBody], Callable[[Any], Act | None]]] = {
    requests.DescribeLeader: lambda _: None,  # what the leader announces to every user
    requests.OpenProducer: lambda _: Act(Action.DESCRIBE),  # an identity alone stores nothing
    requests.ProduceBatch: _on_topic(Action.PRODUCE),
    requests.AcknowledgeBatch: _on_subscription(Action.CONSUME),
    requests.BeginDeliveries: _on_subscription(Action.CONSUME),
    requests.ConfirmDeadLetters: _on_subscription(Action.CONSUME),
    requests.ParkKey: _on_subscription(Action.CONSUME),
    requests.UnparkKey: _on_subscription(Action.CONSUME),
    requests.RegisterConsumer: _on_subscription(Action.CONSUME),
    requests.Heartbeat: _on_subscription(Action.CONSUME),
    requests.LeaveConsumer: _on_subscription(Action.CONSUME),
    requests.ConfirmRevoked: _on_subscription(Action.CONSUME),
    requests.CreateSubscription: _on_subscription(Action.CONSUME),  # as a registration, which creates one
    requests.SeekSubscription: _on_subscription(Action.CONSUME),
    requests.ListTopics: _on_all_topics,
    requests.DescribePosition: _on_topic(Action.PRODUCE),
    requests.ListProducers: _on_all_topics,
    requests.DescribeProducer: _on_all_topics,
    requests.DeleteProducer: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    requests.ListSubscriptions: _on_optional_topic,
    requests.DescribeBacklog: _on_optional_topic,
    requests.DescribeCluster: _on_all_topics,
    requests.SetShards: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    requests.TransferShard: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    requests.RaiseLevel: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    requests.SetMaintenance: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    requests.DescribeTopic: _on_topic(Action.DESCRIBE),
    requests.FindTopic: _on_topic(Action.DESCRIBE),
    requests.DescribeSubscription: _on_subscription(Action.DESCRIBE),
    requests.ListParkedKeys: _on_subscription(Action.DESCRIBE),
    requests.ExplainSubscription: _on_subscription(Action.DESCRIBE),
    requests.PlanChanges: _on_subscription(Action.DESCRIBE),
    requests.CreateTopic: _on_topic(Action.ADMINISTER),
    requests.ImportTopic: _on_topic(Action.ADMINISTER),
    requests.DeleteTopic: _on_topic(Action.ADMINISTER),
    requests.SplitSegment: _on_topic(Action.ADMINISTER),
    requests.MergeSegments: _on_topic(Action.ADMINISTER),
    requests.SetTopicPolicy: _on_topic(Action.ADMINISTER),
    requests.PruneTopic: _on_topic(Action.ADMINISTER),
    requests.EvictConsumer: _on_subscription(Action.ADMINISTER),
    requests.DeleteSubscription: _on_subscription(Action.ADMINISTER),
    requests.SetSubscriptionOrder: _on_subscription(Action.ADMINISTER),
    requests.SetDeliveryPolicy: _on_subscription(Action.ADMINISTER),
    requests.ResumeKey: _on_subscription(Action.ADMINISTER),
}
