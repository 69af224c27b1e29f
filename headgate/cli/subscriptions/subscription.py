"""`headgate subscription`: list, describe, create, set and delete. The moves are in headgate.cli.subscriptions.seek."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from headgate.cli import arguments
from headgate.cli.context import CommandContext, command
from headgate.cli.subscriptions.failed_records import dead_letters, drop, parked, resume
from headgate.cli.subscriptions.seek import export, import_, seek, set_order
from headgate.cli.terminal.option_types import Seconds
from headgate.cli.terminal.output import print_table
from headgate.model.entries import DeliveryPolicy, SubscriptionType
from headgate.model.layout import slice_of
from headgate.model.text import plural
from headgate.protocol.backlog import records_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate import ConsumerInfo, SegmentAssignment, SubscriptionInfo


@click.group()
def subscription() -> None:
    """Create, list, describe, move, export, import and delete subscriptions."""


for each in (dead_letters, drop, export, import_, parked, resume, seek, set_order):
    subscription.add_command(each)


def _backlog(segments: Sequence[SegmentAssignment]) -> str:
    """Return the leader's count; "-" for CHECKPOINT, and where only the tables of an external topic can tell."""
    counts = [segment.unacknowledged for segment in segments]
    total = None if None in counts else sum(count for count in counts if count is not None)
    return records_text(total, any(segment.estimated for segment in segments))


def _policy(described: SubscriptionInfo) -> str:
    if described.type != "QUEUE":
        policy = f"; {policy_text(described.policy)}" if described.policy != DeliveryPolicy() else ""
        return policy + (f"; {plural(described.parked_keys, 'key')} parked" if described.parked_keys else "")
    return f"; {policy_text(described.policy)}; {described.failed} failed, {described.dead} dead"


def _type(described: SubscriptionInfo) -> str:
    return "unknown" if described.type is None else described.type.lower()


@command("headgate subscription list", "headgate subscription list orders --json", group=subscription, name="list")
@arguments.optional_topic_argument
def list_(context: CommandContext, topic: str | None) -> None:
    """List the subscriptions of TOPIC, or of all topics."""
    context.show(lambda admin: admin.list_subscriptions(topic), _print_list, empty=arguments.NO_SUBSCRIPTIONS)


def _print_list(found: Sequence[SubscriptionInfo]) -> None:
    print_table(
        ("topic", "subscription", "type", "consumers", "segments", "blocked", "unacknowledged"),
        [
            (
                each.topic,
                each.subscription,
                _type(each),
                sum(consumer.connected for consumer in each.consumers),
                len(each.segments),
                sum(segment.status == "blocked" for segment in each.segments),
                _backlog(each.segments),
            )
            for each in found
        ],
        numbers=("unacknowledged",),
        drop=("segments", "type", "consumers", "blocked"),
    )


_OF_A_PART = ("status", "acknowledged_offset", "consumer", "generation", "unacknowledged", "estimated")


def format_grants(segments: Sequence[SegmentAssignment]) -> Iterator[tuple[str, SegmentAssignment]]:
    """Yield every segment with its name, and below a shared segment its bucket ranges, e.g. ``0[0-7]``."""
    for segment in segments:
        yield str(segment.segment), segment
        for part in segment.bucket_ranges:
            name = str(slice_of(segment.segment, part.first_bucket, part.end_bucket))
            yield name, replace(segment, **{each: getattr(part, each) for each in _OF_A_PART})


def describe_holdings(consumer: ConsumerInfo) -> str:
    return ", ".join(consumer.holdings) or f"none: {consumer.idle}"


@command(
    "headgate subscription describe orders billing",
    "headgate subscription describe orders billing --json",
    group=subscription,
)
@arguments.of_subscription
def describe(context: CommandContext, topic: str, name: str) -> None:
    """Show the segments of SUBSCRIPTION of TOPIC: status, positions, consumers, and what blocks them.

    "~" marks an estimate: consumers that share a segment have different positions in it. "-" marks what is not tracked
    (CHECKPOINT), or what only the source of an external topic knows.
    """
    context.show(lambda admin: admin.describe_subscription(topic, name), _print_subscription)


def _print_subscription(described: SubscriptionInfo) -> None:
    by_load = described.balance == "load"
    click.echo(
        f"{described.subscription} of {described.topic}: {_type(described)}, order {described.order}"
        f"{', balanced by load' if by_load else ''}{_policy(described)}"
    )
    if described.dropped_records:
        click.echo(f"retention deleted {plural(described.dropped_records, 'record')} that it had not acknowledged")
    print_table(
        (
            *("segment", "status", "acknowledged", "end", "unacknowledged"),
            *("consumer", "generation", "blocked by"),
            *(("at the source", "checkpoint") if any(segment.label for segment in described.segments) else ()),
            *["weight"] * by_load,
        ),
        [
            (
                name,
                segment.status,
                None if described.type == "CHECKPOINT" else segment.acknowledged_offset,
                segment.next_offset,
                records_text(segment.unacknowledged, segment.estimated),
                segment.consumer or "",
                "" if segment.generation is None else segment.generation,
                ", ".join(map(str, segment.blocked_by)),
                *((segment.label, segment.checkpoint or "") if segment.label is not None else ()),
                *["" if segment.weight is None else segment.weight] * by_load,
            )
            for name, segment in format_grants(described.segments)
        ],
        numbers=("segment", "unacknowledged"),
        drop=("generation", "weight", "end", "acknowledged", "checkpoint"),
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
                describe_holdings(consumer),
                *[f"{consumer.capacity / 100:g}"] * by_load,
            )
            for consumer in described.consumers
        ],
        numbers=("capacity",),
    )


