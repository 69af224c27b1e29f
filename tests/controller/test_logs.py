"""Logs: the form on and off a terminal, the instance on every line, libraries quieted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from controller.logs import LIBRARY_LEVELS, change_level, configure_logging
from controller.settings.load import LogSettings


class Stream(io.TextIOWrapper):
    """A text stream over memory that may say that it is a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        """Return all that was written."""
        return self.buffer.getvalue().decode()

    def events(self) -> list[dict[str, object]]:
        """Return all lines as JSON."""
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    """Put logging back as it was: it is global."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in LIBRARY_LEVELS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


def test_off_a_terminal_each_event_is_one_json_object_with_the_instance():
    stream = Stream()
    configure_logging(LogSettings(), stream, instance="node-1")

    structlog.get_logger("x").info("term.started", shard=3, odd=ValueError("two\nlines"))

    (event,) = stream.events()
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "term.started",
        "shard": 3,
        "odd": "ValueError('two\\nlines')",
        "instance": "node-1",
        "level": "info",
    }


def test_on_a_terminal_it_is_text():
    stream = Stream(terminal=True)
    configure_logging(LogSettings(), stream, instance="node-1")

    structlog.get_logger("x").info("term.started", shard=3)

    assert "term.started" in stream.text()
    assert not stream.text().startswith("{")


@pytest.mark.parametrize(("chosen", "terminal", "as_json"), [("json", True, True), ("text", False, False)])
def test_a_chosen_format_wins_over_the_terminal(chosen: str, terminal: bool, as_json: bool):
    stream = Stream(terminal=terminal)
    configure_logging(LogSettings(format=chosen), stream)

    structlog.get_logger("x").warning("said")

    assert stream.text().startswith("{") is as_json


def test_what_is_below_the_level_is_not_written():
    stream = Stream()
    configure_logging(LogSettings(level="warning"), stream)

    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")

    assert [event["event"] for event in stream.events()] == ["loud"]


@pytest.mark.parametrize("library", ["kazoo.client", "mqtt", "py4j.java_gateway"])
def test_libraries_are_quiet_until_something_fails(library: str):
    stream = Stream()
    configure_logging(LogSettings(), stream, instance="node-1")

    logging.getLogger(library).warning("reconnecting")
    logging.getLogger(library).error("gave up after %d", 3)

    (event,) = stream.events()
    assert (event["event"], event["message"], event["level"]) == (library, "gave up after 3", "error")
    assert event["instance"] == "node-1"


def test_debug_lets_libraries_speak():
    stream = Stream()
    configure_logging(LogSettings(level="debug"), stream)

    logging.getLogger("kazoo.client").info("connecting")

    assert [event["message"] for event in stream.events()] == ["connecting"]


@pytest.mark.parametrize("chosen", ["json", "text"])
def test_an_exception_is_told_without_the_values_of_variables(chosen: str):
    stream = Stream()
    configure_logging(LogSettings(format=chosen), stream)
    password = "hunter" + "2"

    try:
        [][len(password)]
    except IndexError:
        structlog.get_logger("x").exception("broker.lost")

    assert "IndexError: list index out of range" in stream.text()
    assert password not in stream.text()


def test_configuring_twice_does_not_double_lines():
    first, second = Stream(), Stream()
    configure_logging(LogSettings(), first)
    configure_logging(LogSettings(), second)

    logging.getLogger("somebody").warning("once")

    assert len(second.events()) == 1
    assert first.events() == []


def test_a_wrong_format_string_of_a_library_does_not_raise(capsys: pytest.CaptureFixture[str]):
    configure_logging(LogSettings(), Stream())
    # pytest's own handlers do raise.
    del logging.getLogger().handlers[:-1]

    logging.getLogger("somebody").warning("%d", "x")

    assert "Logging error" in capsys.readouterr().err


def test_the_level_changes_for_loggers_that_are_in_use():
    """They are bound once and kept for the life of a reign."""
    stream = Stream()
    configure_logging(LogSettings(level="warning"), stream)
    log = structlog.get_logger("x").bind(shard=3)
    log.info("one")
    change_level("debug")
    log.debug("two")
    logging.getLogger("kazoo").info("three")
    change_level("error")
    log.warning("four")
    log.error("five")

    assert ["two", "kazoo", "five"] == [event["event"] for event in stream.events()]
