"""Write the lines of files, or of standard input, to a topic, for `headgate produce`.

Rules:

1. What is read is stored or counted: as invalid, as blank, or as a byte order mark.
2. An invalid line stops the run with an error that names it. All lines before it are still sent and counted. With
   ``skip_bad_lines``, invalid lines are counted and reported instead.
3. With a producer name, each record carries its position in the file, and the next run starts after the last stored
   record. The first failure stops the run, so that the position never passes a record that was not stored.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headgate.cli.context import CommandContext
from headgate.cli.records import ndjson as lines
from headgate.cli.records.sending import REPORTED, OutcomeCounts, OutgoingRecord, ProgressLine, RecordSender
from headgate.cli.terminal.running import READ_BLOCK_BYTES, read_blocks
from headgate.errors import HeadgateError
from headgate.model.headers import Headers
from headgate.model.text import plural

if TYPE_CHECKING:
    from headgate import Producer

SKIP_ADVICE: Final = "correct the line, or skip invalid lines with --skip-bad-lines"


@dataclass(frozen=True, slots=True)
class LineParser:
    parse: Callable[[lines.Line], lines.KeyedRecord | lines.Header | None]
    quotes: Callable[[], lines.Quotes] | None = None
    """For CSV: a line feed inside quotes does not end a line."""
    has_header: bool = False
    """Whether the first line is needed to parse the others."""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class _Beginning:
    offset: int = 0
    number: int = 0
    hasher: blake2b | None = None
    """The hash of the bytes before it; None: the producer has no name."""


def require_one_regular_file(sources: Sequence[Path]) -> None:
    """Raise UsageError if a named producer could not continue in ``sources``."""
    if len(sources) != 1 or not sources[0].is_file():
        raise click.UsageError("--name requires exactly one FILE, which must be a regular file")


@dataclass(eq=False, repr=False)
class LineImport:
    context: CommandContext
    topic: str
    sources: Sequence[Path]
    _: KW_ONLY
    parser: LineParser
    skip_bad_lines: bool
    name: str | None
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    began: bool = False
    _progress: ProgressLine = field(init=False)
    _sender: RecordSender = field(init=False)

    def __post_init__(self) -> None:
        """Prepare a run; raises OSError if a source does not exist."""
        self._progress = ProgressLine(self.counts.progress, self._total_bytes(), sys.stderr)
        self._sender = RecordSender(self.topic, self.counts, self._progress, ends_at_failure=self.name is not None)

    def run_command(self) -> None:
        try:
            self.context.run(self.run())
        finally:
            if self.began:
                self.context.report(asdict(self.counts), self.counts.summary())
        if self.counts.failed:
            raise click.exceptions.Exit(1)

    async def run(self) -> None:
        """Send all lines and wait for all outcomes. Raises HeadgateError if an invalid line or a failure stopped it."""
        await self.context.answer(lambda admin: admin.describe_topic(self.topic))
        async with self.context.open_producer(name=self.name) as producer:
            beginning = await self._resume(producer)
            self.began = True
            await self._sender.run(producer, self._outgoing(beginning))

    async def _outgoing(self, beginning: _Beginning) -> AsyncGenerator[OutgoingRecord, None]:
        for source in self.sources:
            async with aclosing(self._records(source, beginning)) as records:
                async for record in records:
                    where = f"{_display_name(source)}:{record.line.number}"
                    position = None if self.name is None else lines.encode_position(record.line)
                    yield OutgoingRecord(where, record, self.parser.headers, position)
            if self._sender.stop is not None:
                return

    async def _records(self, source: Path, beginning: _Beginning) -> AsyncGenerator[lines.KeyedRecord, None]:
        """Yield the records of ``source``; skip invalid lines or stop at them."""
        try:
            async with aclosing(self._lines(source, beginning)) as found:
                async for line in found:
                    self._progress.advance_to(line.end_offset)
                    record = self._record(source, line)
                    if self._sender.stop is not None:
                        return
                    if record is not None:
                        yield record
        except OSError as error:
            # Stop as for an invalid line: everything read before is sent and counted.
            self._sender.stop = HeadgateError(f"{_display_name(source)}: cannot be read: {error.strerror or error}")

    def _record(self, source: Path, line: lines.Line) -> lines.KeyedRecord | None:
        """Return the record in ``line``; None for an invalid line, which is skipped or sets the reason to stop."""
        try:
            record = self.parser.parse(line)
        except lines.BadLineError as bad:
            problem = f"{_display_name(source)}:{line.number} {bad}"
            if bad.ends or not self.skip_bad_lines:
                advice = "correct this line" if bad.ends else SKIP_ADVICE
                self._sender.stop = HeadgateError(f"{problem}; {advice}")
                return None
            self.counts.skipped += 1
            if self.counts.skipped <= REPORTED:
                self._progress.print_line(f"headgate: skipped {problem}")
            return None
        if record is None:
            self.counts.blank += 1
            return None
        self.counts.byte_order_marks += record.has_mark
        return record if isinstance(record, lines.KeyedRecord) else None

    async def _resume(self, producer: Producer) -> _Beginning:
        if self.name is None:
            return _Beginning()
        await producer.open(self.topic)
        if producer.source_position is None:
            return _Beginning(hasher=lines.new_hasher())
        position = lines.decode_position(producer.source_position)
        source = self.sources[0]
        found = None if position is None else await asyncio.to_thread(_beginning, source, position)
        if position is None or found is None:
            read = "another source" if position is None else f"{position.end_offset} bytes, {position.number} lines"
            raise HeadgateError(
                f"{source} does not begin with what producer {self.name!r} has stored in topic {self.topic!r} "
                f"({read}); give the same file or another --name, or delete the producer: headgate producer delete "
                f"{self.name}"
            )
        click.echo(f"headgate: {source}: continuing after {plural(position.number, 'line')} already stored", err=True)
        return found

    async def _lines(self, source: Path, beginning: _Beginning) -> AsyncGenerator[lines.Line, None]:
        """Yield the lines of ``source`` from ``beginning`` on, after its header. Raises OSError."""
        if beginning.offset and self.parser.has_header:
            async with aclosing(self._lines(source, _Beginning())) as found:
                yield await anext(found)
        quotes = self.parser.quotes
        splitter = lines.LineSplitter(
            offset=beginning.offset,
            number=beginning.number,
            hasher=beginning.hasher,
            quotes=None if quotes is None else quotes(),
        )
        file = self.context.standard_input() if str(source) == "-" else os.open(source, os.O_RDONLY)
        try:
            if beginning.offset:
                os.lseek(file, beginning.offset, os.SEEK_SET)
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
        total = 0
        for source in self.sources:
            status = os.fstat(self.context.standard_input()) if str(source) == "-" else source.stat()
            if not stat.S_ISREG(status.st_mode):
                return None
            total += status.st_size
        return total


def _beginning(source: Path, position: lines.SourcePosition) -> _Beginning | None:
    """Return where ``source`` continues after ``position``; None if it has other bytes before it. Raises OSError.

    A last line that had no line end may have got one since. If it has grown otherwise, it is another line.
    """
    hasher, last, rest = lines.new_hasher(), b"", position.end_offset
    with source.open("rb") as file:
        while rest and (block := file.read(min(rest, READ_BLOCK_BYTES))):
            hasher.update(block)
            last, rest = block[-1:], rest - len(block)
        following = b"" if last == b"\n" else file.read(1)
    if rest or hasher.digest() != position.digest or following not in (b"", b"\n"):
        return None
    hasher.update(following)
    return _Beginning(position.end_offset + len(following), position.number, hasher)


def _display_name(source: Path) -> str:
    return "standard input" if str(source) == "-" else str(source)
