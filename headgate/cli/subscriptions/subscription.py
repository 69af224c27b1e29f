"""`headgate subscription`: commands around `Admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from headgate.cli.arguments import (
    destroy,
    dry_run_option,
    optional_topic_argument,
    subscription_argument,
    topic_argument,
    yes_option,
)
from headgate.cli.context import CommandContext, command
from headgate.cli.subscriptions.create import create
from headgate.cli.subscriptions.dead_letters import dead_letters
from headgate.cli.subscriptions.delivery import policy_text, set_
from headgate.cli.subscriptions.positions import export, import_
from headgate.cli.subscriptions.seek import seek, set_order
from headgate.cli.terminal.output import examples, print_table
from headgate.model.bucket_ranges import slice_of
from headgate.protocol.backlog import records_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate import ConsumerInfo, SegmentAssignment, SubscriptionInfo


@click.group(
    epilog=examples(
        "headgate subscription create orders billing --from earliest",
        "headgate subscription describe orders billing",
        "headgate subscription seek orders billing --to earliest",
        "headgate subscription set-order orders billing none",
    ),
)
def subscription() -> None:
    """Create, list, describe, move, export, import and delete subscriptions."""


subscription.add_command(create)
subscription.add_command(dead_letters)
subscription.add_command(export)
subscription.add_command(import_)
subscription.add_command(seek)
subscription.add_command(set_)
subscription.add_command(set_order)


def _backlog(segments: Sequence[SegmentAssignment]) -> str:
    """Return the leader's count; "-" for CHECKPOINT, and where only the tables of an external topic can tell."""
    counts = [segment.unacknowledged for segment in segments]
    total = None if None in counts else sum(count for count in counts if count is not None)
    return records_text(total, any(segment.estimated for segment in segments))


def _source_heads(described: SubscriptionInfo) -> tuple[str, ...]:
    return ("at the source", "checkpoint") if any(segment.label for segment in described.segments) else ()


def _policy(described: SubscriptionInfo) -> str:
    if described.type != "QUEUE":
        return ""
    return f"; {policy_text(described.policy)}; {described.failed} failed, {described.dead} dead"


def _type(described: SubscriptionInfo) -> str:
    return "unknown" if described.type is None else described.type.lower()


@command("headgate subscription list", "headgate subscription list orders --json", group=subscription, name="list")
@optional_topic_argument
def list_(context: CommandContext, topic: str | None) -> None:
    """List the subscriptions of TOPIC, or of all topics."""
    subscriptions = context.ask(lambda admin: admin.list_subscriptions(topic))
    found = sorted(subscriptions, key=lambda each: (each.topic, each.subscription))
    if context.printed_as_json(found):
        return
    if not found:
        click.echo("no subscriptions; a consumer creates its own, or: headgate subscription create --help", err=True)
        return
    print_table(
        ("topic", "subscription", "type", "consumers", "segments", "blocked", "unacknowledged"),
        [
            (
                each.topic,
                each.subscription,
                _type(each),
                str(sum(consumer.connected for consumer in each.consumers)),
                str(len(each.segments)),
                str(sum(segment.status == "blocked" for segment in each.segments)),
                _backlog(each.segments),
            )
            for each in found
        ],
        numbers=("consumers", "segments", "blocked", "unacknowledged"),
        drop=("segments", "type", "consumers", "blocked"),
    )


def format_grants(segments: Sequence[SegmentAssignment]) -> Iterator[tuple[str, SegmentAssignment]]:
    """Yield every segment with its name, and below a shared segment its bucket ranges, e.g. ``0[0-7]``."""
    for segment in segments:
        yield str(segment.segment), segment
        for part in segment.bucket_ranges:
            name = str(slice_of(segment.segment, part.first_bucket, part.end_bucket))
            yield (
                name,
                replace(
                    segment,
                    status=part.status,
                    acknowledged_offset=part.acknowledged_offset,
                    consumer=part.consumer,
                    generation=part.generation,
                    unacknowledged=part.unacknowledged,
                    estimated=part.estimated,
                ),
            )


