"""Which registrations are accepted and what they change, rule by rule, then on the coordinator."""

from functools import partial
from typing import Any

import pytest

from headgate.model import entries as e
from headgate.protocol.requests import RegisterConsumer
from shard.state.consumers import RegisteredConsumer
from shard.state.subscription import Subscription
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.registration import (
    MISSED_HEARTBEATS,
    AcceptedRegistration,
    Claim,
    ExpiredConsumers,
    find_expired,
    judge_claim,
    judge_deleted_subscription,
    judge_registration,
    refuse_deleted_topic,
    subscriptions_error,
)

IDS = {"topic_id": 1, "subscription_id": 2}


def subscription(kind: Any = "STREAM", order: Any = "strict") -> Subscription:
    """Consumer ada is registered as incarnation 5 at client-ada."""
    created = e.SubscriptionCreated(**IDS, subscription="billing", subscription_type=kind, order=order, positions={})
    known = Subscription.created(created, "orders")
    known.apply(e.ConsumerRegistered(**IDS, consumer="ada", incarnation=5, client_id="anonymous/client-ada"), 0)
    return known


def remove(
    known: Subscription, reason: Any, at_ms: int = 0, name: str = "ada", incarnation: int = 5, token: str = ""
) -> None:
    known.apply(e.ConsumerRemoved(**IDS, consumer=name, incarnation=incarnation, reason=reason, token=token), at_ms)


def request(**fields: Any) -> RegisterConsumer:
    asked = {"topic": "orders", "subscription": "billing", "consumer": "ada", "incarnation": 5}
    return RegisterConsumer(**{**asked, "subscription_type": "STREAM", **fields})


def judge(
    known: Subscription, *, client_id: str = "anonymous/client-ada", **fields: Any
) -> AcceptedRegistration | Refusal:
    return judge_registration(known, request(**fields), client_id)


ENDED = "incarnation 5 of consumer 'ada' left or was replaced; register with a higher one"
EVICTED = "consumer 'ada' was evicted by a command: restart the program to join again"


@pytest.mark.parametrize(
    ("removal", "successor", "incarnation", "reason"),
    [
        pytest.param({"reason": "left"}, None, 5, ENDED, id="a delayed copy of one that left"),
        pytest.param({"reason": "replaced"}, None, 5, ENDED, id="a delayed copy of one that was replaced"),
        # Otherwise it would get its segments back at once.
        pytest.param({"reason": "evicted", "token": "t"}, None, 5, EVICTED, id="one that a command evicted"),
        *(
            pytest.param(
                {"reason": "replaced"},
                successor,
                5,
                f"is now incarnation {successor} at client 'anonymous/new': stop this one",
            )
            for successor in (3, 5, 6)
        ),
        pytest.param(
            None, None, 4, "is now incarnation 5 at client 'anonymous/client-ada': stop this one", id="a replaced one"
        ),
    ],
)
def test_rule_1_and_2_an_instance_that_has_ended_is_fenced_and_learns_why(
    removal: dict[str, Any] | None, successor: int | None, incarnation: int, reason: str
) -> None:
    known = subscription()
    if removal is not None:
        remove(known, **removal)
    if successor is not None:
        known.apply(e.ConsumerRegistered(**IDS, consumer="ada", incarnation=successor, client_id="anonymous/new"), 0)
    rejected = judge(known, incarnation=incarnation)

    assert ("fenced", True) == (rejected.verdict, rejected.after_proposed)
    assert reason in rejected.reason


def test_a_consumer_whose_topic_was_deleted_is_fenced() -> None:
    rejected = refuse_deleted_topic(request(subscription_id=7))

    assert ("fenced", True) == (rejected.verdict, rejected.after_barrier)


def test_rule_1_an_evicted_instance_may_register_again() -> None:
    known = subscription()
    remove(known, "evicted")

    assert AcceptedRegistration(Claim.FRESH, None) == judge(known)


@pytest.mark.parametrize("removal", [{"reason": "left"}, {"reason": "evicted", "token": "t"}], ids=["left", "evicted"])
@pytest.mark.parametrize("fields", [{"incarnation": 6}, {"client_id": "other"}, {"consumer": "bob"}])
def test_rule_1_another_instance_may_use_the_name(removal: dict[str, Any], fields: dict[str, Any]) -> None:
    known = subscription()
    remove(known, **removal)

    assert AcceptedRegistration(Claim.FRESH, None) == judge(known, **fields)


