"""`headgate topic`: thin commands around `Admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import click

from controller.cli import context as session
from controller.cli.output import examples, json_option, print_json, print_table
from controller.cli.policy_format import DEFAULT, count, retention, switch
from controller.cli.segment_tree import draw_topic, format_bytes, import_lines
from headgate.protocol.requests import PolicyField

if TYPE_CHECKING:
    from headgate import Admin, PruneResult, SegmentId, TopicImportResult, TopicInfo


@click.group(
    epilog=examples(
        "headgate topic create orders --segments 4",
        "headgate topic describe orders",
        "headgate topic split orders 2",
    ),
)
def topic() -> None:
    """Create, import, list, describe, split, merge, set, prune and delete topics."""


def _change(change: Callable[[Admin], Awaitable[TopicInfo]], as_json: bool) -> None:
    """Carry out one change and print the topic that came of it."""

    async def carry_out() -> TopicInfo:
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
    "import",
    epilog=examples(
        "headgate topic import orders shards.json",
        "aws kinesis list-shards --stream-name orders | headgate topic import orders - --format kinesis",
        "headgate topic import orders shards.json --format kinesis --dry-run",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format",
    "form",
    type=click.Choice(["headgate", "kinesis"]),
    default="headgate",
    show_default=True,
    help="headgate: a JSON list of segments; kinesis: the output of list-shards.",
)
@click.option("--partial", is_flag=True, help="FILE lists only what changed; everything else stays as it is.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@json_option
@session.config_option
def import_(name: str, file: BinaryIO, form: str, partial: bool, dry_run: bool, as_json: bool) -> None:
    """Make TOPIC an external one, or bring it up to what its source has become.

    An external topic is a stream that headgate does not store. FILE (- for standard input) lists its segments, with
    their parents. Import it again after each split or merge at the source; the same listing twice changes nothing.
    """
    from headgate import read_layout, read_list_shards  # noqa: PLC0415 - not needed to print help

    data = file.read()
    layout = read_layout(data) if form == "headgate" else read_list_shards(data)

    async def carry_out() -> TopicImportResult:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.import_topic(name, layout, complete=not partial, dry_run=dry_run)

    answer = session.run(carry_out())
    if as_json:
        print_json(answer)
        return
    click.echo("\n".join(draw_topic(answer.topic)))
    for line in import_lines(answer, dry_run=dry_run):
        click.echo(line, err=True)


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

    async def ask() -> list[TopicInfo]:
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
        ("topic", "kind", "shard", "active", "sealed", "records", "size", "subscriptions"),
        [
            (
                found.topic,
                "stored" if found.external is None else "external",
                str(found.shard),
                str(sum(segment.state == "active" for segment in found.segments)),
                str(sum(segment.state != "active" for segment in found.segments)),
                *_amounts(found),
                ", ".join(found.subscriptions),
            )
            for found in topics
        ],
        numbers=("shard", "active", "sealed", "records", "size"),
    )


def _amounts(found: TopicInfo) -> tuple[str, str]:
    """Return records and bytes; of an external topic only its source knows them."""
    if found.external is not None:
        return "", ""
    records = sum(segment.next_offset for segment in found.segments)
    return str(records), format_bytes(sum(segment.size_bytes for segment in found.segments))


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
def split(name: str, segment: SegmentId, as_json: bool) -> None:
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
def merge(name: str, first: SegmentId, second: SegmentId, as_json: bool) -> None:
    """Merge the neighbours FIRST and SECOND of TOPIC into one segment."""
    _change(lambda admin: admin.merge(name, first, second), as_json)


@topic.command(
    "set",
    epilog=examples(
        "headgate topic set orders --auto-split on --max-segments 16",
        "headgate topic set orders --auto-split on --auto-merge on",
        "headgate topic set orders --retention 7d",
        "headgate topic set orders --auto-split default --retention default",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.option("--auto-split", type=switch, metavar="on|off|default", help="Whether busy segments split by themselves.")
@click.option("--auto-merge", type=switch, metavar="on|off|default", help="Whether quiet neighbours merge.")
@click.option("--min-segments", type=count, metavar="N|default", help="Fewest active segments to merge down to.")
@click.option("--max-segments", type=count, metavar="N|default", help="Most active segments to split up to.")
@click.option(
    "--retention",
    type=retention,
    metavar="7d|12h|none|default",
    help="How long a sealed segment is kept once everybody has drained it.",
)
@json_option
@session.config_option
def set_(name: str, as_json: bool, **given: Any) -> None:
    """Say what TOPIC wants otherwise than the cluster's settings.

    What is not named stays as it is; "default" goes back to the cluster's settings, section [scaling] and [retention].
    """
    fields = {"retention": "retention_ms"}
    named = {fields.get(option, option): value for option, value in given.items() if value is not None}
    if not named:
        raise click.UsageError("name at least one option to set; see --help")
    reset = [field for field in get_args(PolicyField) if named.get(field) == DEFAULT]
    values = {field: value for field, value in named.items() if value != DEFAULT}
    _change(lambda admin: admin.set_topic_policy(name, reset=reset, **values), as_json)


@topic.command(
    epilog=examples(
        "headgate topic prune orders --dry-run",
        "headgate topic prune orders",
    ),
)
@click.argument("name", metavar="TOPIC")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@json_option
@session.config_option
def prune(name: str, dry_run: bool, as_json: bool) -> None:
    """Prune the sealed segments of TOPIC that everybody has drained, now, whatever its retention.

    Their data is deleted soon after and cannot be brought back. What stays is listed with its reason.
    """

    async def carry_out() -> PruneResult:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.prune_topic(name, dry_run=dry_run)

    pruned = session.run(carry_out())
    if as_json:
        print_json({"segments": pruned.segments, "retained": pruned.retained, "abandoned": pruned.abandoned})
        return
    for name_of_subscription in pruned.abandoned:
        click.echo(f"not asked, because nobody has used it for too long: {name_of_subscription}", err=True)
    what = "would go" if dry_run else "pruned"
    print_table(
        ("segment", "", "why"),
        [
            *((str(segment), what, "") for segment in pruned.segments),
            *((str(kept.segment), "stays", kept.reason) for kept in pruned.retained),
        ],
        numbers=("segment",),
    )


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