@command(
    "headgate subscription delete orders billing",
    "headgate subscription delete orders billing --dry-run",
    "headgate subscription delete orders billing --force --yes",
    group=subscription,
)
@arguments.of_subscription
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@arguments.consent_options()
def delete(context: CommandContext, topic: str, name: str, force: bool) -> None:
    """Delete SUBSCRIPTION of TOPIC and its positions. This cannot be undone.

    On a terminal, the command shows what would go and asks first. Elsewhere it needs --yes.
    """
    what = f"subscription {name} of {topic}"

    def contents() -> dict[str, Any]:
        described = context.ask(lambda admin: admin.describe_subscription(topic, name))
        connected, segments = sum(each.connected for each in described.consumers), len(described.segments)
        if not context.as_json:
            needs = f"; {plural(connected, 'connected consumer')}, so it needs --force" if connected else ""
            text = f"{what}: {_type(described)}, positions in {plural(segments, 'segment')}{needs}"
            click.echo(text, err=not context.dry_run)
        return {"segments": segments, "connected_consumers": connected}

    arguments.destroy(
        context,
        {"topic": topic, "subscription": name},
        what,
        contents,
        lambda admin: admin.delete_subscription(topic, name, force=force),
    )


max_processing_option = click.option(
    "--max-processing",
    "max_processing_seconds",
    type=Seconds(0.0),
    help="Seconds without progress until others read; 0: no limit.",
)


@command(
    "headgate subscription create orders billing",
    "headgate subscription create orders audit --type queue --from earliest",
    "headgate subscription create orders audit --from 2026-01-31T18:00:00Z --if-not-exists",
    group=subscription,
)
@arguments.topic_argument
@click.argument("name", metavar="SUBSCRIPTION")
@arguments.subscription_type_option
@arguments.start_option
@click.option(
    "--if-not-exists", is_flag=True, help="One that exists with this type is no error, and keeps its position."
)
@max_processing_option
def create(
    context: CommandContext,
    topic: str,
    name: str,
    kind: SubscriptionType,
    start: str | int,
    if_not_exists: bool,
    max_processing_seconds: float | None,
) -> None:
    """Create SUBSCRIPTION of TOPIC before its first consumer.

    Its records are kept from now on, as for any subscription. Without this command, the first consumer creates its
    subscription. Consumers of another type are refused.
    """
    place = arguments.place_arguments(start, "start")
    described = context.ask(
        lambda admin: admin.create_subscription(topic, name, type=kind, if_absent=if_not_exists, **place)
    )
    if max_processing_seconds is not None:
        described = context.ask(
            lambda admin: admin.set_delivery_policy(topic, name, max_processing_seconds=max_processing_seconds)
        )
    counted = _backlog(described.segments)
    records = "" if counted == "-" else f", {counted} unacknowledged records"
    context.report(described, f"subscription {name} of {topic}: {_type(described)}, order {described.order}{records}")


@command(
    "headgate subscription set orders jobs --max-deliveries 5 --dead-letter orders-dead",
    "headgate subscription set orders jobs --ack-timeout 60",
    "headgate subscription set orders billing --max-processing 600",
    "headgate subscription set orders sampling --ignored-by-retention",
    group=subscription,
    name="set",
)
@arguments.of_subscription
@click.option(
    "--max-deliveries", type=click.IntRange(0, 1000), metavar="N", help="Failures until a record is dead; 0: no limit."
)
@click.option(
    "--ack-timeout", "ack_timeout_seconds", type=Seconds(0.0), help="Seconds until a delivery has failed; 0: no limit."
)
@click.option(
    "--dead-letter",
    "dead_letter_topic",
    metavar="TOPIC",
    shell_complete=arguments.complete_topic,
    help='Where dead records go; "": none.',
)
@max_processing_option
@click.option("--ignored-by-retention/--held-by-retention", default=None, help="Whether its unread records may go.")
def set_(context: CommandContext, topic: str, name: str, **given: Any) -> None:
    """Set what happens to records of TOPIC that SUBSCRIPTION has not acknowledged. Consumers may run.

    A consumer that acknowledges nothing for --max-processing, although there are records, loses its segment to another
    one. With --ignored-by-retention the topic's --max-age and --max-bytes hold for unread records, too. The other
    options are for a queue.
    """
    if all(value is None for value in given.values()):
        raise click.UsageError("give at least one option to set")
    described = context.ask(lambda admin: admin.set_delivery_policy(topic, name, **given))
    context.report(described, f"subscription {name} of {topic}: {policy_text(described.policy)}")


def policy_text(policy: DeliveryPolicy) -> str:
    parts = [f"dead after {policy.max_deliveries} deliveries"] if policy.max_deliveries else []
    parts += [f"acknowledged within {policy.ack_timeout_ms / 1000:g} s"] if policy.ack_timeout_ms else []
    parts += [f"dead letters in {policy.dead_letter_topic}"] if policy.dead_letter_topic else []
    parts += [f"progress within {policy.max_processing_ms / 1000:g} s"] if policy.max_processing_ms else []
    parts += ["ignored by retention"] if policy.ignored_by_retention else []
    return ", ".join(parts) or "no limits"
