"""`headgate topic copy`: the records of a topic, in another topic or another cluster.

Rules:

1. Records are read in the order in which they were stored, without a subscription, and sent by one producer, so each
   key stays in order across splits and merges.
2. A copy has a named producer, which stores with each record how far it has read. So an interrupted copy continues,
   and the next one copies what was stored since, each record once.
3. Records are not mixed into a topic that has others, unless ``--append`` allows it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headgate.cli.arguments import complete_topic
from headgate.cli.context import CommandContext, command
from headgate.cli.records.sending import OutcomeCounts, OutgoingRecord, ProgressLine, RecordSender
from headgate.cli.terminal.option_types import FilePath
from headgate.errors import HeadgateError, OtherHistoryError, PositionOutOfRangeError, RequestRejectedError
from headgate.model.text import plural
from headgate.reading.topic_position import CopyProgress, Snapshot, beginning, decode_copy

if TYPE_CHECKING:
    from headgate import Admin, TopicInfo
    from headgate.client.topic_source import TopicSource
    from headgate.reading.topic_reader import TopicReader

REMEDY: Final = "copy to a new topic, or with another --name"


@command(
    "headgate topic copy orders orders-v2",
    "headgate topic copy orders archive --append --name nightly-archive",
    "headgate topic copy orders orders --to-config new-cluster.toml",
)
@click.argument("source", shell_complete=complete_topic)
@click.argument("target", shell_complete=complete_topic)
@click.option("--append", is_flag=True, help="Add the records to those that the topic has.")
@click.option(
    "--to-config",
    type=FilePath(exists=True, dir_okay=False),
    metavar="FILE",
    help="Client configuration of the cluster that has TARGET. [default: the cluster that has SOURCE]",
)
@click.option(
    "--name", metavar="NAME", help="Producer name, which keeps how far the copy is. [default: copy-SOURCE-TARGET]"
)
def copy(
    context: CommandContext, source: str, target: str, append: bool, to_config: Path | None, name: str | None
) -> None:
    """Copy the records of topic SOURCE to topic TARGET.

    Keys, headers and timestamps stay, and each key in order. TARGET must exist, and may have other segments. The copy
    ends after the last record that was stored when it began. An interrupted copy continues where it stopped, and a
    later one copies what was stored since: each record is copied once. A target with other records needs --append.
    """
    to = context if to_config is None else context.of_cluster(to_config)
    if source == target and (to_config is None or to.is_same_cluster(context)):
        raise click.UsageError("SOURCE and TARGET are the same topic")
    producer = name or f"copy-{source}-{target}"
    command = TopicCopy(context, source, to, target, producer, append=append)
    try:
        context.run(command.run())
    finally:
        if command.began:
            names = {"source": source, "target": target, "producer": producer}
            context.report(names | asdict(command.counts), command.counts.summary())


@dataclass(eq=False, repr=False)
class TopicCopy:
    """One run of a command that copies records of a topic."""

    context: CommandContext
    source: str
    to: CommandContext
    target: str
    name: str
    _: KW_ONLY
    append: bool
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    began: bool = False

    async def run(self) -> None:
        from headgate.reading.topic_reader import TopicReader  # noqa: PLC0415 - not needed to print help

        async with self.context.open_topic(self.source) as source:
            await _require_target(self.to, self.target, name=self.name, append=self.append)
            async with self.to.open_producer(name=self.name, copies=True) as producer:
                await producer.open(self.target)
                positions = await self._positions(source, producer.source_position)
                progress = ProgressLine(self.counts.progress, positions.records, sys.stderr)
                sender = RecordSender(self.target, self.counts, progress, ends_at_failure=True)
                reader = TopicReader(
                    source.ledger, source.description, starts=positions.starts, describe=source.describe
                )
                self.began = True
                await sender.run(producer, self._outgoing(reader, positions, progress))

    async def _positions(self, source: TopicSource, stored: bytes | None) -> CopyProgress:
        now = Snapshot(source.description, source.ledger_id, *await source.newest())
        position = beginning(source.description, source.ledger_id) if stored is None else decode_copy(stored)
        cannot = f"producer {self.name} cannot continue"
        if position is None:
            raise HeadgateError(
                f"{cannot}: it has read another source before, which is no topic; choose another --name"
            )
        try:
            starts = await source.starts_after(position, now, remedy=REMEDY)
        except (OtherHistoryError, PositionOutOfRangeError) as error:
            raise HeadgateError(f"{cannot}: {error}") from None
        positions = CopyProgress(now, starts)
        if stored is not None:
            left = plural(positions.records, "record")
            click.echo(f"headgate: continuing after the last copy; {left} to copy", err=True)
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
                where = f"{self.source}, segment {record.segment}, offset {record.offset}"
                yield OutgoingRecord(where, record, record.headers, position)


async def _require_target(context: CommandContext, topic: str, *, name: str, append: bool) -> None:
    """Raise HeadgateError if ``topic`` cannot take the records, or has others and they may not be mixed.

    A topic that the producer ``name`` has written to before has the earlier part of the same records.
    """
    async with context.open_admin() as admin:
        described = await admin.describe_topic(topic)
        if described.external is not None:
            raise HeadgateError(f"topic {topic!r} is external: its records are stored elsewhere")
        records = sum(segment.next_offset for segment in described.segments)
        if records and not append and not await _has_position(admin, name, described):
            raise HeadgateError(
                f"topic {topic} has {plural(records, 'record')}: add --append to add others, or choose an empty topic"
            )


async def _has_position(admin: Admin, name: str, topic: TopicInfo) -> bool:
    """Return whether the producer has written to this topic: not to an earlier one of its name."""
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
