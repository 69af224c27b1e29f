"""The priority that begins a line for systemd's journal, which takes it off, for `journalctl -p`."""

import os
from contextlib import suppress
from typing import TextIO

PRIORITIES = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}


def journal_priority(level: str, stream: TextIO) -> str:
    """Return what begins a line of ``level``; nothing if ``stream`` does not lead to the journal."""
    with suppress(OSError, ValueError):  # It has no file descriptor.
        found = os.fstat(stream.fileno())
        if os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}":  # A child process may have a file.
            return PRIORITIES[level]
    return ""
