"""Values as people read them."""

from __future__ import annotations

import pytest

from web.page import units


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


def test_an_estimate_is_marked():
    assert units.count(5, estimated=True) == "~5"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0/s"), (0.25, "0.2/s"), (9.96, "10.0/s"), (12.4, "12/s"), (1240.0, "1.24 k/s")],
)
def test_rates(value, text):
    assert units.rate(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (950, "950 B"), (1_234_000, "1.23 MB"), (5 * 10**9, "5 GB")])
def test_sizes(value, text):
    assert units.size(value) == text


def test_an_unknown_duration_is_marked():
    assert (units.duration(None), units.duration(180.0)) == ("-", "3 min")
