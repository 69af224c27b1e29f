"""An event that repeats is reported once in an interval for each of a limited number of causes."""

from headgate.log.report_limit import ConditionReport, ReportLimit


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
    report = ConditionReport(first_seconds=60.0, longest_seconds=240.0)
    lasting = [now for now in range(0, 1200, 15) if report.is_due(float(now), "a gap")]

    assert [0, 60, 180, 420, 660, 900, 1140] == lasting
    assert [True, False, False, True] == [
        report.is_due(1200.0, each) for each in ("damaged", "damaged", None, "damaged")
    ]