def test_rule_1_a_delayed_copy_does_not_replace_a_newer_instance() -> None:
    """The copy has the higher incarnation, as after a clock was set back."""
    known = subscription()
    remove(known, "left")
    known.apply(e.ConsumerRegistered(**IDS, consumer="ada", incarnation=3, client_id="anonymous/client-new"), 0)

    assert isinstance(judge(known), Refusal)


@pytest.mark.parametrize("incarnation", [4, 5, 6], ids=["lower", "same", "higher"])
def test_a_name_that_a_consumer_of_another_user_has_is_refused_whatever_the_incarnation(incarnation: int) -> None:
    rejected = judge(subscription(), client_id="eve/client-ada", incarnation=incarnation)

    reason = "consumer 'ada' belongs to another user: use another name"
    assert Refusal("forbidden", reason, after_proposed=True) == rejected


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("STREAM", {"subscription_type": "QUEUE"}, "is of type STREAM; register as STREAM"),
        ("QUEUE", {"subscription_type": "QUEUE", "order": "strict"}, "order 'strict' is for STREAM"),
    ],
)
def test_rule_3_another_type_or_an_invalid_order_is_rejected(kind: str, fields: dict[str, Any], reason: str) -> None:
    rejected = judge(subscription(kind, "none"), **fields)

    assert ("invalid", True) == (rejected.verdict, rejected.after_proposed)
    assert reason in rejected.reason


@pytest.mark.parametrize(
    ("kind", "asked", "order"),
    [("STREAM", None, "strict"), ("STREAM", "none", "none"), ("QUEUE", None, "none"), ("CHECKPOINT", None, "none")],
)
def test_rule_4_an_unknown_type_becomes_known(kind: str, asked: Any, order: str) -> None:
    admitted = judge(subscription(None, "none"), subscription_type=kind, order=asked)

    assert (kind, order) == (admitted.configured.subscription_type, admitted.configured.order)


def test_rule_5_a_joining_consumer_changes_order_and_balance_and_a_returning_one_does_not() -> None:
    known = subscription()
    joining = judge(known, consumer="bob", order="none", balance="load").configured
    assert ("none", "load") == (joining.order, joining.balance)
    assert AcceptedRegistration(Claim.CURRENT, None) == judge(known, order="none", balance="load")
    assert AcceptedRegistration(Claim.FRESH, None) == judge(known, consumer="bob")


def judge_after_deletion(
    found: Subscription | None, *, client_id: str = "anonymous/client-ada", **fields: Any
) -> Refusal | None:
    """Judge a registration of ada, a consumer of a deleted subscription of this name."""
    return judge_deleted_subscription(found, subscription().consumers.known(7), request(**fields), client_id)


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        pytest.param(None, {}, id="delayed copy of its first registration"),
        pytest.param(None, {"subscription_id": 1, "incarnation": 4}, id="names the deleted subscription"),
        pytest.param(subscription(), {"subscription_id": 1}, id="another subscription has the name"),
    ],
)
def test_a_consumer_of_a_deleted_subscription_cannot_create_or_join_another(
    found: Subscription | None, fields: dict[str, Any]
) -> None:
    rejected = judge_after_deletion(found, **fields)

    assert ("fenced", True) == (rejected.verdict, rejected.after_barrier)
    assert "'billing' of consumer 'ada' was deleted" in rejected.reason


@pytest.mark.parametrize("fields", [{"incarnation": 6}, {"client_id": "other"}, {"consumer": "bob"}])
def test_a_restarted_program_creates_a_new_subscription(fields: dict[str, Any]) -> None:
    assert judge_after_deletion(None, **fields) is None


def test_a_consumer_of_the_current_subscription_may_name_it() -> None:
    assert judge_after_deletion(subscription(), subscription_id=2) is None


def test_consumers_that_left_before_the_deletion_are_remembered() -> None:
    known = subscription()
    remove(known, "left", at_ms=3)
    known.apply(e.ConsumerRegistered(**IDS, consumer="bob", incarnation=1, client_id="anonymous/client-bob"), 4)

    assert [("ada", 3), ("bob", 9)] == [(each.consumer, each.at_ms) for each in known.consumers.known(9)]


