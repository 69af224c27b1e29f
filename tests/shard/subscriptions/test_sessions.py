"""Claims to a name, and expired consumers, rule by rule."""

import pytest

from shard.state.consumers import RegisteredConsumer
from shard.subscriptions.sessions import MISSED_HEARTBEATS, Claim, ExpiredConsumers, find_expired, judge_claim

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


def judge(consumer: RegisteredConsumer, *, unseen_seconds: float, now_ms: int = 0) -> ExpiredConsumers:
    return find_expired(
        {"ada": consumer},
        {"ada": 100.0},
        now_seconds=100.0 + unseen_seconds,
        now_ms=now_ms,
        heartbeat_interval_seconds=5,
        grace_seconds=60,
        lease_seconds=30,
    )


def test_rule_5_three_missed_heartbeats_disconnect_a_consumer() -> None:
    assert MISSED_HEARTBEATS == 3
    assert ExpiredConsumers((), ()) == judge(KNOWN, unseen_seconds=14.9)
    assert ExpiredConsumers(("ada",), ()) == judge(KNOWN, unseen_seconds=15)


def test_rule_5_a_connected_consumer_is_disconnected_before_it_is_evicted() -> None:
    assert ExpiredConsumers(("ada",), ()) == judge(KNOWN, unseen_seconds=10_000, now_ms=10**9)


def test_rule_6_the_grace_period_runs_by_the_ledgers_clock_but_never_ends_before_the_lease() -> None:
    disconnected = RegisteredConsumer("ada", 5, "anonymous/client-a", disconnected_at_ms=1_000)

    assert ExpiredConsumers((), ()) == judge(disconnected, unseen_seconds=59, now_ms=60_999)
    assert ExpiredConsumers((), ()) == judge(disconnected, unseen_seconds=29.9, now_ms=10**9)
    assert ExpiredConsumers((), ("ada",)) == judge(disconnected, unseen_seconds=30, now_ms=61_000)


def test_rule_6_a_ledger_clock_ahead_does_not_extend_the_grace_period() -> None:
    disconnected = RegisteredConsumer("ada", 5, "anonymous/client-a", disconnected_at_ms=10**9)

    assert ExpiredConsumers((), ()) == judge(disconnected, unseen_seconds=59.9)
    assert ExpiredConsumers((), ("ada",)) == judge(disconnected, unseen_seconds=60)


def test_names_are_sorted() -> None:
    names = ["cyd", "ada", "bob"]
    consumers = {name: RegisteredConsumer(name, 1, name) for name in names}
    consumers |= {name + "-late": RegisteredConsumer(name, 1, name, disconnected_at_ms=0) for name in names}

    found = find_expired(
        consumers,
        dict.fromkeys(consumers, 0.0),
        now_seconds=60,
        now_ms=60_000,
        heartbeat_interval_seconds=5,
        grace_seconds=60,
        lease_seconds=30,
    )

    assert ExpiredConsumers(("ada", "bob", "cyd"), ("ada-late", "bob-late", "cyd-late")) == found
