"""Output that never fails: a service outlives its log. What a full disk or a closed pipe does not take is counted.

Every line is written at once, so nothing waits in a buffer that would fail again when the program ends.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_lost_lines = 0


def take_lost_lines() -> int:
    """Return how many lines this process has lost since the last call."""
    global _lost_lines
    lost, _lost_lines = _lost_lines, 0
    return lost


def lose_lines(count: int) -> None:
    global _lost_lines  # noqa: PLW0603 - as in `take_lost_lines`
    _lost_lines += count


class LossyFile(io.RawIOBase):
    """Writes to a file descriptor, which belongs to the caller."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._within_line = False

    def write(self, data: Any) -> int:
        """Write all of ``data``, or count what is lost. Returns its length in both cases."""
        view = memoryview(data)
        remaining = memoryview(b"\n" + bytes(view)) if self._within_line else view
        size = len(remaining)
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
            self._within_line = False
        except OSError:
            self._within_line |= len(remaining) < size
            lose_lines(max(1, bytes(remaining).count(b"\n")))
        return len(view)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Do nothing: a log line may follow."""


def lossy(stream: TextIO) -> TextIO:
    """Return a stream to the same file that never fails; ``stream`` itself if it has no file descriptor."""
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream
    file: Any = LossyFile(descriptor)  # The stream writes it through, so it needs no buffer.
    return io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", write_through=True)


@contextlib.contextmanager
def lossy_standard_output() -> Iterator[None]:
    """Let nothing that the program prints end it."""
    with contextlib.redirect_stdout(lossy(sys.stdout)), contextlib.redirect_stderr(lossy(sys.stderr)):
        yield
