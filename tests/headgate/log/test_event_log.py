"""What a program that configures `logging` gets from the library."""

import json
import logging

import pytest

from headgate.log.event_log import LogEvent, get_logger
from headgate.settings.command_parser import asks_for_json, error_line


def test_a_handler_gets_text_fields_and_the_place(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("headgate.x").bind(broker="h:1").warning("broker.unreachable", reason="no route")

    (record,) = caplog.records
    assert ("headgate.x", logging.WARNING) == (record.name, record.levelno)
    assert "broker.unreachable broker='h:1' reason='no route'" == record.getMessage()
    assert LogEvent("broker.unreachable", {"broker": "h:1", "reason": "no route"}) == record.msg
    assert __file__ == record.pathname


def test_binding_does_not_change_the_logger_that_was_bound(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("headgate.x")
    log.bind(shard=1)
    log.error("gone")

    assert ["gone"] == [record.getMessage() for record in caplog.records]


def test_a_level_that_is_disabled_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    log = get_logger("headgate.x")
    log.debug("quiet")
    log.info("loud")

    assert ["loud"] == [record.getMessage() for record in caplog.records]


# The one line on standard error, for people and for programs.


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
