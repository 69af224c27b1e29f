"""The access rules: what each role may do, and to which topics and subscriptions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol import requests
from headgate.protocol.request_fields import RequestBody
from shard.access.rules import ACTIONS, OPEN, AccessRules, Act, Action, Right, Role, refuse_access, required

RULES = AccessRules(
    {
        "gateway": (Right(Role.DEVICE, ("telemetry",)),),
        "shop": (Right(Role.PRODUCER, ("orders", "cart-*")),),
        "billing": (Right(Role.CONSUMER, ("orders",), ("billing", "audit-*")),),
        "both": (Right(Role.PRODUCER, ("a",)), Right(Role.CONSUMER, ("b",))),
        "grafana": (Right(Role.OBSERVER),),
        "alice": (Right(Role.ADMINISTRATOR),),
        "team": (Right(Role.ADMINISTRATOR, ("team-*",)),),
    }
)
ORDERS = "orders"


@pytest.mark.parametrize(
    ("user", "act"),
    [
        ("gateway", Act(Action.PUBLISH, "telemetry")),
        ("gateway", Act(Action.PUBLISH)),
        ("shop", Act(Action.PRODUCE, ORDERS)),
        ("shop", Act(Action.PRODUCE, "cart-7")),
        ("shop", Act(Action.DESCRIBE, ORDERS)),
        ("shop", Act(Action.DESCRIBE)),
        ("shop", Act(Action.DESCRIBE, ORDERS, "billing")),
        ("billing", Act(Action.CONSUME, ORDERS, "billing")),
        ("billing", Act(Action.CONSUME, ORDERS, "audit-2026")),
        ("billing", Act(Action.DESCRIBE, ORDERS)),
        ("both", Act(Action.PRODUCE, "a")),
        ("both", Act(Action.CONSUME, "b", "any")),
        ("grafana", Act(Action.DESCRIBE, on_all_topics=True)),
        ("alice", Act(Action.ADMINISTER, ORDERS)),
        ("alice", Act(Action.DESCRIBE, on_all_topics=True)),
        ("team", Act(Action.ADMINISTER, "team-a")),
    ],
)
def test_a_right_allows(user: str, act: Act) -> None:
    assert RULES.judge(user, act).allowed


@pytest.mark.parametrize(
    ("user", "act", "reason"),
    [
        ("gateway", Act(Action.PUBLISH, ORDERS), "user gateway may not publish to topic orders: the user is device of"),
        ("gateway", Act(Action.DESCRIBE, "telemetry"), "device"),
        ("gateway", Act(Action.PRODUCE, "telemetry"), "device"),
        (
            "shop",
            Act(Action.PRODUCE, "cart"),
            "user shop may not produce to topic cart: the user is producer of orders, cart",
        ),
        ("shop", Act(Action.PRODUCE, "order"), "producer of"),
        ("shop", Act(Action.PRODUCE, "orders-2"), "producer of"),
        ("shop", Act(Action.CONSUME, ORDERS, "billing"), "may not consume subscription billing of topic orders"),
        ("shop", Act(Action.DESCRIBE, on_all_topics=True), "may not describe all topics"),
        ("gateway", Act(Action.PUBLISH, on_all_topics=True), "may not publish to all topics"),
        ("billing", Act(Action.CONSUME, ORDERS, "audit"), "consumer of orders (subscriptions billing, audit-*)"),
        ("billing", Act(Action.CONSUME, ORDERS, "billing-2"), "consumer"),
        ("billing", Act(Action.CONSUME, "other", "billing"), "consumer"),
        ("billing", Act(Action.ADMINISTER, ORDERS, "billing"), "consumer"),
        ("both", Act(Action.PRODUCE, "b"), "producer of a; consumer of b"),
        ("grafana", Act(Action.ADMINISTER, ORDERS), "the user is observer"),
        ("team", Act(Action.ADMINISTER, "orders"), "administrator of team-*"),
        ("team", Act(Action.DESCRIBE, on_all_topics=True), "administrator of team-*"),
        ("team", Act(Action.PUBLISH, "team-a"), "administrator of team-*"),
        ("mallory", Act(Action.DESCRIBE, ORDERS), "the access file has no such user"),
    ],
)
def test_what_no_right_allows_is_denied_with_the_reason(user: str, act: Act, reason: str) -> None:
    decision = RULES.judge(user, act)

    assert not decision.allowed
    assert reason in decision.reason


def test_open_rules_allow_everything() -> None:
    assert OPEN.judge("anyone", Act(Action.ADMINISTER, ORDERS)).allowed


def test_only_administrators_administer_and_only_devices_publish() -> None:
    assert {Role.ADMINISTRATOR} == {role for role in Role if Action.ADMINISTER in ACTIONS[role]}
    assert {Role.ADMINISTRATOR, Role.DEVICE} == {role for role in Role if Action.PUBLISH in ACTIONS[role]}
    assert {Role.ADMINISTRATOR, Role.CONSUMER} == {role for role in Role if Action.CONSUME in ACTIONS[role]}
    assert {Role.ADMINISTRATOR, Role.PRODUCER} == {role for role in Role if Action.PRODUCE in ACTIONS[role]}


NAMES = st.sampled_from(["a", "ab", "abc", "b"])
PATTERNS = st.lists(st.sampled_from(["a", "ab", "a*", "ab*", "b", "*"]), min_size=1).map(tuple)


@given(st.sampled_from(Role), PATTERNS, PATTERNS, st.sampled_from(Action), NAMES, NAMES)
def test_a_right_never_allows_more_than_its_widened_form(
    role: Role, topics: tuple[str, ...], subscriptions: tuple[str, ...], action: Action, topic: str, subscription: str
) -> None:
    act = Act(action, topic, subscription)
    narrow, wide = Right(role, topics, subscriptions), Right(role)

    assert wide.allows(act) or not narrow.allows(act)
    assert Right(Role.ADMINISTRATOR).allows(act)


def test_a_consumer_cannot_remove_others_of_its_subscription() -> None:
    """They know each other's names."""
    where = {"topic": "orders", "subscription": "billing", "token": "t"}
    evicts = requests.EvictConsumer(**where, consumer="c")
    creates = requests.CreateSubscription(**where, subscription_type="STREAM")

    assert refuse_access(RULES, "billing", evicts) is not None
    assert refuse_access(RULES, "billing", creates) is None, "its first registration would create it, too"


@pytest.mark.parametrize("kind", requests.AnyRequestBody.__args__, ids=lambda kind: kind.__name__)
def test_a_request_is_judged_by_its_topic_and_subscription(kind: type[RequestBody]) -> None:
    named = {name: name[0] for name in kind.__struct_fields__ if name in ("topic", "subscription")}
    counted = dict.fromkeys({"records", "headers"}.intersection(kind.__struct_fields__), ())
    body = kind(**{**dict.fromkeys(kind.__struct_fields__), **counted, **named})
    act = required(body) or Act(Action.DESCRIBE)

    assert named.get("topic") == act.topic
    assert named.get("subscription") == act.subscription or isinstance(body, requests.DescribeBacklog)


@pytest.mark.parametrize("kind", [requests.ListSubscriptions, requests.DescribeBacklog])
def test_a_list_of_all_topics_needs_a_right_to_all(
    kind: type[requests.ListSubscriptions | requests.DescribeBacklog],
) -> None:
    assert required(kind()) == required(requests.ListTopics()) == Act(Action.DESCRIBE, on_all_topics=True)
    assert required(requests.DescribeCluster()) == Act(Action.DESCRIBE, on_all_topics=True)
    assert required(kind(topic="t")) == Act(Action.DESCRIBE, "t")
