"""Quotas as values: which limits a user has, and what its rates allow."""

import math

import pytest

from shard.access import quotas

TEN = quotas.Limits(requests_per_second=10, bytes_per_second=1000)


def spent(requests: int, size_bytes: int = 1, limits: quotas.Limits = TEN, now: float = 100.0) -> quotas.Spending:
    spending = quotas.Spending(limits=limits)
    for _ in range(requests):
        spending = spending.request(size_bytes, now)
    return spending


@pytest.mark.parametrize(
    ("of_roles", "own", "topics"),
    [
        ([], {}, 1000),
        ([{"topics": 7}], {}, 7),
        ([{"topics": 7}, {"topics": 9}], {}, 9),
        ([{"topics": 9}, {"topics": 7}], {}, 9),
        ([{"topics": 9}, {}], {"topics": 3}, 3),
        ([{"topics": math.inf}], {}, math.inf),
    ],
)
def test_a_users_own_limit_comes_before_its_most_generous_role_and_that_before_the_default(
    of_roles: list, own: dict, topics: float
) -> None:
    assert topics == quotas.limits_of_user(quotas.DEFAULT_LIMITS, of_roles, own).topics


def test_every_quota_has_a_limit() -> None:
    assert all(quotas.DEFAULT_LIMITS.of(quota) > 0 for quota in quotas.QUOTAS)
    assert {math.inf} == {quotas.UNLIMITED.of(quota) for quota in quotas.QUOTAS}
    assert str(quotas.DEFAULT_LIMITS.changed({"topics": math.inf})).startswith("topics unlimited, segments 10000, ")


def test_a_burst_is_not_delayed_and_a_debt_is_paid_by_waiting() -> None:
    assert spent(10).debt_seconds(100.0) <= 0
    assert spent(11).debt_seconds(100.0) == pytest.approx(0.1)
    assert spent(15).debt_seconds(100.5) <= 0
    assert spent(15).debt_seconds(100.4) == pytest.approx(0.1)


def test_idle_time_saves_no_more_than_a_burst() -> None:
    earlier = spent(1, now=0.0)
    for _ in range(11):
        earlier = earlier.request(1, 100.0)

    assert earlier.debt_seconds(100.0) == pytest.approx(0.1)


def test_the_longest_debt_decides() -> None:
    assert "requests_per_second" == spent(25).exceeded(100.0)
    assert "bytes_per_second" == spent(5, size_bytes=500).exceeded(100.0)


def test_a_request_is_refused_beyond_the_longest_delay_and_accepted_again_later() -> None:
    most = int((quotas.BURST_SECONDS + quotas.MAX_DELAY_SECONDS) * 10)

    assert spent(most).exceeded(100.0) is None
    assert spent(most + 1).exceeded(100.0) is not None
    assert spent(most + 1).exceeded(100.2) is None


def test_a_request_larger_than_a_burst_is_accepted_too() -> None:
    """Otherwise it could never be sent."""
    assert spent(1, size_bytes=60_000).exceeded(101.0) == "bytes_per_second"
    assert spent(1, size_bytes=60_000).exceeded(158.1) is None


def test_an_unlimited_rate_costs_nothing() -> None:
    assert spent(1000, size_bytes=10**9, limits=quotas.UNLIMITED).debt_seconds(100.0) <= -quotas.BURST_SECONDS


def test_what_was_sent_counts_at_the_present_rate() -> None:
    owing, doubled = spent(1, size_bytes=60_000), TEN.changed({"bytes_per_second": 2000})
    assert [60, 30, 0] == [
        round(owing.under(limits, 100.0).bytes_until - 100) for limits in (TEN, doubled, quotas.UNLIMITED)
    ]
    assert quotas.UNLIMITED == owing.under(quotas.UNLIMITED, 100.0).limits
    assert spent(9, limits=quotas.UNLIMITED).under(TEN, 100.0).debt_seconds(100.0) <= 0


def test_so_many_refusals_are_answered() -> None:
    spending, answered = quotas.Spending(), 0
    for _ in range(2 * int(quotas.MAX_REFUSALS_PER_SECOND)):
        if spending.may_answer_refusal(100.0):
            spending, answered = spending.refusal(100.0), answered + 1

    assert answered == pytest.approx(quotas.MAX_REFUSALS_PER_SECOND, abs=1)
    assert [False, True] == [spending.may_answer_refusal(at) for at in (100.0, 100.1)]


def test_a_refusal_adds_nothing_to_the_debt() -> None:
    """A user whose every request is refused is accepted again once it has paid."""
    refused = owing = spent(25)
    for _ in range(100):
        refused = refused.refusal(100.0)

    assert refused.debt_seconds(100.0) == owing.debt_seconds(100.0)


def test_the_text_says_what_is_exceeded_and_what_to_do() -> None:
    assert quotas.exceeded_text("shop", "topics", 5, 5) == (
        "user shop has 5 topics on this shard, and its quota topics is 5: delete some, or raise the quota in the access "
        "file"
    )
    assert quotas.exceeded_text("shop", "requests_per_second", 5) == (
        "user shop exceeds its quota requests_per_second of 5 on this daemon: send less, or raise the quota in the "
        "access file"
    )
