"""Send records from any source to one topic, in order, and count the outcomes.

Rules:

1. At most `MAX_IN_FLIGHT` records wait for their outcome, which is awaited in the order of sending.
2. A rejected record ends the run, because the others would be rejected too. With ``ends_at_failure``, any record that
   was not stored does, so that the position of a named producer never passes it.
3. When it is cancelled, also after the last record, it waits for outcomes for `FLUSH_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from headgate.cli.records.produce_progress import OutcomeCounts, ProgressLine
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, FencedError, HeadgateError, RequestRejectedError
from headgate.process.background import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headgate import Producer
    from headgate.cli.records.ndjson import KeyedRecord
    from headgate.model.headers import Headers
    from headgate.reading.stored_rows import LedgerRecord

MAX_IN_FLIGHT = 20_000
"""Maximum number of records in flight. For large records, the producer's byte budget is the lower limit."""
FLUSH_TIMEOUT_SECONDS = 5.0
"""Longest wait, after Ctrl-C, for accepted records to be stored."""
REPORTED = 5
"""Number of failures and invalid lines that are printed; the rest is only counted."""


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
        self._outcomes: asyncio.Queue[tuple[str, Awaitable[object]]] = asyncio.Queue(MAX_IN_FLIGHT)

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
                else:
                    self._counts.accepted += 1
                    await self._outcomes.put((outgoing.where, outcome))
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
            self._outcomes.task_done()

    def _failed(self, where: str, error: HeadgateError) -> None:
        self._counts.failed += 1
        self._counts.unknown += isinstance(error, DeliveryUnknownError | FencedError)
        if self._counts.failed <= REPORTED:
            click.echo(f"headgate: {where}: {error}", err=True)
        fatal = isinstance(error, RequestRejectedError) or self._ends_at_failure
        if fatal and self.stop is None:
            self.stop = HeadgateError(f"stopped at {where}: {error}")