def describe_holdings(consumer: ConsumerInfo) -> list[str]:
    shared = {part[0] for part in consumer.bucket_ranges}
    whole = [str(segment) for segment in consumer.segments if segment not in shared]
    return whole + [str(slice_of(*part)) for part in consumer.bucket_ranges]


@command(
    "headgate subscription describe orders billing",
    "headgate subscription describe orders billing --json",
    group=subscription,
)
@topic_argument
@subscription_argument
def describe(context: CommandContext, topic: str, name: str) -> None:
    """Show the segments of SUBSCRIPTION of TOPIC: status, positions, consumers, and what blocks them.

    "~" marks an estimate: consumers that share a segment have different positions in it. "-" marks what is not tracked
    (CHECKPOINT), or what only the source of an external topic knows.
    """
    described = context.ask(lambda admin: admin.describe_subscription(topic, name))
    if context.printed_as_json(described):
        return
    by_load = described.balance == "load"
    click.echo(
        f"{described.subscription} of {described.topic}: {_type(described)}, order {described.order}"
        f"{', balanced by load' if by_load else ''}{_policy(described)}"
    )
    if described.dropped_records:
        click.echo(f"retention deleted {described.dropped_records} records that it had not acknowledged")
    print_table(
        (
            *("segment", "status", "acknowledged", "end", "unacknowledged"),
            *("consumer", "generation", "blocked by"),
            *_source_heads(described),
            *["weight"] * by_load,
        ),
        [
            (
                name,
                segment.status,
                "-" if described.type == "CHECKPOINT" else str(segment.acknowledged_offset),
                str(segment.next_offset),
                records_text(segment.unacknowledged, segment.estimated),
                segment.consumer or "",
                "" if segment.generation is None else str(segment.generation),
                ", ".join(map(str, segment.blocked_by)),
                *((segment.label, segment.checkpoint or "") if segment.label is not None else ()),
                *["" if segment.weight is None else str(segment.weight)] * by_load,
            )
            for name, segment in format_grants(described.segments)
        ],
        numbers=("segment", "acknowledged", "end", "unacknowledged", "generation", "weight"),
        drop=("generation", "weight", "end", "acknowledged", "label"),
    )
    if not described.consumers:
        click.echo("no consumers")
        return
    click.echo()
    print_table(
        ("consumer", "connected", "segments", *["capacity"] * by_load),
        [
            (
                consumer.consumer,
                "yes" if consumer.connected else "no",
                ", ".join(describe_holdings(consumer)) or f"none: {consumer.idle}",
                *[f"{consumer.capacity / 100:g}"] * by_load,
            )
            for consumer in described.consumers
        ],
        numbers=("capacity",) if by_load else (),
    )


@command(
    "headgate subscription delete orders billing",
    "headgate subscription delete orders billing --dry-run",
    "headgate subscription delete orders billing --force --yes",
    group=subscription,
)
@topic_argument
@subscription_argument
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@dry_run_option
@yes_option
def delete(context: CommandContext, topic: str, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Delete SUBSCRIPTION of TOPIC and its positions. This cannot be undone.

    On a terminal, the command shows what would go and asks first. Elsewhere it needs --yes.
    """
    what = f"subscription {name} of {topic}"

    def contents() -> dict[str, Any]:
        described = context.ask(lambda admin: admin.describe_subscription(topic, name))
        connected = sum(consumer.connected for consumer in described.consumers)
        if not context.as_json:
            needs = f"; {connected} consumers are connected, so it needs --force" if connected else ""
            click.echo(f"{what}: {_type(described)}, positions in {len(described.segments)} segments{needs}", err=True)
        return {"segments": len(described.segments), "connected_consumers": connected}

    destroy(
        context,
        {"topic": topic, "subscription": name},
        what,
        contents,
        lambda admin: admin.delete_subscription(topic, name, force=force),
        question=f"Delete {what}?",
        dry_run=dry_run,
        yes=yes,
    )
