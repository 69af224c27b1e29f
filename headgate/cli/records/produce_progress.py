"""Progress and summary of commands that write or copy records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

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
    """Invalid lines."""
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
        self._text = text
        self._total = total
        self._stream = stream
        self._bar: RichProgress | None = None
        self._before = 0
        self._offset = 0
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
            from rich.progress import Progress as Bar  # noqa: PLC0415

            self._bar = Bar(
                BarColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
            self._bar.add_task("", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance_to(self, offset: int) -> None:
        """Record how far the current source has been read; a lower offset than before starts the next source."""
        if offset < self._offset:
            self._before += self._offset
        self._offset = offset
        self.refresh()

    def refresh(self) -> None:
        if self._bar is None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._drawn_at >= REFRESH_INTERVAL_SECONDS:
            self._drawn_at = now
            self._bar.update(self._bar.task_ids[0], completed=self._before + self._offset, description=self._text())
            self._bar.refresh()

    def print_line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream)
