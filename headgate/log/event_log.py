"""The library's own log: events with fields, through `logging`, below the logger ``headgate``.

That logger has a `logging.NullHandler`, so a program that has not configured logging sees nothing.
One that has gets ``broker.unreachable broker='h:1883'`` as text. A handler that wants the fields
finds them in `logging.LogRecord.msg`, as a `LogEvent`; the daemon renders them like its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.text import MAX_SHOWN, short_list

logging.getLogger("headgate").addHandler(logging.NullHandler())

MAX_TEXT = 2000
"""Characters of a field. Tracebacks are no fields, and stay whole."""


def short_value(value: object) -> object:
    """Return the value of a field. One that grows with segments, consumers or keys is shortened."""
    if isinstance(value, list | tuple | set | frozenset) and len(value) > MAX_SHOWN:
        return short_list(value)
    if isinstance(value, dict) and len(value) > MAX_SHOWN:
        return dict(list(value.items())[:MAX_SHOWN]) | {"…": f"and {len(value) - MAX_SHOWN} more"}
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… and {len(value) - MAX_TEXT} more characters"
    return value


@dataclass(frozen=True, slots=True)
class LogEvent:
    """What happened, as dotted nouns, and its data."""

    event: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={short_value(value)!r}" for name, value in self.fields.items())])


class EventLogger:
    def __init__(self, logger: logging.Logger, fields: Mapping[str, object]) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: object) -> EventLogger:
        return EventLogger(self._logger, {**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            # The caller of the method above is the place that a handler shows.
            self._logger.log(level, LogEvent(event, {**self._fields, **fields}), stacklevel=3)


def get_logger(name: str) -> EventLogger:
    return EventLogger(logging.getLogger(name), {})
