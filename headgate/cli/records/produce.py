"""`headgate produce`: write lines to a topic, newline-delimited JSON or others, one record per line.

Rules:

1. An invalid line stops the command with an error that names it. All lines before it are still sent and counted. With
   ``--skip-bad-lines``, invalid lines are counted and reported instead.
2. The summary counts records: accepted by the producer, stored (durable) and failed. Any failure sets exit code 1.
3. With ``--name``, each record carries its position in the file, and the next run starts after the last stored record.
   The first failure stops the command, so that the position never passes a record that was not stored.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import topic_argument
from headgate.cli.context import CommandContext, with_context
from headgate.cli.records import ndjson as lines
from headgate.cli.records.produce_progress import OutcomeCounts, ProgressLine
from headgate.cli.terminal.async_stdio import read_blocks
from headgate.cli.terminal.output import examples, print_json
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError, RequestRejectedError
from headgate.protocol.messages import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headgate import Producer

MAX_IN_FLIGHT = 20_000
"""Maximum number of records in flight. For large records, the producer's byte budget is the lower limit."""
FLUSH_TIMEOUT_SECONDS = 5.0
"""Longest wait, after Ctrl-C, for accepted records to be stored."""
REPORTED = 5
"""Number of failures and invalid lines that are printed; the rest is only counted."""


