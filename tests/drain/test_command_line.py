"""The durations that the options of drain/ accept."""

import argparse

import pytest

from drain.command_line import seconds


@pytest.mark.parametrize(("text", "expected"), [("0", 0.0), ("2.5", 2.5), ("31536000", 31_536_000.0)])
def test_a_duration_is_a_number_of_seconds_up_to_a_year(text: str, expected: float) -> None:
    assert expected == seconds(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "31536001", "soon"])
def test_anything_else_is_an_error_of_the_option(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        seconds(text)
