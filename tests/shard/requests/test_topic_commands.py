"""Commands: decisions, repetitions and refusals."""

from collections.abc import Sequence
from typing import Any

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import Done
from headgate.protocol.request_fields import PolicyField
from headgate.protocol.requests import (
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    MergeSegments,
    RegisterConsumer,
    SetTopicPolicy,
    SplitSegment,
)
from shard.requests import subscription_commands
from shard.requests import topic_commands as commands
from shard.requests.handlers import Decision
from shard.subscriptions.refusal import Refusal
from tests.support.worlds.command_shard import CommandShard, judged


@pytest.fixture
def shard() -> CommandShard:
    return CommandShard()


@pytest.fixture
def topic(shard: CommandShard) -> CommandShard:
    shard.do(commands.create_topic(CreateTopic(topic="orders", token="t0", segments=2), shard.state, "alice"))
    return shard


def registration(kind: Any, **fields: Any) -> RegisterConsumer:
    about = {"topic": "orders", "subscription": "s", "consumer": "c1", "incarnation": 1}
    return RegisterConsumer(**about, subscription_type=kind, **fields)


def changes_nothing(outcome: Decision | Refusal) -> bool:
    return isinstance(outcome, Decision) and not outcome.entries


def test_a_topic_is_created_once(topic: CommandShard) -> None:
    """The same command gets its reply again; another command with that name is rejected."""
    again = CreateTopic(topic="orders", token="t0", segments=2)
    assert changes_nothing(commands.create_topic(again, topic.state, "alice"))

    other = CreateTopic(topic="orders", token="t9")
    refusal = commands.create_topic(other, topic.state, "alice")
    assert "already exists" in refusal.reason
    assert refusal.after_barrier, "a deposed leader may not know that the topic was deleted"


def test_a_late_copy_of_a_creation_does_not_bring_a_deleted_topic_back(topic: CommandShard) -> None:
    topic.do(commands.delete_topic(DeleteTopic(topic="orders", token="d"), topic.state))

    late = commands.create_topic(CreateTopic(topic="orders", token="t0", segments=2), topic.state, "alice")

    assert ("invalid", True) == (late.verdict, late.after_barrier)
    assert "'orders' was created and has been deleted since" in late.reason


def test_a_split_is_one_entry_and_is_not_executed_twice(topic: CommandShard) -> None:
    request = SplitSegment(topic="orders", segment=0, token="s1")
    reply = topic.do(commands.split_segment(request, topic.state))
    assert [0, 1, 2, 3] == [segment.segment for segment in reply.topic.segments]

    assert changes_nothing(commands.split_segment(request, topic.state))


def test_a_merge_is_one_entry_and_is_not_executed_twice(topic: CommandShard) -> None:
    request = MergeSegments(topic="orders", segments=(0, 1), token="m1")
    topic.do(commands.merge_segments(request, topic.state))

    assert changes_nothing(commands.merge_segments(request, topic.state))
    assert [2] == [segment.segment_id for segment in topic.state.topics["orders"].layout.active()]


def test_a_topic_grows_up_to_a_limit_of_segments(topic: CommandShard) -> None:
    """Sealed segments count: a split adds two, a merge one."""
    orders = topic.state.topics["orders"]
    at_limit = (
        commands.split_entry(orders, 0, token="s", max_segments=4),
        commands.merge_entry(orders, 0, 1, token="m", max_segments=3),
    )
    beyond = (
        commands.split_entry(orders, 0, token="s", max_segments=3),
        commands.merge_entry(orders, 0, 1, token="m", max_segments=2),
    )

    assert [e.SegmentSplit, e.SegmentsMerged] == [type(entry) for entry in at_limit]
    remedy = "headgate topic prune orders removes those that every subscription has drained"
    assert beyond == (
        Refusal("invalid", f"topic 'orders' holds 2 segments; the limit is 3: {remedy}"),
        Refusal("invalid", f"topic 'orders' holds 2 segments; the limit is 2: {remedy}"),
    )


