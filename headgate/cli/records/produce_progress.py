"""Progress and summary of commands that write or copy records."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TextIO

REFRESH_INTERVAL_SECONDS = 0.2


@dataclass(slots=True)
class OutcomeCounts:
    accepted: int = 0
    stored: int = 0
    failed: int = 0
    """Not stored, or unknown."""
    unknown: int = 0
    """Failed records that may have been stored."""
    skipped: int = 0
    blank: int = 0
    """Blank lines of a source of JSON, which are no records."""
    byte_order_marks: int = 0
    """Marks before the first line of a source, which are no part of it."""

    def progress(self) -> str:
        return f"{self.accepted} accepted, {self.stored} stored"

    def summary(self) -> str:
        text = f"accepted {self.accepted}, stored {self.stored}, failed {self.failed}"
        if self.unknown:
            text += f" ({self.unknown} may have been stored)"
        if self.skipped:
            text += f", skipped {self.skipped} invalid lines"
        if self.blank:
            text += f", {self.blank} blank line{'s' if self.blank > 1 else ''}"
        if self.byte_order_marks:
            text += f", {self.byte_order_marks} byte order mark{'s' if self.byte_order_marks > 1 else ''} removed"
        return text


class ProgressLine:
    """A progress bar on a terminal; nothing elsewhere. The caller refreshes it, so it needs no thread."""

    def __init__(self, text: Callable[[], str], total: int | None, stream: TextIO) -> None:
        """``total``: size of the input in bytes or records, as `advance_to` counts them; None: unknown."""
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        self._text = text
        self._bar = Progress(
            *(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            disable=not stream.isatty(),
        )
        self._task = self._bar.add_task("", total=total)
        self._before = 0
        self._offset = 0
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance_to(self, offset: int) -> None:
        """Record how far the current source has been read; a lower offset than before starts the next source."""
        if offset < self._offset:
            self._before += self._offset
        self._offset = offset
        self.refresh()

    def refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._bar.disable and now - self._drawn_at >= REFRESH_INTERVAL_SECONDS:
            self._drawn_at = now
            self._bar.update(self._task, completed=self._before + self._offset, description=self._text())
            self._bar.refresh()

    def print_line(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
