"""Configures logging: one event per line on standard error, as JSON, or as text on a terminal.

Every line contains the instance name. What modules log through `logging` is forwarded: events of `headgate` with their
fields, and messages of libraries. Each library has its own level: kazoo logs every reconnection attempt, while the
daemon logs the loss and the recovery.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec
import structlog

import headgate
from headgate.log.event_log import LogEvent, short_value
from headgate.log.journal import PRIORITIES, journal_priority
from headgate.log.lossy_output import lossy

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict, WrappedLogger

    from controller.settings.sections import LogSettings

LIBRARY_LEVELS = {
    "kazoo": logging.ERROR,
    # Its errors are the reasons of headgate.transport.mqtt, once more at each attempt.
    "headgate.transport.paho": logging.CRITICAL,
    "aiohttp.access": logging.ERROR,
    "amqtt": logging.ERROR,
    "transitions": logging.ERROR,
    "py4j": logging.ERROR,
    "asyncio": logging.WARNING,
}
"""Minimum level per library; At level ``debug``, INFO for all."""
LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


class _Threshold:
    """The minimum level. Checked for each line, because bound loggers live longer than a setting."""

    def __init__(self) -> None:
        self.level = logging.INFO

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < self.level:
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


def shorten(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {name: short_value(value) for name, value in event.items()}


def json_renderer(stream: TextIO) -> Callable[[WrappedLogger, str, EventDict], bytes]:
    priorities = {level: journal_priority(level, stream).encode() for level in PRIORITIES}
    return lambda _, __, event: priorities[event["level"]] + msgspec.json.encode(event, enc_hook=repr)


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Levels of other libraries, such as 15, count as the next lower one of ours.
        level = next((level for level in LEVELS if level <= record.levelno), logging.DEBUG)
        log = structlog.get_logger()
        try:
            if isinstance(record.msg, LogEvent):
                log.log(level, record.msg.event, **record.msg.fields)
            else:
                log.log(level, record.name, message=record.getMessage(), exc_info=record.exc_info)
        except (OSError, ValueError, TypeError):
            # A closed stream or a wrong format string: report it as `logging` does, without raising.
            self.handleError(record)


def configure_logging(settings: LogSettings, stream: TextIO, *, instance: str = "") -> None:
    """Send all logs of this process to ``stream``. Call it once, before the first log line.

    A line that ``stream`` does not accept is lost and counted (headgate.log.lossy_output), and fails nothing.
    """
    stream = lossy(stream)
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())

    def add_instance(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if instance:
            event["instance"] = instance
        return event

    rendering: list[Any] = [
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            # The other formatters print local variables, which can contain passwords.
            exception_formatter=structlog.dev.plain_traceback,
        ),
    ]
    if as_json:
        rendering = [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            json_renderer(stream),
        ]
    structlog.configure(
        processors=[
            _threshold,
            structlog.contextvars.merge_contextvars,
            add_instance,
            structlog.processors.add_log_level,
            shorten,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.BytesLoggerFactory(stream.buffer) if as_json else structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    change_level(settings.level)


def change_level(name: Literal["debug", "info", "warning", "error"]) -> None:
    """Write only events of level ``name`` or above from now on."""
    level = _threshold.level = logging.getLevelNamesMapping()[name.upper()]
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Forward):
            root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(max(level, logging.INFO))
    logging.getLogger(headgate.__name__).setLevel(level)
    for library, quiet in LIBRARY_LEVELS.items():
        logging.getLogger(library).setLevel(logging.INFO if level == logging.DEBUG else max(quiet, level))
