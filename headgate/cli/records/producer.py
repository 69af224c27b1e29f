"""`headgate producer`: the producers that were opened under a name, and their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import complete_producer, consent_options, destroy
from headgate.cli.context import CommandContext, command
from headgate.cli.records.ndjson import decode_position
from headgate.cli.terminal.output import print_table
from headgate.model.time_text import utc_minute
from headgate.reading.topic_position import decode_copy

if TYPE_CHECKING:
    from headgate import ProducerInfo

MAX_POSITION_CHARACTERS = 24
"""Longest position that is shown as text: the table fits 80 columns with a name of as many."""


@click.group()
def producer() -> None:
    """List, describe and delete named producers.

    A named producer, for example of `headgate produce --name`, is kept with its position until it is deleted.
    """


@command("headgate producer list", "headgate producer list --json", group=producer, name="list")
def list_(context: CommandContext) -> None:
    """List the named producers of all shards."""
    empty = "no named producers; this creates one: headgate produce --name NAME"
    context.show(lambda admin: admin.list_producers(), _print_list, empty=empty)


def _print_list(found: list[ProducerInfo]) -> None:
    print_table(
        ("producer", "shard", "last used (UTC)", "topic", "position"),
        [
            (each.producer, each.shard, utc_minute(each.last_used_at_ms)[:10], *position)
            for each in found
            for position in _positions(each)
        ],
    )


@command(
    "headgate producer describe import-1", "headgate producer describe import-1 --json", group=producer, name="describe"
)
@click.argument("name", shell_complete=complete_producer)
def describe(context: CommandContext, name: str) -> None:
    """Show the identity of the producer NAME on each shard, and its position in each topic that it has written to.

    With --json, a position is the bytes that it has stored, as base64.
    """
    context.show(lambda admin: admin.describe_producer(name), _print_producer)


def _print_producer(found: list[ProducerInfo], *, err: bool = False) -> None:
    print_table(
        ("shard", "id", "epoch", "batches", "last used (UTC)"),
        [
            (each.shard, each.producer_id, each.producer_epoch, each.next_sequence, utc_minute(each.last_used_at_ms))
            for each in found
        ],
        err=err,
    )
    print_table(
        ("shard", "topic", "position"),
        [(each.shard, *position) for each in found for position in _positions(each)],
        err=err,
    )


@command(
    "headgate producer delete import-1",
    "headgate producer delete import-1 --dry-run",
    "headgate producer delete import-1 --yes",
    group=producer,
    name="delete",
)
@click.argument("name", shell_complete=complete_producer)
@consent_options()
def delete(context: CommandContext, name: str) -> None:
    """Delete the producer NAME with its positions on all shards. This cannot be undone.

    A program that uses it is stopped. The next one of this name reads its source from the beginning. On a terminal,
    the command shows what would go and asks first. Elsewhere it needs --yes.
    """
    seen: list[ProducerInfo] = []

    def contents() -> dict[str, Any]:
        seen.extend(context.ask(lambda admin: admin.describe_producer(name)))
        if not context.as_json:
            _print_producer(seen, err=not context.dry_run)
        return {"shards": [each.shard for each in seen]}

    destroy(
        context,
        {"producer": name},
        f"producer {name}",
        contents,
        lambda admin: admin.delete_producer(name, seen=seen),
        question=f"Delete producer {name} with these positions?",
    )


def _positions(producer: ProducerInfo) -> list[tuple[str, str]]:
    return [(each.topic, position_text(each.position)) for each in producer.positions] or [("-", "-")]


def position_text(position: bytes) -> str:
    """Return a source position for people: of a file, of a copy, short printable text, or a size."""
    line = decode_position(position)
    if line is not None:
        return f"line {line.number}"
    if (copy := decode_copy(position)) is not None:
        return f"copy, {len(copy.offsets)} segments open"
    text = position.decode("utf-8", errors="replace")
    if text.isprintable() and "\ufffd" not in text and len(text) <= MAX_POSITION_CHARACTERS:
        return text
    return f"{len(position)} bytes"
