"""`headgate topic`: thin commands around `Admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from controller import cli_session as session
from controller.cli_graph import byte_count, draw_topic
from controller.cli_output import examples, json_option, print_json, print_table

if TYPE_CHECKING:
    from headgate import Admin
    from headgate.messages import TopicDescription


@click.group(
    epilog=examples(
        "headgate topic create orders --segments 4",
        "headgate topic describe orders",
        "headgate topic split orders 2",
    ),
)
def topic() -> None:
    """Create, list, describe, split, merge and delete topics."""


def _change(change: Callable[[Admin], Awaitable[TopicDescription]], as_json: bool) -> None:
    """Carry out one change and print the topic that came of it."""

    async def carry_out() -> TopicDescription:
        async with session.open_admin(session.client_config()) as admin:
            return await change(admin)

    described = session.run(carry_out())
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(draw_topic(described)))


@topic.command(
    epilog=examples(
        "headgate topic create orders",
        "headgate topic create orders --segments 4",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.option("--segments", type=click.IntRange(1, 1024), default=1, show_default=True, help="Segments to begin with.")
@json_option
@session.config_option
def create(name: str, segments: int, as_json: bool) -> None:
    """Create TOPIC."""
    _change(lambda admin: admin.create_topic(name, segments=segments), as_json)


@topic.command(
    "list",
    epilog=examples(
        "headgate topic list",
        "headgate topic list --json",
    ),
)
@json_option
@session.config_option
def list_(as_json: bool) -> None:
    """List all topics."""

    async def ask() -> list[TopicDescription]:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.list_topics()

    topics = sorted(session.run(ask()), key=lambda found: found.topic)
    if as_json:
        print_json(topics)
        return
    if not topics:
        click.echo("no topics yet; create one: headgate topic create NAME", err=True)
        return
    print_table(
        ("topic", "shard", "active", "sealed", "records", "size", "subscriptions"),
        [
            (
                found.topic,
                str(found.shard),
                str(sum(segment.state == "active" for segment in found.segments)),
                str(sum(segment.state != "active" for segment in found.segments)),
                str(sum(segment.next_offset for segment in found.segments)),
                byte_count(sum(segment.size_bytes for segment in found.segments)),
                ", ".join(found.subscriptions),
            )
            for found in topics
        ],
        numbers=("shard", "active", "sealed", "records", "size"),
    )


@topic.command(
    epilog=examples(
        "headgate topic describe orders",
        "headgate topic describe orders --json",
    ),
)
@click.argument("name", metavar="TOPIC")
@json_option
@session.config_option
def describe(name: str, as_json: bool) -> None:
    """Draw the segments of TOPIC: who came from whom, ranges, records and sizes.

    A record's segment follows from the hash of its key. "→ 4" points to a merged segment that is drawn elsewhere.
    """
    _change(lambda admin: admin.describe_topic(name), as_json)


@topic.command(
    epilog=examples(
        "headgate topic split orders 2",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.argument("segment", type=click.IntRange(min=0))
@json_option
@session.config_option
def split(name: str, segment: int, as_json: bool) -> None:
    """Split SEGMENT of TOPIC at the middle of its range.

    Producers and consumers may go on meanwhile. STREAM consumers get the two children once SEGMENT is read to its end.
    """
    _change(lambda admin: admin.split(name, segment), as_json)


@topic.command(
    epilog=examples(
        "headgate topic merge orders 3 4",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.argument("first", type=click.IntRange(min=0))
@click.argument("second", type=click.IntRange(min=0))
@json_option
@session.config_option
def merge(name: str, first: int, second: int, as_json: bool) -> None:
    """Merge the neighbours FIRST and SECOND of TOPIC into one segment."""
    _change(lambda admin: admin.merge(name, first, second), as_json)


@topic.command(
    epilog=examples(
        "headgate topic delete orders",
        "headgate topic delete orders --force",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.option("--force", is_flag=True, help="Delete it even while consumers use it.")
@session.config_option
def delete(name: str, force: bool) -> None:
    """Delete TOPIC with its records and subscriptions."""

    async def carry_out() -> None:
        async with session.open_admin(session.client_config()) as admin:
            await admin.delete_topic(name, force=force)

    session.run(carry_out())
    click.echo(f"topic {name} is deleted", err=True)
