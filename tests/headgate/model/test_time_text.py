"""Times that a person or a program has written."""

from typing import get_args

import pytest

from headgate.model.time_text import EXAMPLES, TimeUnit, duration, time_ms

AT_MS = 1_769_882_400_000
UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
NUMBERS = {"s": "1769882400", "ms": "1769882400000", "us": "1769882400000000", "ns": "1769882400000000999"}


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-01-31T18:00:00Z", AT_MS),
        ("2026-01-31T19:00:00.250+01:00", AT_MS + 250),
        ("2026-01-31T18:00:00.000999Z", AT_MS),
        ("1769882400s", AT_MS),
        ("1.7698824e9s", AT_MS),
        ("1769882400000.75ms", AT_MS),
        ("1990-01-01T00:00:00Z", 631_152_000_000),
        ("2099-12-31T23:59:59.999Z", 4_102_444_799_999),
    ],
)
def test_a_time_is_rounded_down_to_milliseconds(text: str, at_ms: int):
    assert at_ms == time_ms(text) == time_ms(text, "us"), "the unit is only for numbers that have none"


@pytest.mark.parametrize("unit", UNITS)
def test_a_number_in_a_wrong_unit_is_years_away_and_refused(unit: TimeUnit):
    number = NUMBERS[unit]
    assert AT_MS == time_ms(number, unit) == time_ms(number + unit)
    for other in set(UNITS) - {unit}:
        with pytest.raises(ValueError, match=f"is not between 1990 and 2100 in {other} "):
            time_ms(number, other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("noon", "'noon' is not a time"),
        ("", "'' is not a time"),
        ("1769882400h", "is not a time"),
        ("2026-01-31", "has no time zone"),
        ("2026-01-31T18:00:00", "has no time zone"),
        ("1769882400", "has no unit"),
        ("-1ms", "is not between 1990 and 2100 in ms"),
        ("1e9999s", "is not between 1990 and 2100 in s"),
        ("1e" + "9" * 99 + "s", "is not between 1990 and 2100 in s"),
        ("9" * 5000 + "s", f"'{'9' * 40}…' is not between 1990 and 2100"),
        ("1989-12-31T23:59:59Z", "is not between 1990 and 2100"),
        ("2100-01-01T00:00:00Z", "is not between 1990 and 2100"),
        ("0001-01-01T00:00:00+23:59", "is not between 1990 and 2100"),
    ],
)
def test_what_is_no_time_is_named_with_what_is_wrong_and_examples(text: str, problem: str):
    with pytest.raises(ValueError) as error:
        time_ms(text)

    assert problem in str(error.value)
    assert str(error.value).endswith(f"; write for example {EXAMPLES}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0.0 s"),
        (0.04, "0.0 s"),
        (0.44, "0.4 s"),
        (1, "1 s"),
        (1.6, "2 s"),
        (12.2, "12 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (170_999, "47 h"),
        (171_000, "48 h"),
        (172_799, "48 h"),
        (172_800, "2 days"),
        (216_000, "2 days"),
        (300_000, "3 days"),
        (302_400, "4 days"),
    ],
)
def test_durations_have_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
