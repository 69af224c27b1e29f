"""What the users of one daemon have spent of their rates."""

from structlog.testing import capture_logs

from controller.access.control import AccessControl
from metrics.events import NoopObserver
from shard.access.quotas import DEFAULT_LIMITS, Limits
from shard.access.rules import OPEN, AccessRules, Right, Role
from shard.subscriptions.refusal import refuse

FOUR = Limits(requests_per_second=4)
RULES = AccessRules({"shop": (Right(Role.PRODUCER),), "alice": (Right(Role.ADMINISTRATOR),)}, default_limits=FOUR)


def limited(rules: AccessRules = RULES) -> AccessControl:
    return AccessControl(rules, NoopObserver())


def admitted(rates: AccessControl, user: str, now: float = 100.0) -> int:
    """Return how many of 50 requests at once are admitted."""
    return sum(rates.admit(f"{user}/program", 10, now, full=False) is None for _ in range(50))


def test_users_spend_separately() -> None:
    rates = limited()

    assert (9, 9) == (admitted(rates, "shop"), admitted(rates, "alice"))
    assert [1.0, 0.0] == [rates.delay_seconds("shop", at) for at in (100.0, 200.0)]


def test_unknown_users_spend_together() -> None:
    """Their number has no limit without the broker's list."""
    rates = limited()

    assert 9 == sum(admitted(rates, f"made-up-{n}") for n in range(20))
    assert 1 == len(rates._spending)
    assert 9 == admitted(rates, "shop")


def test_without_access_control_nothing_is_limited() -> None:
    rates = limited(OPEN)

    assert (50, 0.0) == (admitted(rates, "shop"), rates.delay_seconds("shop", 100.0))


def test_a_user_may_have_another_rate_at_any_time_and_what_it_has_sent_counts_at_that() -> None:
    rates = limited()
    assert 9 == admitted(rates, "shop")
    generous = AccessRules(RULES.users, limits={"shop": DEFAULT_LIMITS}, default_limits=FOUR)

    rates.rules = generous
    assert 50 == admitted(rates, "shop")
    rates.rules = RULES
    assert [0, 0, 2] == [admitted(rates, "shop", now) for now in (100.0, 112.0, 113.1)]


def test_other_rules_forget_users_that_are_removed_and_which_refusals_were_logged() -> None:
    rates = limited()
    admitted(rates, "shop")
    with capture_logs() as logs:
        for reason in ("may not", "may not", "may not any more"):
            if reason.endswith("more"):
                rates.rules = AccessRules({"alice": (Right(Role.ADMINISTRATOR),)})
            rates.report_refused("shop/program", "produce_batch", refuse("forbidden", reason), 100.0)

    assert not rates._spending
    assert ["may not", "may not any more"] == [each["reason"] for each in logs]


def test_a_refusal_names_the_rate_and_is_not_answered_while_no_reply_can_wait() -> None:
    rates = limited()
    admitted(rates, "shop")
    refused = rates.admit("shop/program", 10, 100.0, full=False)
    full = rates.admit("alice/program", 10, 100.0, full=True)

    assert (refused.quota, refused.limit, refused.answered) == ("requests_per_second", 4, True)
    assert "user shop exceeds its quota requests_per_second of 4" in refused.reason
    assert not full.answered