@click.command(
    epilog=examples(
        "headgate produce orders --key-field id events.ndjson",
        "tail -f app.log | headgate produce logs --key-field host --skip-bad-lines",
        "headgate produce orders --key-field customer.id --name import-1 events.ndjson",
        "headgate read orders --format '%k\\t%v\\n' | headgate produce copies --key-separator '\\t'",
    ),
)
@topic_argument
@click.argument("files", metavar="[FILE…|-]", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--key-field", metavar="FIELD", help="Field that contains the key; a.b is field b inside field a.")
@click.option("--key", metavar="TEXT", help="Use this key for every record, instead of --key-field.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The key is what precedes this text in the line (\\t is a tab), the value what follows; not only JSON.",
)
@click.option("--raw", is_flag=True, help="With --key: lines need not be JSON.")
@click.option(
    "--timestamp-field", metavar="FIELD", help="Field with the timestamp: milliseconds since 1970, or ISO 8601."
)
@click.option("--skip-bad-lines", is_flag=True, help="Skip invalid lines: count and report them.")
@click.option(
    "--name",
    metavar="NAME",
    help="Producer name. The next run with this name and file starts after the last stored record.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON document.")
@with_context
def produce(
    context: CommandContext,
    *,
    topic: str,
    files: tuple[Path, ...],
    key_field: str | None,
    key: str | None,
    key_separator: str | None,
    raw: bool,
    timestamp_field: str | None,
    skip_bad_lines: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """Write lines from FILEs, or standard input, to TOPIC: newline-delimited JSON, or any text.

    Each line is one record. Its value is the unchanged line, its key is the text of one field. Records with the same
    key stay in order. Exit code 1 if a record was not stored.
    """
    if sum(option is not None for option in (key_field, key, key_separator)) != 1:
        raise click.UsageError("give exactly one of --key-field FIELD, --key TEXT and --key-separator TEXT")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    if raw and key is None:
        raise click.UsageError("--raw requires --key TEXT; with --key-separator, lines need not be JSON anyway")
    if timestamp_field is not None and (raw or key_separator is not None):
        raise click.UsageError("--timestamp-field requires lines of JSON, so neither --raw nor --key-separator")
    sources = [Path("-")] if not files else list(files)
    if name is not None:
        _require_one_regular_file(sources)
    command = _Produce(
        context,
        topic,
        sources,
        form=lines.LineFormat(
            key=None if key is None else key.encode(),
            key_field=key_field,
            key_separator=None if key_separator is None else key_separator.replace("\\t", "\t").encode(),
            is_json=not raw,
            timestamp_field=timestamp_field,
        ),
        skip_bad_lines=skip_bad_lines,
        name=name,
    )
    try:
        context.run(command.run())
    finally:
        if command.began:
            if as_json:
                print_json(command.counts.as_dict())
            click.echo(command.counts.summary(), err=True)
    if command.counts.failed:
        raise click.exceptions.Exit(1)


def _require_one_regular_file(sources: list[Path]) -> None:
    if len(sources) != 1 or not sources[0].is_file():
        raise click.UsageError("--name requires exactly one FILE, which must be a regular file")


class _Produce:
    """One run of the command."""

    def __init__(
        self,
        context: CommandContext,
        topic: str,
        sources: list[Path],
        *,
        form: lines.LineFormat,
        skip_bad_lines: bool,
        name: str | None,
    ) -> None:
        self._context = context
        self.counts = OutcomeCounts()
        self.began = False
        self._topic = topic
        self._sources = sources
        self._form = form
        self._skip_bad_lines = skip_bad_lines
        self._name = name
        self._outcomes: asyncio.Queue[tuple[str, Awaitable[object]]] = asyncio.Queue(MAX_IN_FLIGHT)
        self._stop: HeadgateError | None = None

    async def run(self) -> None:
        """Send all lines and wait for all outcomes. Raises HeadgateError if an invalid line or a failure stopped it."""
        await self._context.require_topic(self._topic)
        progress = ProgressLine(self.counts, self._total_bytes(), sys.stderr)
        async with self._context.open_producer(name=self._name) as producer:
            collecting = asyncio.get_running_loop().create_task(
                self._collect_outcomes(progress), name="collect-outcomes"
            )
            try:
                with progress:
                    try:
                        await self._send_all(producer, progress)
                    except asyncio.CancelledError:
                        # Wait a while for the outcomes of accepted records; a second signal ends the wait.
                        async with asyncio.timeout(FLUSH_TIMEOUT_SECONDS):
                            await self._finish(producer)
                        raise
                    await self._finish(producer)
            finally:
                collecting.cancel()
                await asyncio.wait([collecting])
        if self._stop is not None:
            raise self._stop

    async def _finish(self, producer: Producer) -> None:
        await producer.flush()
        await self._outcomes.join()

    async def _send_all(self, producer: Producer, progress: ProgressLine) -> None:
        resumed = await self._resume(producer)
        self.began = True
        for source in self._sources:
            async with aclosing(self._records(source, resumed, progress)) as records:
                async for record in records:
                    position = None if self._name is None else lines.encode_position(record)
                    where = f"{_display_name(source)}:{record.number}"
                    try:
                        outcome = await producer.send(
                            self._topic,
                            record.key,
                            record.value,
                            timestamp_ms=record.timestamp_ms,
                            source_position=position,
                        )
                    except (DeliveryFailedError, DeliveryUnknownError, RequestRejectedError) as error:
                        self._failed(where, error)
                    else:
                        self.counts.accepted += 1
                        await self._outcomes.put((where, outcome))
                    if self._stop is not None:
                        return
            if self._stop is not None:
                return

    async def _records(
        self,
        source: Path,
        resumed: lines.SourcePosition | None,
        progress: ProgressLine,
    ) -> AsyncGenerator[lines.KeyedRecord, None]:
        """Yield the records of ``source``; skip invalid lines or stop at them."""
        try:
            async with aclosing(self._lines(source, resumed)) as found:
                async for line in found:
                    progress.advance_to(line.end_offset)
                    record = self._record(source, line, progress)
                    if self._stop is not None:
                        return
                    if record is not None:
                        yield record
        except OSError as error:
            # Stop as for an invalid line: everything read before is sent and counted.
            self._stop = HeadgateError(f"{_display_name(source)}: cannot be read: {error.strerror or error}")

    def _record(self, source: Path, line: lines.Line, progress: ProgressLine) -> lines.KeyedRecord | None:
        """Return the record in ``line``; None for an invalid line, which is skipped or sets the reason to stop."""
        record = lines.keyed_record(line, self._form)
        if isinstance(record, lines.KeyedRecord):
            return record
        problem = f"{_display_name(source)}:{record.number} {record.problem}"
        if not self._skip_bad_lines:
            self._stop = HeadgateError(f"{problem}; correct the line, or skip invalid lines with --skip-bad-lines")
            return None
        self.counts.skipped += 1
        if self.counts.skipped <= REPORTED:
            progress.print_line(f"headgate: skipped {problem}")
        return None

    async def _resume(self, producer: Producer) -> lines.SourcePosition | None:
        """Return the position of this named producer in its file, or None to start at the beginning."""
        if self._name is None:
            return None
        await producer.open(self._topic)
        if producer.source_position is None:
            return None
        position = lines.decode_position(producer.source_position)
        source = self._sources[0]
        if position is None or not _matches_position(source, position):
            raise HeadgateError(
                f"{source} is not the file that producer {self._name!r} has read before (line "
                f"{'?' if position is None else position.number} differs); give the same file or another --name, or "
                f"delete the producer: headgate producer delete {self._name}",
            )
        click.echo(f"headgate: {source}: {position.number} lines are already stored; continuing after them", err=True)
        return position

    async def _collect_outcomes(self, progress: ProgressLine) -> None:
        """Wait for the outcomes in the order of sending."""
        while True:
            where, outcome = await self._outcomes.get()
            try:
                await outcome
            except (DeliveryFailedError, DeliveryUnknownError, RequestRejectedError) as error:
                self._failed(where, error)
            else:
                self.counts.stored += 1
                progress.refresh()
            self._outcomes.task_done()

    def _failed(self, where: str, error: HeadgateError) -> None:
        self.counts.failed += 1
        self.counts.unknown += isinstance(error, DeliveryUnknownError)
        if self.counts.failed <= REPORTED:
            click.echo(f"headgate: {where}: {error}", err=True)
        fatal = isinstance(error, RequestRejectedError) or self._name is not None
        if fatal and self._stop is None:
            self._stop = HeadgateError(f"stopped at {where}: {error}")

    async def _lines(self, source: Path, resumed: lines.SourcePosition | None) -> AsyncGenerator[lines.Line, None]:
        """Yield the lines of ``source`` after ``resumed``. Raises OSError."""
        start, number = (0, 0) if resumed is None else (resumed.end_offset, resumed.number)
        splitter = lines.LineSplitter(offset=start, number=number)
        file = self._context.standard_input() if str(source) == "-" else os.open(source, os.O_RDONLY)
        try:
            if start:
                os.lseek(file, start, os.SEEK_SET)
            async with aclosing(read_blocks(file)) as blocks:
                async for block in blocks:
                    for line in splitter.feed(block):
                        yield line
            for line in splitter.end():
                yield line
        finally:
            if str(source) != "-":
                os.close(file)

    def _total_bytes(self) -> int | None:
        """Return the total size of all sources, or None if one is not a regular file."""
        total = 0
        for source in self._sources:
            status = os.fstat(self._context.standard_input()) if str(source) == "-" else source.stat()
            if not stat.S_ISREG(status.st_mode):
                return None
            total += status.st_size
        return total


def _matches_position(source: Path, position: lines.SourcePosition) -> bool:
    """Whether ``source`` still contains the line at ``position``."""
    with source.open("rb") as file:
        start = max(0, position.end_offset - MAX_RECORD_BYTES - 4)
        file.seek(start)
        tail = file.read(position.end_offset - start)
    return start + len(tail) == position.end_offset and lines.ends_with_line(tail, position)


def _display_name(source: Path) -> str:
    return "standard input" if str(source) == "-" else str(source)
