"""The one line on standard error, for people and for programs."""

import json

import pytest

from headgate.settings.command_parser import asks_for_json, error_line


def test_people_get_one_line():
    assert error_line("two\n  lines", 1, as_json=False) == "headgate: two lines"


def test_programs_get_one_object():
    line = error_line('no "topic"\nhere…', 2, as_json=True)

    assert "\n" not in line
    assert json.loads(line) == {"error": 'no "topic" here…', "exit_code": 2}
    assert "…" in line, "text for people stays readable"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topic", "list", "--json"], True),
        (["topic", "lsit", "--json", "x"], True),
        (["topic", "list"], False),
        (["topic", "describe", "--", "--json"], False),
    ],
    ids=["an option", "of a command that does not exist", "absent", "a name"],
)
def test_json_is_asked_for_with_the_option(arguments, expected):
    assert asks_for_json(arguments) is expected
