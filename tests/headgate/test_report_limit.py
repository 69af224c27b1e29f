"""An event that repeats is reported once in an interval for each of a limited number of causes."""

from __future__ import annotations

from headgate.report_limit import ReportLimit


def test_a_cause_is_reported_once_in_an_interval() -> None:
    limit = ReportLimit(60.0)

    assert [True, False, False, True, False] == [limit.is_due(now) for now in (0.0, 1.0, 59.9, 60.0, 119.9)]


def test_causes_are_reported_independently() -> None:
    limit = ReportLimit(60.0, max_causes=2)

    assert [True, True, False, False] == [limit.is_due(5.0, cause) for cause in "abab"]


def test_beyond_the_limit_of_causes_all_are_forgotten() -> None:
    limit = ReportLimit(float("inf"), max_causes=2)

    assert [True, True, True, True, False] == [limit.is_due(5.0, cause) for cause in "abcac"]
