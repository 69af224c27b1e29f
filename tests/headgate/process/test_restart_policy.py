"""How long a child process may take to start, and when it is started again."""

import pytest

from headgate.backoff import MAX_EXTENSION, MAX_START_TIMEOUT_SECONDS, Backoff, Failures, RestartPolicy

POLICY = RestartPolicy(
    start_timeout_seconds=100.0, stable_seconds=60.0, pauses=Backoff(first_seconds=1.0, longest_seconds=8.0, jitter=0.0)
)
End = tuple[float | None, bool]
"""How long it was ready, and whether its start exceeded the limit."""
TOO_SLOW: End = (None, True)
DIED_STARTING: End = (None, False)
DIED_SOON: End = (59.0, False)
DIED_LATE: End = (60.0, False)


def failures_after(*ends: End) -> Failures:
    failures = Failures()
    for ready_seconds, too_slow in ends:
        failures = POLICY.count_failure(failures, ready_seconds=ready_seconds, too_slow=too_slow)
    return failures


def test_a_sign_of_life_extends_the_start():
    assert POLICY.start_deadline(Failures(), 1000.0, 1000.0) == 1100.0
    assert POLICY.start_deadline(Failures(), 1000.0, 1090.0) == 1190.0


def test_a_start_that_never_stops_writing_is_ended():
    assert POLICY.start_deadline(Failures(), 1000.0, 9000.0) == 1000.0 + MAX_EXTENSION * 100.0


@pytest.mark.parametrize(
    ("slow_starts", "limit"),
    [
        (0, 100.0),
        (1, 200.0),
        (2, 400.0),
        (5, 3200.0),
        (6, MAX_START_TIMEOUT_SECONDS),
        (5000, MAX_START_TIMEOUT_SECONDS),
    ],
)
def test_each_slow_start_doubles_the_limit_of_the_next(slow_starts: int, limit: float):
    assert POLICY.start_timeout(failures_after(*[TOO_SLOW] * slow_starts)) == limit


def test_a_configured_limit_above_the_longest_is_kept():
    policy = RestartPolicy(start_timeout_seconds=7200.0)
    assert [policy.start_timeout(Failures(n, n)) for n in (0, 1)] == [7200.0, 7200.0]


@pytest.mark.parametrize("end", [TOO_SLOW, DIED_STARTING, DIED_SOON])
def test_every_failure_lengthens_the_pause_up_to_the_longest(end: End):
    pauses = [POLICY.pause_seconds(failures_after(*[end] * count), 0.5) for count in range(1, 6)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_starting_never_ends():
    assert POLICY.pause_seconds(Failures(in_a_row=10**6, slow_starts=10**6), 0.5) == 8.0


def test_a_process_that_ends_early_does_not_change_the_limit_of_the_next_start():
    assert POLICY.start_timeout(failures_after(TOO_SLOW, DIED_STARTING, DIED_SOON)) == 200.0


def test_pauses_and_limits_begin_again_after_a_process_that_was_ready_long_enough():
    failures = failures_after(TOO_SLOW, TOO_SLOW, DIED_STARTING, DIED_LATE)

    assert failures == Failures(in_a_row=1)
    assert POLICY.pause_seconds(failures, 0.5) == 1.0
    assert POLICY.start_timeout(failures) == 100.0
