"""What a library has logged, as a script sees it: a client command prints errors to one, and warnings to a terminal."""

import logging

import pytest

from headgate.log.event_log import LogEvent


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events of level ERROR, in order."""
    found = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return [record.msg.event for record in found if isinstance(record.msg, LogEvent)]
