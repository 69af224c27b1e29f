"""What `headgate produce` says while it works, and at its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

REFRESH_INTERVAL_SECONDS = 0.2


@dataclass(slots=True)
class OutcomeCounts:
    """How many records came to what."""

    accepted: int = 0
    """Taken into the producer."""
    stored: int = 0
    """Durable."""
    failed: int = 0
    """Not stored, or not known to be."""
    unknown: int = 0
    """Of the failed: those that may have been stored all the same."""
    skipped: int = 0
    """Lines that made no record."""

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def summary(self) -> str:
        """Return one line for people."""
        text = f"accepted {self.accepted}, stored {self.stored}, failed {self.failed}"
        if self.unknown:
            text += f" ({self.unknown} may have been stored)"
        if self.skipped:
            text += f", skipped {self.skipped} bad lines"
        return text


class ProgressLine:
    """A bar on a terminal; nothing anywhere else. Refreshed by the caller, so that no thread draws."""

    def __init__(self, counts: OutcomeCounts, total_bytes: int | None, stream: TextIO) -> None:
        """``total_bytes`` None: nobody knows how much there is."""
        self._counts = counts
        self._total_bytes = total_bytes
        self._stream = stream
        self._bar: RichProgress | None = None
        self._before = 0
        self._offset = 0
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        """Draw for the first time, if there is a terminal."""
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
            self._bar.add_task("", total=self._total_bytes)
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away; the summary stays."""
        if self._bar is not None:
            self._bar.stop()

    def advance_to(self, offset: int) -> None:
        """Tell how far the current source has been read; a lower offset than before begins the next one."""
        if offset < self._offset:
            self._before += self._offset
        self._offset = offset
        self.refresh()

    def refresh(self) -> None:
        """Draw again, if it is time to."""
        if self._bar is None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._drawn_at >= REFRESH_INTERVAL_SECONDS:
            self._drawn_at = now
            text = f"{self._counts.accepted} accepted, {self._counts.stored} stored"
            self._bar.update(self._bar.task_ids[0], completed=self._before + self._offset, description=text)
            self._bar.refresh()

    def print_line(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream)