def test_rule_7_a_full_subscription_takes_no_further_consumer_but_returning_and_replacing_ones() -> None:
    known = subscription()
    known.consumers |= {f"c{n}": RegisteredConsumer(f"c{n}", 1, "anonymous/client-c") for n in range(998)}
    assert isinstance(judge(known, consumer="bob"), AcceptedRegistration)
    known.consumers["bob"] = RegisteredConsumer("bob", 1, "anonymous/client-bob")
    full = judge(known, consumer="cyd")

    assert ("invalid", True) == (full.verdict, full.after_proposed)
    assert "has 1000 consumers; the limit is 1000: stop one of them, or use another subscription" in full.reason
    assert all(isinstance(judge(known, incarnation=number), AcceptedRegistration) for number in (5, 6))


def test_a_topic_has_at_most_1000_subscriptions() -> None:
    assert subscriptions_error("orders", 999) is None
    reason = "topic 'orders' has 1000 subscriptions; the limit is 1000: delete one of them"
    assert reason == subscriptions_error("orders", 1000)


KNOWN = RegisteredConsumer("ada", incarnation=5, client_id="anonymous/client-a")


@pytest.mark.parametrize(
    ("incarnation", "client_id", "claim"),
    [
        (5, "anonymous/client-a", Claim.CURRENT),
        (4, "anonymous/client-a", Claim.OUTDATED),
        (4, "anonymous/client-b", Claim.OUTDATED),
        (6, "anonymous/client-a", Claim.REPLACES),
        (6, "anonymous/client-b", Claim.REPLACES),
        (5, "anonymous/client-b", Claim.REPLACES),
    ],
)
def test_rules_2_to_4_claims_to_a_registered_name(incarnation: int, client_id: str, claim: Claim) -> None:
    assert claim is judge_claim(KNOWN, incarnation, client_id)


def test_rule_1_an_unused_name_may_be_claimed() -> None:
    assert Claim.FRESH is judge_claim(None, 0, "anonymous/client-a")


among = partial(find_expired, heartbeat_interval_seconds=5, grace_seconds=60, lease_seconds=30)


def expired(consumer: RegisteredConsumer, *, unseen_seconds: float, now_ms: int = 0) -> ExpiredConsumers:
    return among({"ada": consumer}, {"ada": 100.0}, now_seconds=100.0 + unseen_seconds, now_ms=now_ms)


def test_rule_5_three_missed_heartbeats_disconnect_a_consumer() -> None:
    assert MISSED_HEARTBEATS == 3
    assert ExpiredConsumers((), ()) == expired(KNOWN, unseen_seconds=14.9)
    assert ExpiredConsumers(("ada",), ()) == expired(KNOWN, unseen_seconds=15)


def test_rule_5_a_connected_consumer_is_disconnected_before_it_is_evicted() -> None:
    assert ExpiredConsumers(("ada",), ()) == expired(KNOWN, unseen_seconds=10_000, now_ms=10**9)


def test_rule_6_the_grace_period_runs_by_the_ledgers_clock_but_never_ends_before_the_lease() -> None:
    disconnected = RegisteredConsumer("ada", 5, "anonymous/client-a", disconnected_at_ms=1_000)

    assert ExpiredConsumers((), ()) == expired(disconnected, unseen_seconds=59, now_ms=60_999)
    assert ExpiredConsumers((), ()) == expired(disconnected, unseen_seconds=29.9, now_ms=10**9)
    assert ExpiredConsumers((), ("ada",)) == expired(disconnected, unseen_seconds=30, now_ms=61_000)


def test_rule_6_a_ledger_clock_ahead_does_not_extend_the_grace_period() -> None:
    disconnected = RegisteredConsumer("ada", 5, "anonymous/client-a", disconnected_at_ms=10**9)

    assert ExpiredConsumers((), ()) == expired(disconnected, unseen_seconds=59.9)
    assert ExpiredConsumers((), ("ada",)) == expired(disconnected, unseen_seconds=60)


def test_names_are_sorted() -> None:
    names = ["cyd", "ada", "bob"]
    consumers = {name: RegisteredConsumer(name, 1, name) for name in names}
    consumers |= {name + "-late": RegisteredConsumer(name, 1, name, disconnected_at_ms=0) for name in names}

    found = among(consumers, dict.fromkeys(consumers, 0.0), now_seconds=60, now_ms=60_000)

    assert ExpiredConsumers(("ada", "bob", "cyd"), ("ada-late", "bob-late", "cyd-late")) == found
