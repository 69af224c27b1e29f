"""When a leader must refuse a command, by the clock of its term."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.client.decisions.leader_belief import CommandDeadline

seconds = st.floats(0, 1000)


def test_the_first_attempt_in_a_term_asks_for_its_age() -> None:
    limit = CommandDeadline(deadline=10.0)
    assert limit.learn(7, 60_000, now=4.0)

    assert [0, 66_000, 0] == [limit.max_term_age_ms(epoch) for epoch in (6, 7, 8)]


@given(began=seconds, timeout=seconds, request_takes=seconds, reply_takes=seconds)
def test_the_leader_refuses_no_later_than_the_client_gives_up(
    began: float, timeout: float, request_takes: float, reply_takes: float
) -> None:
    """``began``: how long the term lasts when the client begins, by any clock of the same speed."""
    limit = CommandDeadline(deadline=timeout)
    limit.learn(1, int((began + request_takes) * 1000), now=request_takes + reply_takes)

    given_up_at_age_ms = (began + max(timeout, request_takes)) * 1000
    assert limit.max_term_age_ms(1) <= given_up_at_age_ms + 0.001


def test_a_later_refusal_in_the_same_term_changes_nothing() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.learn(7, 1000, now=1.0)

    assert not limit.learn(7, 5000, now=1.0)
    assert 10_000 == limit.max_term_age_ms(7)


def test_a_command_can_be_executed_once_an_attempt_had_a_limit_that_is_ahead() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.sent(7)
    assert not limit.may_be_executed
    limit.learn(7, 1000, now=1.0)
    limit.sent(7)
    assert limit.may_be_executed


def test_after_the_deadline_the_limit_is_the_age_of_the_term() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.learn(7, 1000, now=12.0)

    assert 1000 == limit.max_term_age_ms(7)
