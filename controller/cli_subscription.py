"""`headgate subscription`: thin commands around `Admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from controller import cli_session as session
from controller.cli_output import examples, json_option, print_json, print_table

if TYPE_CHECKING:
    from headgate.messages import SegmentProgress, SubscriptionDescription


@click.group(
    epilog=examples(
        "headgate subscription list",
        "headgate subscription describe orders billing",
    ),
)
def subscription() -> None:
    """List, describe and delete subscriptions."""


def _backlog(segments: list[SegmentProgress]) -> int:
    return sum(max(0, segment.next_offset - segment.acknowledged_offset) for segment in segments)


def _type(described: SubscriptionDescription) -> str:
    return "not known yet" if described.type is None else described.type.lower()


@subscription.command(
    "list",
    epilog=examples(
        "headgate subscription list",
        "headgate subscription list orders --json",
    ),
)
@click.argument("topic", required=False)
@json_option
@session.config_option
def list_(topic: str | None, as_json: bool) -> None:
    """List the subscriptions of TOPIC, or of all topics."""

    async def ask() -> list[SubscriptionDescription]:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.list_subscriptions(topic)

    found = sorted(session.run(ask()), key=lambda each: (each.topic, each.subscription))
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no subscriptions yet; the first consumer of one creates it: headgate consume --help", err=True)
        return
    print_table(
        ("topic", "subscription", "type", "consumers", "segments", "blocked", "not acknowledged"),
        [
            (
                each.topic,
                each.subscription,
                _type(each),
                str(sum(consumer.connected for consumer in each.consumers)),
                str(len(each.segments)),
                str(sum(segment.status == "blocked" for segment in each.segments)),
                str(_backlog(each.segments)),
            )
            for each in found
        ],
        numbers=("consumers", "segments", "blocked", "not acknowledged"),
    )


@subscription.command(
    epilog=examples(
        "headgate subscription describe orders billing",
        "headgate subscription describe orders billing --json",
    ),
)
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@json_option
@session.config_option
def describe(topic: str, name: str, as_json: bool) -> None:
    """Show who reads what in SUBSCRIPTION of TOPIC, and what is blocked by which segments."""

    async def ask() -> SubscriptionDescription:
        async with session.open_admin(session.client_config()) as admin:
            return await admin.describe_subscription(topic, name)

    described = session.run(ask())
    if as_json:
        print_json(described)
        return
    click.echo(f"{described.subscription} of {described.topic}: {_type(described)}, order {described.order}")
    print_table(
        ("segment", "status", "acknowledged", "end", "consumer", "generation", "blocked by"),
        [
            (
                str(segment.segment),
                segment.status,
                str(segment.acknowledged_offset),
                str(segment.next_offset),
                segment.consumer or "",
                "" if segment.generation is None else str(segment.generation),
                ", ".join(map(str, segment.blocked_by)),
            )
            for segment in described.segments
        ],
        numbers=("segment", "acknowledged", "end", "generation"),
    )
    if not described.consumers:
        click.echo("no consumers")
        return
    click.echo()
    print_table(
        ("consumer", "connected", "segments"),
        [
            (consumer.consumer, "yes" if consumer.connected else "no", ", ".join(map(str, consumer.segments)))
            for consumer in described.consumers
        ],
    )


@subscription.command(
    epilog=examples(
        "headgate subscription delete orders billing",
        "headgate subscription delete orders billing --force",
    ),
)
@click.argument("topic")
@click.argument("name", metavar="SUBSCRIPTION")
@click.option("--force", is_flag=True, help="Delete it even while consumers use it.")
@session.config_option
def delete(topic: str, name: str, force: bool) -> None:
    """Delete SUBSCRIPTION of TOPIC and its positions."""

    async def carry_out() -> None:
        async with session.open_admin(session.client_config()) as admin:
            await admin.delete_subscription(topic, name, force=force)

    session.run(carry_out())
    click.echo(f"subscription {name} of {topic} is deleted", err=True)
