"""Send records from any source to one topic, in order, and count the outcomes.

Rules:

1. At most `MAX_IN_FLIGHT` records wait for their outcome, which is awaited in the order of sending.
2. A rejected record ends the run, because the others would be rejected too. With ``ends_at_failure``, any record that
   was not stored does, so that the position of a named producer never passes it.
3. When it is cancelled, also after the last record, it waits for outcomes for `FLUSH_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

import click

from headgate.errors import DeliveryFailedError, DeliveryUnknownError, FencedError, HeadgateError, RequestRejectedError
from headgate.model.text import plural
from headgate.process.background import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headgate import Producer
    from headgate.cli.records.ndjson import KeyedRecord
    from headgate.model.headers import Headers
    from headgate.reading.stored_rows import LedgerRecord

REFRESH_INTERVAL_SECONDS = 0.2
MAX_IN_FLIGHT = 20_000
"""Maximum number of records in flight. For large records, the producer's byte budget is the lower limit."""
FLUSH_TIMEOUT_SECONDS = 5.0
"""Longest wait, after Ctrl-C, for accepted records to be stored."""
REPORTED = 5
"""Number of failures and invalid lines that are printed; the rest is only counted."""


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
            text += f", skipped {plural(self.skipped, 'invalid line')}"
        if self.blank:
            text += f", {plural(self.blank, 'blank line')}"
        if self.byte_order_marks:
            text += f", {plural(self.byte_order_marks, 'byte order mark')} removed"
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


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    where: str
    record: KeyedRecord | LedgerRecord
    headers: Headers
    position: bytes | None
    """How far a named producer has read its source with it."""


class RecordSender:
    def __init__(self, topic: str, counts: OutcomeCounts, progress: ProgressLine, *, ends_at_failure: bool) -> None:
        """Prepare a run that keeps ``counts`` and ``progress`` up to date."""
        self.stop: HeadgateError | None = None
        """Why the run must end; also set by the source of the records."""
        self._topic = topic
        self._counts = counts
        self._progress = progress
        self._ends_at_failure = ends_at_failure
        self._outcomes: asyncio.Queue[tuple[str, Awaitable[object]]] = asyncio.Queue()
        self._free = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def run(self, producer: Producer, records: AsyncGenerator[OutgoingRecord, None]) -> None:
        """Send all ``records`` and wait for all outcomes. Raises HeadgateError if something stopped it."""
        collecting = asyncio.get_running_loop().create_task(self._collect_outcomes(), name="collect-outcomes")
        try:
            with self._progress:
                try:
                    await self._send_all(producer, records)
                    await producer.flush()
                except asyncio.CancelledError:
                    # A second signal ends this wait. What has no outcome by then gets one, and is counted.
                    await producer.close(FLUSH_TIMEOUT_SECONDS)
                    await self._outcomes.join()
                    raise
                await self._outcomes.join()
        finally:
            await end_tasks(collecting)
        if self.stop is not None:
            raise self.stop

    async def _send_all(self, producer: Producer, records: AsyncGenerator[OutgoingRecord, None]) -> None:
        async with aclosing(records):
            async for outgoing in records:
                record = outgoing.record
                await self._free.acquire()  # Before it is sent: what was accepted is counted, also when cancelled.
                try:
                    outcome = await producer.send(
                        self._topic,
                        record.key,
                        record.value,
                        headers=outgoing.headers,
                        timestamp_ms=record.timestamp_ms,
                        source_position=outgoing.position,
                    )
                except (DeliveryFailedError, DeliveryUnknownError, RequestRejectedError) as error:
                    self._failed(outgoing.where, error)
                    self._free.release()
                else:
                    self._counts.accepted += 1
                    self._outcomes.put_nowait((outgoing.where, outcome))
                if self.stop is not None:
                    return

    async def _collect_outcomes(self) -> None:
        while True:
            where, outcome = await self._outcomes.get()
            try:
                await outcome
            except (DeliveryFailedError, DeliveryUnknownError, RequestRejectedError) as error:
                self._failed(where, error)
            else:
                self._counts.stored += 1
                self._progress.refresh()
            self._free.release()
            self._outcomes.task_done()

    def _failed(self, where: str, error: HeadgateError) -> None:
        self._counts.failed += 1
        self._counts.unknown += isinstance(error, DeliveryUnknownError | FencedError)
        if self._counts.failed <= REPORTED:
            click.echo(f"headgate: {where}: {error}", err=True)
        fatal = isinstance(error, RequestRejectedError) or self._ends_at_failure
        if fatal and self.stop is None:
            self.stop = HeadgateError(f"stopped at {where}: {error}")
