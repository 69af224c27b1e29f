r"""`headgate read`: print stored records without a subscription.

Rules:

1. It asks the leader once for the topic's segments, and then reads the ledger. It registers nothing, acknowledges
   nothing and moves nothing.
2. Records of a segment come in the order of their offsets, and children after their parents.
3. Standard output holds only records.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from headgate.cli import arguments
from headgate.cli.context import CommandContext, command
from headgate.cli.records.consume import record_line
from headgate.cli.records.record_format import PLACEHOLDERS, UnknownPlaceholderError, record_formatter
from headgate.model.text import plural
from headgate.process.background import end_tasks

if TYPE_CHECKING:
    from headgate.client.topic_source import TopicSource
    from headgate.reading.stored_rows import LedgerRecord
    from headgate.reading.topic_reader import TopicReader
    from headgate.views.topics import TopicInfo

MAX_TAIL_RECORDS: Final = 100_000
"""They are in memory until the oldest of them is found."""
OUTPUT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Wanted:
    starts: tuple[arguments.PlaceOption, ...]
    tail: int | None
    follow: bool
    key: bytes | None
    max_records: int | None


def _format_option(_: click.Context, parameter: click.Parameter, text: str | None) -> Callable[[Any], bytes] | None:
    try:
        return None if text is None else record_formatter(text)
    except UnknownPlaceholderError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@command(
    "headgate read orders",
    "headgate read orders --tail 10 --follow",
    "headgate read orders --from 2026-01-31T18:00:00Z --max 100 | jq .value",
    "headgate read orders --from 3=1200 --format '%k %o %v\\n'",
    "headgate read orders --key alice --raw",
    prints_json=False,
)
@arguments.topic_argument
@click.option(
    "--from",
    "starts",
    type=arguments.Place(positions=True),
    multiple=True,
    help=f"Where to start. {arguments.PLACE_HELP} SEGMENT=OFFSET can be repeated, and reads only the named segments. "
    "[default: earliest]",
)
@click.option("--tail", type=click.IntRange(0, MAX_TAIL_RECORDS), metavar="N", help="Only the last N stored records.")
@click.option("--follow", "-f", is_flag=True, help="Then print new records, until Ctrl-C.")
@click.option("--key", metavar="TEXT", help="Only records with this key.")
@arguments.base64_option
@click.option("--max", "max_records", type=click.IntRange(min=1), metavar="N", help="Exit after N records.")
@click.option(
    "--format",
    "form",
    metavar="TEXT",
    callback=_format_option,
    help="Print this for each record: " + ", ".join(f"{name} {text}" for name, (text, _) in PLACEHOLDERS.items()) + ". "
    "\\n is a line end.",
)
@click.option("--raw", is_flag=True, help="Print only values, byte for byte, each with a line end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, as consume does. [default]")
def read(
    context: CommandContext, topic: str, form: Callable[[Any], bytes] | None, raw: bool, as_json: bool, **given: Any
) -> None:
    """Print the stored records of TOPIC, without a subscription: nothing is registered, acknowledged or moved.

    Records come in the order in which they were stored: each segment by offset, and children after their parents.
    Without --follow, the command ends after the last record that was stored when it began. With it, it ends when all
    segments that --from names are sealed and read, and a deletion of the topic ends it with an error.
    """
    if sum((form is not None, raw, as_json)) > 1:
        raise click.UsageError("give at most one of --format, --raw and --json")
    key, is_base64 = given.pop("key"), given.pop("is_base64")
    arguments.require_beside("--base64", "--key TEXT", is_there=key is not None, name="is_base64")
    wanted = _Wanted(key=None if key is None else arguments.key_bytes(key, is_base64=is_base64), **given)
    _check_starts(wanted.starts, tail=wanted.tail, follow=wanted.follow)
    line = form or (record_formatter("%v\\n") if raw else record_line)
    printed = context.run_while_read(_print_records(context, topic, wanted, line))
    if sys.stderr.isatty():
        click.echo(plural(printed, "record"), err=True)


def _check_starts(starts: tuple[arguments.PlaceOption, ...], *, tail: int | None, follow: bool) -> None:
    """Raise UsageError for options that contradict each other."""
    if starts and tail is not None:
        raise click.UsageError("give --from or --tail, not both")
    positions = [start for start in starts if isinstance(start, tuple)]
    if len(starts) > 1 and len(positions) < len(starts):
        raise click.UsageError("only --from SEGMENT=OFFSET can be repeated")
    if len(dict(positions)) < len(positions):
        raise click.UsageError("--from names a segment twice")
    if starts == ("latest",) and not follow:
        raise click.UsageError("--from latest prints only new records: add --follow, or use --tail N")


async def _print_records(
    context: CommandContext, topic: str, wanted: _Wanted, line: Callable[[LedgerRecord], bytes]
) -> int:
    """Print until the end, Ctrl-C or the maximum; return the number of records."""
    async with context.open_topic(topic) as source:
        reader, ended = await _reader(source, wanted), ""
        if not wanted.follow:
            return await _print_from(context, source, reader, wanted, line)

        def end_if_sealed(now: TopicInfo) -> None:
            nonlocal ended
            if reader.end_at(now):
                ended = _sealed_text(now, {start[0] for start in wanted.starts if isinstance(start, tuple)})
                source.head.advance(source.head.number + 1)  # Wakes the reader.

        loop = asyncio.get_running_loop()
        deletion = loop.create_task(source.until_deleted(end_if_sealed), name="until-deleted")
        printing = loop.create_task(_print_from(context, source, reader, wanted, line), name="print-records")
        try:
            await asyncio.wait({deletion, printing}, return_when=asyncio.FIRST_COMPLETED)
            if not printing.done():
                deletion.result()
            if ended and printing.result() != wanted.max_records:
                click.echo(ended, err=True)
            return printing.result()
        finally:
            await end_tasks(deletion, printing)


def _sealed_text(topic: TopicInfo, named: set[int]) -> str:
    """Return why no record follows in the ``named`` segments, and where their children begin."""
    children = [f"--from {each.segment}=0" for each in topic.segments if named & {*each.parents}]
    ended = "no record follows: the named segments are sealed, and are read to the end"
    return f"{ended}; read on with {' '.join(children)}" if children else ended


async def _print_from(
    context: CommandContext,
    source: TopicSource,
    reader: TopicReader,
    wanted: _Wanted,
    line: Callable[[LedgerRecord], bytes],
) -> int:
    printed = 0
    block = bytearray()
    async with aclosing(_records(source, reader, wanted)) as records:
        async for record in records:
            block += line(record)
            printed += 1
            is_last = printed == wanted.max_records
            if is_last or wanted.follow or len(block) >= OUTPUT_BYTES:
                await context.write_output(bytes(block))
                block.clear()
            if is_last:
                break
    await context.write_output(bytes(block))
    return printed


async def _records(source: TopicSource, reader: TopicReader, wanted: _Wanted) -> AsyncGenerator[LedgerRecord]:
    if wanted.tail is not None:
        for record in await reader.tail(wanted.tail):
            yield record
    if wanted.follow or wanted.tail is None:
        async with aclosing(reader.follow(source.head) if wanted.follow else reader.stored()) as found:
            async for record in found:
                yield record


async def _reader(source: TopicSource, wanted: _Wanted) -> TopicReader:
    """Return a reader that begins where ``wanted`` says. Raises UsageError for a position that does not exist."""
    from headgate.errors import PositionOutOfRangeError  # noqa: PLC0415 - not needed to print help
    from headgate.model.layout import segment_hash  # noqa: PLC0415
    from headgate.reading.stored_rows import select_offsets  # noqa: PLC0415
    from headgate.reading.topic_files import positions_at  # noqa: PLC0415
    from headgate.reading.topic_reader import TopicReader  # noqa: PLC0415

    described = source.description
    reader = partial(TopicReader, source.ledger, described, key=wanted.key, describe=source.describe)
    ends = {
        each.segment: each.next_offset
        for each in described.segments
        if wanted.key is None or each.first_hash <= segment_hash(wanted.key) <= each.last_hash
    }
    first = wanted.starts[0] if wanted.starts else "earliest"
    if isinstance(first, tuple):
        named = {int(start[0]): int(start[1]) for start in wanted.starts if isinstance(start, tuple)}
        try:
            select_offsets(described, offsets={segment: (offset, None) for segment, offset in named.items()})
        except PositionOutOfRangeError as error:
            raise click.UsageError(str(error)) from None
        if wanted.follow and all(each.state == "sealed" for each in described.segments if each.segment in named):
            raise click.UsageError("no record follows in sealed segments: leave out --follow, or name their children")
        return reader(starts=named, only_started=True)
    if isinstance(first, int):
        found = await positions_at(source.ledger, described, first)
        return reader(starts={segment: found[segment] for segment in ends}, stored_at_ms=first)
    if first == "latest":
        return reader(starts=ends, first_chunk=source.newest_chunk)
    return reader(starts=dict.fromkeys(ends, 0))
