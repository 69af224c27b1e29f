"""What each request does, in terms of the access rules. Pure.

Every kind of request has one entry; a test fails for a new kind without one.
"""

from collections.abc import Callable
from typing import Any, Final

from headgate.protocol import messages as m
from shard.access.rules import AccessRules, Act, Action
from shard.subscriptions.refusal import Refusal, refuse


def refuse_access(rules: AccessRules, user: str, body: m.RequestBody) -> Refusal | None:
    act = required(body)
    if act is None:
        return None
    decision = rules.judge(user, act)
    return None if decision.allowed else refuse("forbidden", decision.reason)


def required(body: m.RequestBody) -> Act | None:
    """Return the act that a user must be allowed for the request ``body``; None if every user may send it."""
    return _ACTS[type(body)](body)


def _on_topic(action: Action) -> Callable[[Any], Act]:
    return lambda body: Act(action, body.topic)


def _on_subscription(action: Action) -> Callable[[Any], Act]:
    return lambda body: Act(action, body.topic, body.subscription)


def _on_optional_topic(body: m.ListSubscriptions | m.DescribeBacklog) -> Act:
    return Act(Action.DESCRIBE, body.topic, on_all_topics=body.topic is None)


def _on_all_topics(_: m.RequestBody) -> Act:
    return Act(Action.DESCRIBE, on_all_topics=True)


_ACTS: Final[dict[type[m.RequestBody], Callable[[Any], Act | None]]] = {
    m.DescribeLeader: lambda _: None,  # what the leader announces to every user
    m.OpenProducer: lambda _: Act(Action.DESCRIBE),  # an identity alone stores nothing
    m.ProduceBatch: _on_topic(Action.PRODUCE),
    m.AcknowledgeBatch: _on_subscription(Action.CONSUME),
    m.BeginDeliveries: _on_subscription(Action.CONSUME),
    m.ConfirmDeadLetters: _on_subscription(Action.CONSUME),
    m.ParkKey: _on_subscription(Action.CONSUME),
    m.UnparkKey: _on_subscription(Action.CONSUME),
    m.RegisterConsumer: _on_subscription(Action.CONSUME),
    m.Heartbeat: _on_subscription(Action.CONSUME),
    m.LeaveConsumer: _on_subscription(Action.CONSUME),
    m.ConfirmRevoked: _on_subscription(Action.CONSUME),
    m.CreateSubscription: _on_subscription(Action.CONSUME),  # as a registration, which creates one
    m.SeekSubscription: _on_subscription(Action.CONSUME),
    m.ListTopics: _on_all_topics,
    m.DescribePosition: _on_topic(Action.PRODUCE),
    m.ListProducers: _on_all_topics,
    m.DescribeProducer: _on_all_topics,
    m.DeleteProducer: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    m.ListSubscriptions: _on_optional_topic,
    m.DescribeBacklog: _on_optional_topic,
    m.DescribeCluster: _on_all_topics,
    m.SetShards: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    m.TransferShard: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    m.RaiseLevel: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    m.SetMaintenance: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    m.DescribeTopic: _on_topic(Action.DESCRIBE),
    m.FindTopic: _on_topic(Action.DESCRIBE),
    m.DescribeSubscription: _on_subscription(Action.DESCRIBE),
    m.ListParkedKeys: _on_subscription(Action.DESCRIBE),
    m.ExplainSubscription: _on_subscription(Action.DESCRIBE),
    m.PlanChanges: _on_subscription(Action.DESCRIBE),
    m.CreateTopic: _on_topic(Action.ADMINISTER),
    m.ImportTopic: _on_topic(Action.ADMINISTER),
    m.DeleteTopic: _on_topic(Action.ADMINISTER),
    m.SplitSegment: _on_topic(Action.ADMINISTER),
    m.MergeSegments: _on_topic(Action.ADMINISTER),
    m.SetTopicPolicy: _on_topic(Action.ADMINISTER),
    m.PruneTopic: _on_topic(Action.ADMINISTER),
    m.EvictConsumer: _on_subscription(Action.ADMINISTER),
    m.DeleteSubscription: _on_subscription(Action.ADMINISTER),
    m.SetSubscriptionOrder: _on_subscription(Action.ADMINISTER),
    m.SetDeliveryPolicy: _on_subscription(Action.ADMINISTER),
    m.ResumeKey: _on_subscription(Action.ADMINISTER),
}
