"""Durations as people read them."""

import pytest

from headgate.model.time_text import duration


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