REFUSALS: dict[str, tuple[Any, Any, str]] = {
    "split in no topic": (commands.split_segment, SplitSegment(topic="no", segment=0, token="x"), "no topic 'no'"),
    "split of no segment": (
        *(commands.split_segment, SplitSegment(topic="orders", segment=7, token="x")),
        "active segments are 0, 1",
    ),
    "merge with itself": (
        *(commands.merge_segments, MergeSegments(topic="orders", segments=(0, 0), token="x")),
        "can merge with: 1",
    ),
    "no subscription": (
        subscription_commands.delete_subscription,
        DeleteSubscription(topic="orders", subscription="no", token="x"),
        "topic 'orders' has no subscription 'no'",
    ),
}


@pytest.mark.parametrize(("decide", "request_body", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_lists_the_valid_choices(topic: CommandShard, decide: Any, request_body: Any, reason: str) -> None:
    refusal = judged(decide, request_body, topic.state)

    assert ("invalid", True) == (refusal.verdict, refusal.after_barrier), "a deposed leader may know other choices"
    assert reason in refusal.reason


def test_a_refusal_names_no_topic_that_the_user_may_not_see(topic: CommandShard) -> None:
    refusal = judged(commands.delete_topic, DeleteTopic(topic="no", token="x"), topic.state)

    assert refusal.reason == "there is no topic 'no'"


def test_deleting_a_topic_that_consumers_use_requires_force(topic: CommandShard) -> None:
    created = subscription_commands.new_subscription(
        registration("STREAM"), topic.state.topics["orders"], topic.state.ids.next_id, "alice"
    )
    registered = e.ConsumerRegistered(
        topic_id=1, subscription_id=created.subscription_id, consumer="c1", incarnation=1, client_id="c"
    )
    topic.apply(created, registered)

    refusal = commands.delete_topic(DeleteTopic(topic="orders", token="x"), topic.state)
    assert "s (c1)" in refusal.reason
    forced = DeleteTopic(topic="orders", token="x", force=True)
    assert isinstance(topic.do(commands.delete_topic(forced, topic.state)), Done)
    assert isinstance(topic.do(commands.delete_topic(forced, topic.state)), Done)


def _set(shard: CommandShard, token: str, *, reset: Sequence[PolicyField] = (), **fields: Any) -> Any:
    request = SetTopicPolicy(topic="orders", token=token, policy=e.TopicPolicy(**fields), reset=list(reset))
    return judged(commands.set_topic_policy, request, shard.state)


def test_setting_a_policy_changes_only_the_given_fields(topic: CommandShard) -> None:
    topic.do(_set(topic, "p1", auto_split=True, max_segments=8))
    reply = topic.do(_set(topic, "p2", max_age_ms=1000, reset=["max_segments"]))

    assert reply.topic.policy == e.TopicPolicy(auto_split=True, max_age_ms=1000)
    assert topic.state.topics["orders"].policy == reply.topic.policy


def test_a_repeated_change_of_policy_is_not_executed_twice(topic: CommandShard) -> None:
    topic.do(_set(topic, "p1", auto_split=True))
    topic.do(_set(topic, "p2", auto_split=False))

    repeated = _set(topic, "p1", auto_split=True)
    assert repeated.entries == ()
    assert topic.do(repeated).topic.policy.auto_split is False


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"min_segments": 9}, "min_segments 9 is above max_segments 8"),
        ({"auto_split": True, "reset": ["auto_split"]}, "auto_split: give a value or reset it"),
    ],
    ids=["with what was set before", "both at once"],
)
def test_a_contradictory_policy_is_refused(topic: CommandShard, fields: dict[str, Any], reason: str) -> None:
    topic.do(_set(topic, "p1", max_segments=8))

    refusal = _set(topic, "p2", **fields)
    assert reason in refusal.reason


def test_a_topic_may_have_a_fixed_number_of_segments(topic: CommandShard) -> None:
    reply = topic.do(_set(topic, "p1", min_segments=4, max_segments=4))

    assert (4, 4) == (reply.topic.policy.min_segments, reply.topic.policy.max_segments)
