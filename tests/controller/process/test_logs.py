"""Log lines: their format, their level, the instance, and libraries."""

import io
import json
import logging
import os
from typing import Any

import pytest
import structlog

from controller.process.logs import change_level, configure_logging
from controller.settings.sections import LogSettings
from headgate.log.event_log import get_logger
from headgate.settings.command_parser import error_line


class Stream(io.TextIOWrapper):
    """A text stream in memory."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode()

    def events(self) -> list[dict[str, object]]:
        """Return the written lines, decoded from JSON."""
        return [json.loads(line) for line in self.text().splitlines()]


def configured(**settings: Any) -> Stream:
    """Configure logging of instance node-1, and return the stream that it writes to."""
    stream = Stream()
    configure_logging(LogSettings(**settings), stream, instance="node-1")
    return stream


def test_without_a_terminal_each_event_is_one_json_object_with_the_instance():
    stream = configured()

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


def test_fields_that_grow_with_segments_are_shortened_and_tracebacks_are_not():
    stream = configured()
    structlog.get_logger("x").warning("late", segments=list(range(4096)), text="é" * 9000, few=[1, 2])
    get_logger("headgate.x").warning("late", segments=tuple(range(4096)), loads=dict.fromkeys(range(1024), 1))

    first, second = stream.events()
    assert second["loads"] == {str(shard): 1 for shard in range(10)} | {"…": "and 1014 more"}
    assert first["segments"] == second["segments"] == [*range(10), "… and 4086 more"]
    assert len(first["text"]) < 2100
    assert (first["text"][-26:], first["few"]) == ("… and 7000 more characters", [1, 2])


@pytest.mark.parametrize("library", ["kazoo.client", "py4j.java_gateway"])
def test_libraries_log_only_errors(library: str):
    stream = configured()

    logging.getLogger(library).warning("reconnecting")
    logging.getLogger(library).error("gave up after %d", 3)

    (event,) = stream.events()
    assert (event["event"], event["message"], event["level"]) == (library, "gave up after 3", "error")
    assert event["instance"] == "node-1"


def test_events_of_the_library_keep_their_fields_and_level():
    stream = configured(level="debug")

    get_logger("headgate.transport.mqtt").bind(broker="h:1").debug("broker.pinged", attempt=2)

    (event,) = stream.events()
    assert ("broker.pinged", "debug", "h:1", 2) == tuple(event[key] for key in ("event", "level", "broker", "attempt"))
    assert "node-1" == event["instance"]


@pytest.mark.parametrize("chosen", ["json", "text"])
def test_an_exception_is_logged_without_local_variables(chosen: str):
    stream = configured(format=chosen)
    password = "hunter" + "2"

    try:
        [][len(password)]
    except IndexError:
        structlog.get_logger("x").exception("broker.lost")

    assert "IndexError: list index out of range" in stream.text()
    assert password not in stream.text()


def test_a_wrong_format_string_of_a_library_does_not_raise(capsys: pytest.CaptureFixture[str]):
    configured()
    # The handlers of pytest do raise.
    del logging.getLogger().handlers[:-1]

    logging.getLogger("library").warning("%d", "x")

    assert "Logging error" in capsys.readouterr().err


def test_a_line_for_the_journal_begins_with_its_priority_which_the_journal_takes_off(tmp_path, monkeypatch):
    with (tmp_path / "journal").open("w") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        configure_logging(LogSettings(), stream)
        structlog.get_logger("x").info("term.started")
        get_logger("headgate.x").error("late")
        monkeypatch.setattr("sys.stderr", stream)
        print(error_line("why it ends", 1, as_json=False), file=stream)

    assert ["<6>{", "<3>{", "<3>h"] == [line[:4] for line in (tmp_path / "journal").read_text().splitlines()]


def test_the_level_changes_for_bound_loggers():
    """They live as long as a term."""
    stream = configured(level="warning")
    log = structlog.get_logger("x").bind(shard=3)
    log.info("one")
    change_level("debug")
    log.debug("two")
    logging.getLogger("kazoo").info("three")
    change_level("error")
    log.warning("four")
    log.error("five")

    assert ["two", "kazoo", "five"] == [event["event"] for event in stream.events()]
