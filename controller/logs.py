"""Logs: one event a line on standard error, JSON for machines and text for people.

Events are dotted nouns with data beside them. The name of the instance is put on every line here, so nobody else has
to. What libraries write through `logging` comes out in the same form, quieted to what an operator can act on: kazoo
tells of every attempt to reconnect, where we tell of the loss and of the return.

Nothing is decided here about what is worth a line.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec
import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

    from controller.settings.load import LogSettings

LIBRARY_LEVELS = {
    "kazoo": logging.ERROR,
    "mqtt": logging.ERROR,
    "aiohttp.access": logging.ERROR,
    "amqtt": logging.ERROR,
    "transitions": logging.ERROR,
    "py4j": logging.ERROR,
    "asyncio": logging.WARNING,
}
"""Least level of each library's own lines; "mqtt" is aiomqtt's logger. At level ``debug`` they all begin at INFO."""


class _Threshold:
    """Least level that is written. Loggers are bound once and kept, so it is looked up line by line."""

    def __init__(self) -> None:
        self.level = logging.INFO

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < self.level:
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


class _Forward(logging.Handler):
    """Takes what libraries log and says it in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        said = log.error if record.levelno >= logging.ERROR else log.warning
        if record.levelno < logging.WARNING:
            said = log.info
        try:
            said(record.name, message=record.getMessage(), exc_info=record.exc_info)
        except (OSError, ValueError, TypeError):
            # A closed stream or a library's wrong format string: logging's own last resort, never an exception.
            self.handleError(record)


def configure_logging(settings: LogSettings, stream: TextIO, *, instance: str = "") -> None:
    """Send all logs of this process to ``stream``. Call it once, before anything is logged."""
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())

    def add_instance(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if instance:
            event["instance"] = instance
        return event

    shared: list[Any] = [
        _threshold,
        structlog.contextvars.merge_contextvars,
        add_instance,
        structlog.processors.add_log_level,
    ]
    if as_json:
        structlog.configure(
            processors=[
                *shared,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(serializer=_to_json),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            logger_factory=structlog.BytesLoggerFactory(stream.buffer),
            cache_logger_on_first_use=True,
        )
    else:
        structlog.configure(
            processors=[
                *shared,
                structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
                structlog.dev.ConsoleRenderer(
                    colors=stream.isatty(),
                    # The other formatters print local variables, and one of them may be a password.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            logger_factory=structlog.PrintLoggerFactory(stream),
            cache_logger_on_first_use=True,
        )
    change_level(settings.level)


def change_level(name: Literal["debug", "info", "warning", "error"]) -> None:
    """Write what is of level ``name`` or above, from now on."""
    _threshold.level = logging.getLevelNamesMapping()[name.upper()]
    _forward_libraries(_threshold.level)


def _to_json(event: EventDict, **_: Any) -> bytes:
    return msgspec.json.encode(event, enc_hook=repr)


def _forward_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Forward):
            root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(max(level, logging.INFO))
    for name, quiet in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(logging.INFO if level == logging.DEBUG else max(quiet, level))
