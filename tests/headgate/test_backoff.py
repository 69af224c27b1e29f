"""How pauses rise, between which bounds they are drawn, and when they start again; when a report is due."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.backoff import (
    MAX_EXTENSION,
    MAX_START_TIMEOUT_SECONDS,
    Backoff,
    BackoffSchedule,
    ConditionReport,
    Failures,
    ReportLimit,
    RestartPolicy,
)

DRAWS = st.floats(min_value=0, max_value=1)


def test_bounds_double_up_to_the_longest() -> None:
    backoff = Backoff(first_seconds=0.1, longest_seconds=2.0)

    assert (0.1, 0.2, 0.4, 0.8, 1.6, 2.0) == backoff.bounds_seconds
    assert 2.0 == backoff.bound_seconds(1_000_000)


@pytest.mark.parametrize(
    ("jitter", "lowest"), [(0.0, 2.0), (0.1, 1.8), (0.5, 1.0), (1.0, 0.25)], ids=["none", "slight", "half", "full"]
)
def test_jitter_is_the_random_part_of_a_pause(jitter: float, lowest: float) -> None:
    backoff = Backoff(first_seconds=2, longest_seconds=900, jitter=jitter, shortest_seconds=0.25)

    assert lowest == pytest.approx(backoff.seconds(0, 0.0))
    assert 2 == backoff.seconds(0, 1.0)


@given(failures=st.integers(0, 10_000), draw=DRAWS, jitter=DRAWS)
def test_no_pause_is_shorter_than_the_shortest_or_longer_than_its_bound(failures: int, draw: float, jitter: float):
    backoff = Backoff(first_seconds=2, longest_seconds=900, jitter=jitter, shortest_seconds=2)

    assert 2 <= backoff.seconds(failures, draw) <= backoff.bound_seconds(failures) + 1e-9


def test_a_schedule_rises_with_each_failure_and_starts_again_after_a_success() -> None:
    schedule = BackoffSchedule(Backoff(first_seconds=1, longest_seconds=4, jitter=0), random.Random(1).random)

    assert [1, 2, 4, 4] == [schedule.next_seconds() for _ in range(4)]
    schedule.reset()
    assert 1 == schedule.bound_seconds == schedule.next_seconds()


def test_a_cause_is_reported_once_in_an_interval() -> None:
    limit = ReportLimit(60.0)

    assert [True, False, False, True, False] == [limit.is_due(now) for now in (0.0, 1.0, 59.9, 60.0, 119.9)]


def test_causes_are_reported_independently() -> None:
    limit = ReportLimit(60.0, max_causes=2)

    assert [True, True, False, False] == [limit.is_due(5.0, cause) for cause in "abab"]


def test_beyond_the_limit_of_causes_all_are_forgotten() -> None:
    limit = ReportLimit(float("inf"), max_causes=2)

    assert [True, True, True, True, False] == [limit.is_due(5.0, cause) for cause in "abcac"]


def test_a_condition_that_lasts_is_reported_ever_less_often_and_each_change_at_once() -> None:
    report = ConditionReport(Backoff(first_seconds=60.0, longest_seconds=240.0))
    lasting = [now for now in range(0, 1200, 15) if report.is_due(float(now), "a gap")]

    assert [0, 60, 180, 420, 660, 900, 1140] == lasting
    assert [True, False, False, True] == [
        report.is_due(1200.0, each) for each in ("damaged", "damaged", None, "damaged")
    ]


# How long a child process may take to start, and when it is started again.


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
