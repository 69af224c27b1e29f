"""Values as people read them."""

import pytest

from web.page import markup as units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (950, "950"),
        (9_999, "9 999"),
        (10_000, "10 k"),
        (12_345, "12.3 k"),
        (123_456, "123 k"),
        (999_600, "1 M"),
        (4_560_000, "4.56 M"),
        (10**17, "100 P"),
        (10**20, "100 000 P"),
    ],
)
def test_counts_have_three_digits_above_ten_thousand(value, text):
    assert units.count(value) == text
