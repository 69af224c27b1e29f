"""Commands: decisions, repetitions and refusals."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.layout import ShardMap
from headgate.protocol.replies import Done, TopicPlace
from headgate.protocol.request_fields import PolicyField
from headgate.protocol.requests import (
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    FindTopic,
    ImportTopic,
    MergeSegments,
    RegisterConsumer,
    SegmentImport,
    SetTopicPolicy,
    SplitSegment,
)
from shard.requests import subscription_commands
from shard.requests import topic_commands as commands
from shard.requests.handlers import Decision
from shard.requests.topic_commands import create_topic, find_place, refuse_creation
from shard.requests.topic_import import import_topic
from shard.state.shard_state import ShardState
from shard.steps import complete
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


@pytest.mark.parametrize(
    ("decide", "change", "segments"),
    [
        (commands.split_segment, SplitSegment(topic="orders", segment=0, token="s"), [0, 1, 2, 3]),
        (commands.merge_segments, MergeSegments(topic="orders", segments=(0, 1), token="m"), [0, 1, 2]),
    ],
)
def test_a_change_of_layout_is_one_entry_and_is_not_executed_twice(
    topic: CommandShard, decide: Any, change: Any, segments: list[int]
) -> None:
    reply = topic.do(decide(change, topic.state)).topic
    assert (segments, "alice") == ([each.segment for each in reply.segments], reply.user)
    assert changes_nothing(decide(change, topic.state))


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
        registration("STREAM", balance="load"), topic.state.topics["orders"], topic.state.ids.next_id, "alice"
    )
    registered = e.ConsumerRegistered(
        topic_id=1, subscription_id=created.subscription_id, consumer="c1", incarnation=1, client_id="c"
    )
    assert ("alice", "load") == (created.user, created.balance)
    topic.apply(created, registered)

    refusal = commands.delete_topic(DeleteTopic(topic="orders", token="x"), topic.state)
    assert "s (c1)" in refusal.reason
    forced = DeleteTopic(topic="orders", token="x", force=True, topic_id=1)
    assert [Done(), Done()] == [topic.do(judged(commands.delete_topic, forced, topic.state)) for _ in "12"]


def _set(shard: CommandShard, token: str, *, reset: Sequence[PolicyField] = (), **fields: Any) -> Any:
    request = SetTopicPolicy(topic="orders", token=token, policy=e.TopicPolicy(**fields), reset=list(reset))
    return judged(commands.set_topic_policy, request, shard.state)


def test_setting_a_policy_changes_only_the_given_fields(topic: CommandShard) -> None:
    topic.do(_set(topic, "p1", auto_split=True, max_segments=8))
    reply = topic.do(_set(topic, "p2", max_age_ms=1000, reset=["max_segments"]))

    assert reply.topic.policy == e.TopicPolicy(auto_split=True, max_age_ms=1000)
    assert topic.state.topics["orders"].policy == reply.topic.policy


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
    topic.do(_set(topic, "p0", min_segments=4))
    reply = topic.do(_set(topic, "p1", max_segments=4))

    assert (4, 4) == (reply.topic.policy.min_segments, reply.topic.policy.max_segments)


OLD, NEW = [4], [4, 16]
NAME = "orders"
"""Its places by `NEW` are 9 and 1."""


def shard_with(number: int, *entries: e.AnyEntry) -> ShardState:
    state = ShardState(number)
    state.apply_all(entries, chunk=1, at_ms=0)
    return state


def grown(counts: list[int]) -> e.ShardsGrown:
    return e.ShardsGrown(counts=tuple(counts))


def listing(shards: list[int]) -> ImportTopic:
    return ImportTopic(topic=NAME, token="t", segments=[SegmentImport(segment="a")], positions="opaque", shards=shards)


@pytest.mark.parametrize(
    ("number", "known", "asked", "verdict"),
    [
        pytest.param(1, None, OLD, None, id="before the growth"),
        pytest.param(1, None, [], None, id="a client without a list, before the growth"),
        pytest.param(1, None, NEW, "unavailable", id="the client is ahead"),
        pytest.param(9, None, NEW, "unavailable", id="the client is ahead of a new shard"),
        pytest.param(1, NEW, OLD, "invalid", id="the client is behind"),
        pytest.param(1, NEW, [], "invalid", id="a client without a list"),
        pytest.param(1, NEW, NEW, "invalid", id="the name belongs elsewhere now"),
        pytest.param(9, NEW, NEW, None, id="the new place"),
        pytest.param(9, NEW, [4, 9, 16], "unavailable", id="one growth behind"),
        pytest.param(9, NEW, [5, 16], "invalid", id="another cluster's list"),
    ],
)
def test_a_leader_creates_what_belongs_to_its_shard_by_the_list_of_its_ledger(
    number: int, known: list[int] | None, asked: list[int], verdict: str | None
) -> None:
    state = shard_with(number, *([] if known is None else [grown(known)]))
    refusal = refuse_creation(NAME, asked, state)
    created = create_topic(CreateTopic(topic=NAME, token="t", shards=asked), state, "ada")
    imported = complete(import_topic(listing(shards=asked), state, "ada"))

    assert (None if refusal is None else refusal.verdict) == verdict
    assert isinstance(created, Refusal) == isinstance(imported, Refusal) == (verdict is not None)


def test_an_imported_topic_stays_and_is_imported_again_where_it_is() -> None:
    segments = [e.ImportedSegment(segment=0, label="a")]
    known = e.TopicImported(topic_id=1, topic=NAME, token="i", segments=segments, positions="opaque")

    assert isinstance(complete(import_topic(listing(shards=NEW), shard_with(1, known, grown(NEW)), "ada")), Decision)


def test_an_existing_topic_stays_and_a_repeated_command_gets_its_reply() -> None:
    created = e.TopicCreated(topic_id=1, topic=NAME, segments=1, token="t")
    state = shard_with(1, created, grown(NEW))
    assert (len(NEW) - 1) << 40 == state.ids.next_id, "no id is used for two numbers of shards"

    assert isinstance(create_topic(CreateTopic(topic=NAME, token="t", shards=NEW), state, "ada"), Decision)
    assert "already exists" in create_topic(CreateTopic(topic=NAME, token="u", shards=NEW), state, "ada").reason
    assert find_place(FindTopic(topic=NAME), state).answer(state) == TopicPlace(topic_id=1, shards=NEW)


LISTS = [[2], [2, 3], [2, 3, 7]]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 6), st.integers(1, 2)),
        st.tuples(st.just("create"), st.integers(0, 2)),
        st.tuples(st.just("look"), st.integers(0, 2), st.integers(0, 6)),
        st.tuples(st.just("delete"), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([f"t{number}" for number in range(20)]))
def test_no_order_of_steps_gives_two_shards_one_name(steps: list[tuple], name: str) -> None:
    """Clients with a list each ask one place at a time, and create once all have said that they do not have the name.

    In between, leaders store lists in any order, and other clients create and delete.
    """
    states = [ShardState(number) for number in range(7)]
    proofs: list[set[int]] = [set(), set(), set()]
    ids: list[int] = []
    for chunk, (what, *which) in enumerate(steps, 1):
        for state in states:
            state.begin_chunk(chunk, 0)
        match what, which:
            case "store", [number, length] if len(states[number].ids.shard_counts) <= length:
                states[number].apply(grown(LISTS[length]))
            case "look", [client, number]:
                place = find_place(FindTopic(topic=name), states[number]).answer(states[number])
                if place.topic_id is None and place.shards == (LISTS[client] if client else []):
                    proofs[client].add(number)
            case "create", [client]:
                places = ShardMap(tuple(LISTS[client])).candidates(name)
                if not set(places[1:]) <= proofs[client]:
                    continue
                request = CreateTopic(topic=name, token=f"t{chunk}", shards=LISTS[client])
                decision = create_topic(request, states[places[0]], "ada")
                if isinstance(decision, Decision):
                    states[places[0]].apply(decision.entries[0])
                    ids.append(decision.entries[0].topic_id)
            case "delete", [number] if name in states[number].topics:
                topic_id = states[number].topics[name].topic_id
                states[number].apply(e.TopicDeleted(topic_id=topic_id, token=f"d{chunk}"))
        assert sum(name in state.topics for state in states) <= 1
    assert all(first < second for first, second in pairwise(ids))
