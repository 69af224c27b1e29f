"""`headgate topic copy`, `export-records` and `import-records`: whole records of a topic.

Rules:

1. Records are read in the order in which they were stored, without a subscription, and sent by one producer, so each
   key stays in order across splits and merges.
2. A copy has a named producer, which stores with each record how far it has read. So an interrupted copy continues,
   and the next one copies what was stored since, each record once.
3. Records are not mixed into a topic that has others, unless ``--append`` allows it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from headgate.cli.arguments import topic_argument
from headgate.cli.completion import complete_topic
from headgate.cli.context import CommandContext, command
from headgate.cli.records.copy_position import CopyPositionError, CopyProgress
from headgate.cli.records.exported import MAX_LINE_BYTES, exported_line, parse_exported
from headgate.cli.records.line_source import LineImport, LineParser, require_one_regular_file
from headgate.cli.records.produce_progress import OutcomeCounts, ProgressLine
from headgate.cli.records.sending import OutgoingRecord, RecordSender
from headgate.errors import HeadgateError, RequestRejectedError

if TYPE_CHECKING:
    from headgate import Admin, TopicInfo
    from headgate.reading.stored_rows import LedgerRecord
    from headgate.reading.topic_reader import TopicReader

OUTPUT_BYTES: Final = 64 * 1024

append_option = click.option("--append", is_flag=True, help="Add the records to those that the topic has.")


@command(
    "headgate topic copy orders orders-v2",
    "headgate topic copy orders archive --append --name nightly-archive",
    "headgate topic copy orders orders-v2 --json",
)
@click.argument("source", shell_complete=complete_topic)
@click.argument("target", shell_complete=complete_topic)
@append_option
@click.option(
    "--name", metavar="NAME", help="Producer name, which keeps how far the copy is. [default: copy-SOURCE-TARGET]"
)
def copy(context: CommandContext, source: str, target: str, append: bool, name: str | None) -> None:
    """Copy the records of topic SOURCE to topic TARGET.

    Keys, headers and timestamps stay, and each key in order. TARGET must exist, and may have other segments. The copy
    ends after the last record that was stored when it began. An interrupted copy continues where it stopped, and a
    later one copies what was stored since: each record is copied once. A target with other records needs --append.
    """
    if source == target:
        raise click.UsageError("SOURCE and TARGET are the same topic")
    producer = name or f"copy-{source}-{target}"
    command = TopicCopy(context, source, target, producer, append=append)
    try:
        context.run(command.run())
    finally:
        if command.began:
            names = {"source": source, "target": target, "producer": producer}
            context.printed_as_json(names | asdict(command.counts))
            click.echo(command.counts.summary(), err=True)


class TopicCopy:
    """One run of a command that copies records of a topic."""

    def __init__(self, context: CommandContext, source: str, target: str, name: str, *, append: bool) -> None:
        self._context = context
        self._source = source
        self._target = target
        self._name = name
        self._append = append
        self._wanted: Callable[[LedgerRecord], bool] = lambda _: True
        self._starts: Mapping[int, int] | None = None
        self.counts = OutcomeCounts()
        self.began = False

    def select(self, wanted: Callable[[LedgerRecord], bool], starts: Mapping[int, int]) -> None:
        """Copy only ``wanted`` records, and only from ``starts`` on (see `CopyProgress`)."""
        self._wanted, self._starts = wanted, starts

    async def run(self) -> None:
        from headgate.reading.topic_reader import TopicReader  # noqa: PLC0415 - not needed to print help

        async with self._context.open_topic(self._source) as source:
            target = await _require_target(self._context, self._target, name=self._name, append=self._append)
            async with self._context.open_producer(name=self._name, copies=True) as producer:
                await producer.open(self._target)
                positions = self._positions(source.ledger_id, source.description, target, producer.source_position)
                progress = ProgressLine(self.counts.progress, positions.records, sys.stderr)
                sender = RecordSender(self._target, self.counts, progress, ends_at_failure=True)
                reader = TopicReader(
                    source.ledger, source.description, starts=positions.starts, describe=source.describe
                )
                self.began = True
                await sender.run(producer, self._outgoing(reader, positions, progress))

    def _positions(self, ledger_id: str, source: TopicInfo, target: TopicInfo, stored: bytes | None) -> CopyProgress:
        try:
            positions = CopyProgress(ledger_id, source, target, stored, self._starts)
        except CopyPositionError as error:
            raise HeadgateError(f"producer {self._name} cannot continue: {error}") from None
        if stored is not None:
            click.echo(f"headgate: continuing after the last copy; {positions.records} records to copy", err=True)
        return positions

    async def _outgoing(
        self, reader: TopicReader, positions: CopyProgress, progress: ProgressLine
    ) -> AsyncGenerator[OutgoingRecord, None]:
        read = 0
        async with aclosing(reader.stored()) as records:
            async for record in records:
                read += 1
                progress.advance_to(read)
                position = positions.after(record.segment, record.offset)
                if self._wanted(record):
                    yield OutgoingRecord(
                        f"{self._source}, segment {record.segment}, offset {record.offset}",
                        record.key,
                        record.value,
                        record.timestamp_ms,
                        position,
                        record.headers,
                    )


async def _require_target(context: CommandContext, topic: str, *, name: str | None, append: bool) -> TopicInfo:
    """Return ``topic``. Raise HeadgateError if it cannot take the records, or has others and they may not be mixed.

    A topic that the producer ``name`` has written to before has the earlier part of the same records.
    """
    async with context.open_admin() as admin:
        described = await admin.describe_topic(topic)
        if described.external is not None:
            raise HeadgateError(f"topic {topic!r} is external: its records are stored elsewhere")
        records = sum(segment.next_offset for segment in described.segments)
        if records and not append and not await _has_position(admin, name, described):
            raise HeadgateError(
                f"topic {topic} has {records} records: add --append to add others, or choose an empty topic"
            )
        return described


async def _has_position(admin: Admin, name: str | None, topic: TopicInfo) -> bool:
    """Return whether the producer has written to this topic: not to an earlier one of its name."""
    if name is None:
        return False
    try:
        found = await admin.describe_producer(name)
        return any(
            position.topic_id == topic.topic_id
            for each in found
            if each.shard == topic.shard
            for position in each.positions
        )
    except RequestRejectedError as error:
        if error.verdict != "invalid":
            raise
        return False


@command(
    "headgate topic export-records orders > orders.ndjson",
    "headgate topic export-records orders | gzip > orders.ndjson.gz",
    name="export-records",
    prints_json=False,
)
@topic_argument
def export_records(context: CommandContext, topic: str) -> None:
    """Print the records of TOPIC for import-records.

    Each line is a JSON object with key, value, timestamp and headers, byte for byte, in base64 if they are no text.
    The order is that in which the records were stored, so each key is in order. The export ends after the last
    record that was stored when it began.
    """
    exported = context.run(_export(context, topic))
    if sys.stderr.isatty():
        click.echo(f"{exported} records", err=True)


async def _export(context: CommandContext, topic: str) -> int:
    from headgate.reading.topic_reader import TopicReader  # noqa: PLC0415 - not needed to print help

    printed = 0
    block = bytearray()
    async with context.open_topic(topic) as source:
        total = sum(segment.next_offset for segment in source.description.segments)
        starts = dict.fromkeys((segment.segment for segment in source.description.segments), 0)
        reader = TopicReader(source.ledger, source.description, starts=starts, describe=source.describe)
        with ProgressLine(lambda: f"{printed} of {total} records", total, _progress_stream()) as progress:
            async with aclosing(reader.stored()) as records:
                async for record in records:
                    block += exported_line(record.key, record.value, record.timestamp_ms, record.headers)
                    printed += 1
                    progress.advance_to(printed)
                    if len(block) >= OUTPUT_BYTES:
                        await context.write_output(bytes(block))
                        block.clear()
            await context.write_output(bytes(block))
    return printed


def _progress_stream() -> TextIO:
    """Return where a bar is drawn: not on the terminal that shows the records."""
    return StringIO() if sys.stdout.isatty() else sys.stderr


@command(
    "headgate topic import-records orders orders.ndjson",
    "headgate topic import-records orders orders.ndjson --name restore-1",
    "gunzip -c orders.ndjson.gz | headgate topic import-records orders --append",
    name="import-records",
)
@topic_argument
@click.argument("file", default="-", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@append_option
@click.option("--name", metavar="NAME", help="Producer name. The next run with this name and FILE continues this one.")
def import_records(context: CommandContext, topic: str, file: Path, append: bool, name: str | None) -> None:
    """Write exported records to TOPIC.

    FILE (standard input by default) is the output of `headgate topic export-records`. Keys, values, headers and
    timestamps are those of the export, and each key stays in order. TOPIC must exist, and may have other segments; with
    other records it needs --append. `headgate topic import` is for topics whose records are stored elsewhere.
    """
    if name is not None:
        require_one_regular_file([file])
    parser = LineParser(parse_exported, MAX_LINE_BYTES, advice="correct the line, or export again", copies=True)
    command = LineImport(context, topic, [file], parser=parser, skip_bad_lines=False, name=name)
    context.run(_require_target(context, topic, name=name, append=append))
    command.run_command()
