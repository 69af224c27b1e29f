"""`headgate topic`: commands around `Admin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, get_args
from urllib.parse import unquote, urlsplit

import click

from headgate.cli import arguments
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import format_bytes, print_table
from headgate.cli.topics.topic_text import (
    DEFAULT,
    count,
    draw_topic,
    import_lines,
    max_age,
    max_bytes,
    option_values,
    switch,
)
from headgate.cli.topics.transfer import copy
from headgate.errors import LayoutError
from headgate.model.entries import TopicPolicy
from headgate.model.text import listed, plural
from headgate.protocol.request_fields import PolicyField

if TYPE_CHECKING:
    from headgate import Admin, PruneResult, SegmentId, SubscriptionInfo, TopicImportResult, TopicSetting
    from headgate.reading.topic_files import TopicFile
    from headgate.views.topics import TopicInfo


@command("headgate topic files orders", "headgate topic files orders --json > orders.json")
@arguments.topic_argument
def files(context: CommandContext, topic: str) -> None:
    """List the Parquet files that hold the records of TOPIC, each record once.

    A compacted file holds only records of one segment of TOPIC. A chunk also has other rows: select fact "record", and
    the topic id, the segments and their offsets that --json prints. If a file disappears while it is read, list again.
    In Python, `headgate.dataset` does all of this.
    """
    description, ledger_id, found, terms = context.run(_files(context, topic))
    listed = listing(description, ledger_id, found, context.client_config().ledger_url)
    for each in listed["files"]:
        # As text: many programs read a JSON number of 63 bits wrongly.
        each["term_id"] = str(terms[each["first_chunk"]]) if each["kind"] == "chunk" else None
    if context.printed_as_json(listed):
        return
    print_table(
        ("kind", "chunks", "segment", "offsets", "location"),
        [
            (
                each["kind"],
                f"{each['first_chunk']}-{each['last_chunk']}",
                "" if each["segment"] is None else str(each["segment"]),
                "" if each["segment"] is None else f"{each['first_offset']}-{each['end_offset'] - 1}",
                each["location"],
            )
            for each in listed["files"]
        ],
        numbers=("segment",),
    )


def listing(topic: TopicInfo, ledger_id: str, files: list[TopicFile], ledger_url: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - not needed to print help

    base = location(ledger_url)
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "shard": topic.shard,
        "ledger_id": ledger_id,
        "segments": [{"segment": each.segment, "end_offset": each.next_offset} for each in topic.segments],
        "files": [{"location": f"{base}/{each.path}", **msgspec.structs.asdict(each)} for each in files],
    }


def location(ledger_url: str) -> str:
    """Return what Parquet readers call the ledger: the path of a folder, or the URL of a bucket."""
    parts = urlsplit(ledger_url)
    return (unquote(parts.path) if parts.scheme == "file" else ledger_url).rstrip("/")


async def _files(context: CommandContext, topic: str) -> tuple[TopicInfo, str, list[TopicFile], dict[int, int]]:
    from headgate.reading.topic_files import terms_of, topic_files  # noqa: PLC0415 - not needed to print help

    async with context.open_topic(topic) as source:
        found = await topic_files(source.ledger, source.description)
        terms = await terms_of(source.ledger, [each.first_chunk for each in found if each.kind == "chunk"])
        return source.description, source.ledger_id, found, terms


@click.group()
def topic() -> None:
    """Create, import, list, describe, split, merge, get, set, copy, prune, delete topics; list their files."""


topic.add_command(copy)
topic.add_command(files)

_topic_argument = click.argument("name", metavar="TOPIC", shell_complete=arguments.complete_topic)


def _print_topic(described: TopicInfo) -> None:
    click.echo("\n".join(draw_topic(described)))


@command("headgate topic create orders", "headgate topic create orders --segments 4", group=topic)
@click.argument("name", metavar="TOPIC")
@click.option("--segments", type=click.IntRange(1, 1024), default=1, show_default=True, help="Number of segments.")
def create(context: CommandContext, name: str, segments: int) -> None:
    """Create TOPIC."""
    context.show(lambda admin: admin.create_topic(name, segments=segments), _print_topic)


@command(
    "headgate topic import orders shards.json",
    "aws kinesis list-shards --stream-name orders | headgate topic import orders - --format kinesis",
    "headgate topic import orders shards.json --format kinesis --dry-run",
    group=topic,
    name="import",
)
@_topic_argument
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format",
    "form",
    type=click.Choice(["headgate", "kinesis"]),
    default="headgate",
    show_default=True,
    help="Format of FILE. headgate: a JSON list of segments. kinesis: the output of list-shards.",
)
@click.option("--partial", is_flag=True, help="FILE lists only changed segments; all others stay unchanged.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def import_(context: CommandContext, name: str, file: BinaryIO, form: str, partial: bool, dry_run: bool) -> None:
    """Create or update the external topic TOPIC from a listing of its segments.

    headgate does not store the records of an external topic. FILE (- for standard input) lists the segments at the
    source, with their parents. Import again after each split or merge at the source. Importing twice is harmless.
    """
    from headgate import read_layout, read_list_shards  # noqa: PLC0415 - not needed to print help

    try:
        layout = (read_layout if form == "headgate" else read_list_shards)(file.read())
    except LayoutError as error:
        raise LayoutError(f"{file.name}: {error}") from None

    def print_import(answer: TopicImportResult) -> None:
        _print_topic(answer.topic)
        for line in import_lines(answer, dry_run=dry_run):
            click.echo(line, err=True)

    context.show(lambda admin: admin.import_topic(name, layout, complete=not partial, dry_run=dry_run), print_import)


@command("headgate topic list", "headgate topic list --json", group=topic, name="list")
def list_(context: CommandContext) -> None:
    """List all topics."""
    context.show(
        lambda admin: admin.list_topics(), _print_list, empty="no topics; create one: headgate topic create NAME"
    )


def _print_list(topics: Sequence[TopicInfo]) -> None:
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
        drop=("kind", "shard", "sealed", "size", "active"),
    )


def _amounts(found: TopicInfo) -> tuple[str, str]:
    """Return records and bytes; empty for an external topic, because only its source knows them."""
    if found.external is not None:
        return "", ""
    records = sum(segment.next_offset for segment in found.segments)
    return str(records), format_bytes(sum(segment.size_bytes for segment in found.segments))


@command("headgate topic describe orders", "headgate topic describe orders --json", group=topic)
@_topic_argument
def describe(context: CommandContext, name: str) -> None:
    """Show the segments of TOPIC as a tree, with their key-hash ranges, records and sizes.

    The hash of a record's key determines its segment. "→ 4" refers to merged segment 4, which is drawn elsewhere.
    """
    context.show(lambda admin: admin.describe_topic(name), _print_topic)


@command("headgate topic get orders", "headgate topic get orders --json", group=topic)
@_topic_argument
def get(context: CommandContext, name: str) -> None:
    """Show the scaling and retention settings that apply to TOPIC, and where each is from.

    "topic": `headgate topic set`. "setting": the settings of the daemon that leads it. "default": neither.
    """
    context.show(lambda admin: admin.topic_settings(name), _print_settings)


def _print_settings(found: Sequence[TopicSetting]) -> None:
    policy: dict[str, Any] = {each.name: each.value for each in found}
    values = option_values(TopicPolicy(**policy))
    sources = {each.name.removesuffix("_ms").replace("_", "-"): each.source for each in found}
    print_table(("option", "value", "source"), [(each, values[each], sources[each]) for each in values])


@command("headgate topic split orders 2", group=topic)
@_topic_argument
@click.argument("segment", type=click.IntRange(min=0))
def split(context: CommandContext, name: str, segment: SegmentId) -> None:
    """Split SEGMENT of TOPIC in the middle of its key-hash range.

    Producers and consumers keep running. STREAM subscriptions open the two children when SEGMENT is drained.
    """
    context.show(lambda admin: admin.split(name, segment), _print_topic)


@command("headgate topic merge orders 3 4", group=topic)
@_topic_argument
@click.argument("first", type=click.IntRange(min=0))
@click.argument("second", type=click.IntRange(min=0))
def merge(context: CommandContext, name: str, first: SegmentId, second: SegmentId) -> None:
    """Merge the adjacent segments FIRST and SECOND of TOPIC into one."""
    context.show(lambda admin: admin.merge(name, first, second), _print_topic)


@command(
    "headgate topic set orders --auto-split on --max-segments 16",
    "headgate topic set orders --auto-split on --auto-merge on",
    "headgate topic set orders --max-age 7d --max-bytes 50GB",
    "headgate topic set orders --max-age 1h --ignore-subscriptions on",
    "headgate topic set orders --auto-split default --max-age default",
    group=topic,
    name="set",
)
@_topic_argument
@click.option("--auto-split", type=switch, metavar="on|off|default", help="Split busy segments automatically.")
@click.option("--auto-merge", type=switch, metavar="on|off|default", help="Merge idle adjacent segments automatically.")
@click.option("--min-segments", type=count, metavar="N|default", help="Never merge below N active segments.")
@click.option("--max-segments", type=count, metavar="N|default", help="Never split beyond N active segments.")
@click.option(
    "--max-age",
    "max_age_ms",
    type=max_age,
    metavar="7d|12h|none|default",
    help="Delete older records (units s, m, h, d, w) once they are acknowledged. none: keep all.",
)
@click.option(
    "--max-bytes",
    type=max_bytes,
    metavar="50GB|none|default",
    help="Delete the oldest records of a larger topic (units kB, MB, GB, TB) once they are acknowledged.",
)
@click.option(
    "--ignore-subscriptions",
    type=switch,
    metavar="on|off|default",
    help="Delete also records that subscriptions have not acknowledged; what each loses is counted.",
)
def set_(context: CommandContext, name: str, **given: Any) -> None:
    """Override the cluster's scaling and retention settings for TOPIC.

    Options that are not given stay unchanged. "default" returns to the cluster's sections [scaling] and [retention].
    """
    named = {option: value for option, value in given.items() if value is not None}
    if not named:
        raise click.UsageError("give at least one option to set")
    reset = [field for field in get_args(PolicyField) if named.get(field) == DEFAULT]
    values = {field: value for field, value in named.items() if value != DEFAULT}
    context.show(lambda admin: admin.set_topic_policy(name, TopicPolicy(**values), reset=reset), _print_topic)


@command("headgate topic prune orders --dry-run", "headgate topic prune orders --yes", group=topic)
@_topic_argument
@arguments.consent_options()
def prune(context: CommandContext, name: str) -> None:
    """Prune the sealed segments of TOPIC that every subscription has drained, regardless of retention.

    Their data is deleted shortly afterwards and cannot be restored. Retained segments are listed with the reason.
    """
    arguments.require_consent(context)
    seen, changes_nothing, shown = arguments.seen_before(context, name), context.dry_run, None
    if context.asks_first:
        proposed = context.ask(lambda admin: admin.prune_topic(name, dry_run=True))
        _print_pruned(proposed, dry_run=True, err=True)
        shown = proposed.segments  # What can be pruned only by now is not.
        changes_nothing = not shown
        if proposed.segments:
            arguments.ask_first(f"Prune {plural(len(proposed.segments), 'segment')} of {name}?", "nothing was pruned")
    pruned = context.ask(lambda admin: admin.bound_to(seen).prune_topic(name, dry_run=changes_nothing, shown=shown))
    if not context.printed_as_json(
        {"segments": pruned.segments, "retained": pruned.retained, "abandoned": pruned.abandoned}
    ):
        _print_pruned(pruned, dry_run=changes_nothing)


def _print_pruned(pruned: PruneResult, *, dry_run: bool, err: bool = False) -> None:
    for subscription in pruned.abandoned:
        click.echo(f"ignored expired subscription {subscription}: it has had no consumer for too long", err=True)
    if not (pruned.segments or pruned.retained):
        click.echo("nothing to prune: the topic has no sealed segments", err=True)
        return
    action = "would be pruned" if dry_run else "pruned"
    print_table(
        ("segment", "", "reason"),
        [
            *((str(segment), action, "") for segment in pruned.segments),
            *((str(each.segment), "retained", each.reason) for each in pruned.retained),
        ],
        numbers=("segment",),
        err=err,
    )


@command(
    "headgate topic delete orders",
    "headgate topic delete orders --dry-run",
    "headgate topic delete orders --force --yes",
    group=topic,
)
@_topic_argument
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@arguments.consent_options()
def delete(context: CommandContext, name: str, force: bool) -> None:
    """Delete TOPIC with its records and subscriptions. This cannot be undone.

    On a terminal, the command shows what would go and asks first. Elsewhere it needs --yes.
    """

    async def described(admin: Admin) -> tuple[TopicInfo, list[SubscriptionInfo]]:
        return await admin.describe_topic(name), await admin.list_subscriptions(name)

    def contents() -> dict[str, Any]:
        found = topic_contents(*context.ask(described))
        if not context.as_json:
            click.echo(_contents_line(name, found), err=not context.dry_run)
        return found

    arguments.destroy(
        context,
        {"topic": name},
        f"topic {name}",
        contents,
        lambda admin: admin.delete_topic(name, force=force),
    )


def topic_contents(described: TopicInfo, subscriptions: list[SubscriptionInfo]) -> dict[str, Any]:
    """Return what goes with a topic; ``records`` and ``bytes`` are None if they are stored elsewhere."""
    stored = described.external is None
    return {
        "segments": len(described.segments),
        "records": sum(segment.next_offset for segment in described.segments) if stored else None,
        "bytes": sum(segment.size_bytes for segment in described.segments) if stored else None,
        "subscriptions": sorted(each.subscription for each in subscriptions),
        "connected_consumers": sum(consumer.connected for each in subscriptions for consumer in each.consumers),
    }


def _contents_line(name: str, contents: dict[str, Any]) -> str:
    records = "records that stay at their source"
    if contents["records"] is not None:
        records = f"{plural(contents['records'], 'record')} ({format_bytes(contents['bytes'])})"
    subscriptions = listed(contents["subscriptions"]) or "none"
    line = f"topic {name}: {plural(contents['segments'], 'segment')}, {records}; subscriptions: {subscriptions}"
    if contents["connected_consumers"]:
        line += f"; {plural(contents['connected_consumers'], 'connected consumer')}, so it needs --force"
    return line
