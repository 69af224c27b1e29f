"""How pauses rise, between which bounds they are drawn, and when they start again; when a report is due."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.backoff import Backoff, BackoffSchedule, ConditionReport, ReportLimit

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
