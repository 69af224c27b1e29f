"""What each request does, in terms of the access rules. Pure.

Every kind of request has one entry; a test fails for a new kind without one.
"""

from collections.abc import Callable
from typing import Any, Final

from headgate.protocol import requests
from headgate.protocol.request_fields import RequestBody
from shard.access.rules import AccessRules, Act, Action
from shard.subscriptions.refusal import Refusal, refuse


def refuse_access(rules: AccessRules, user: str, body: RequestBody) -> Refusal | None:
    act = required(body)
    if act is None:
        return None
    decision = rules.judge(user, act)
    return None if decision.allowed else refuse("forbidden", decision.reason)


def required(body: RequestBody) -> Act | None:
    """Return the act that a user must be allowed for the request ``body``; None if every user may send it."""
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
