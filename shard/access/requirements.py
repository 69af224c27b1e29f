"""What each request does, in terms of the access rules. Pure.

Every kind of request has one entry; a test fails for a new kind without one.
"""

from collections.abc import Callable
from typing import Any, Final

from headgate.protocol.request_fields import RequestBody
from headgate.protocol.requests import (
    AcknowledgeBatch,
    BeginDeliveries,
    ConfirmDeadLetters,
    ConfirmRevoked,
    CreateSubscription,
    CreateTopic,
    DeleteProducer,
    DeleteSubscription,
    DeleteTopic,
    DescribeBacklog,
    DescribeCluster,
    DescribeLeader,
    DescribePosition,
    DescribeProducer,
    DescribeSubscription,
    DescribeTopic,
    EvictConsumer,
    ExplainSubscription,
    FindTopic,
    Heartbeat,
    ImportTopic,
    LeaveConsumer,
    ListParkedKeys,
    ListProducers,
    ListSubscriptions,
    ListTopics,
    MergeSegments,
    OpenProducer,
    ParkKey,
    PlanChanges,
    ProduceBatch,
    PruneTopic,
    RaiseLevel,
    RegisterConsumer,
    ResumeKey,
    SeekSubscription,
    SetDeliveryPolicy,
    SetMaintenance,
    SetShards,
    SetSubscriptionOrder,
    SetTopicPolicy,
    SplitSegment,
    TransferShard,
    UnparkKey,
)
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


def _on_optional_topic(body: ListSubscriptions | DescribeBacklog) -> Act:
    return Act(Action.DESCRIBE, body.topic, on_all_topics=body.topic is None)


def _on_all_topics(_: RequestBody) -> Act:
    return Act(Action.DESCRIBE, on_all_topics=True)


_ACTS: Final[dict[type[RequestBody], Callable[[Any], Act | None]]] = {
    DescribeLeader: lambda _: None,  # what the leader announces to every user
    OpenProducer: lambda _: Act(Action.DESCRIBE),  # an identity alone stores nothing
    ProduceBatch: _on_topic(Action.PRODUCE),
    AcknowledgeBatch: _on_subscription(Action.CONSUME),
    BeginDeliveries: _on_subscription(Action.CONSUME),
    ConfirmDeadLetters: _on_subscription(Action.CONSUME),
    ParkKey: _on_subscription(Action.CONSUME),
    UnparkKey: _on_subscription(Action.CONSUME),
    RegisterConsumer: _on_subscription(Action.CONSUME),
    Heartbeat: _on_subscription(Action.CONSUME),
    LeaveConsumer: _on_subscription(Action.CONSUME),
    ConfirmRevoked: _on_subscription(Action.CONSUME),
    CreateSubscription: _on_subscription(Action.CONSUME),  # as a registration, which creates one
    SeekSubscription: _on_subscription(Action.CONSUME),
    ListTopics: _on_all_topics,
    DescribePosition: _on_topic(Action.PRODUCE),
    ListProducers: _on_all_topics,
    DescribeProducer: _on_all_topics,
    DeleteProducer: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    ListSubscriptions: _on_optional_topic,
    DescribeBacklog: _on_optional_topic,
    DescribeCluster: _on_all_topics,
    SetShards: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    TransferShard: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    RaiseLevel: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    SetMaintenance: lambda _: Act(Action.ADMINISTER, on_all_topics=True),
    DescribeTopic: _on_topic(Action.DESCRIBE),
    FindTopic: _on_topic(Action.DESCRIBE),
    DescribeSubscription: _on_subscription(Action.DESCRIBE),
    ListParkedKeys: _on_subscription(Action.DESCRIBE),
    ExplainSubscription: _on_subscription(Action.DESCRIBE),
    PlanChanges: _on_subscription(Action.DESCRIBE),
    CreateTopic: _on_topic(Action.ADMINISTER),
    ImportTopic: _on_topic(Action.ADMINISTER),
    DeleteTopic: _on_topic(Action.ADMINISTER),
    SplitSegment: _on_topic(Action.ADMINISTER),
    MergeSegments: _on_topic(Action.ADMINISTER),
    SetTopicPolicy: _on_topic(Action.ADMINISTER),
    PruneTopic: _on_topic(Action.ADMINISTER),
    EvictConsumer: _on_subscription(Action.ADMINISTER),
    DeleteSubscription: _on_subscription(Action.ADMINISTER),
    SetSubscriptionOrder: _on_subscription(Action.ADMINISTER),
    SetDeliveryPolicy: _on_subscription(Action.ADMINISTER),
    ResumeKey: _on_subscription(Action.ADMINISTER),
}
