"""`headgate subscription create`: create a subscription before its first consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import subscription_type_option, topic_argument
from headgate.cli.context import CommandContext, command
from headgate.cli.position_types import PLACE_HELP, Place, place_arguments
from headgate.model.entries import SubscriptionType
from headgate.protocol.backlog import records_text

if TYPE_CHECKING:
    from headgate import SubscriptionInfo


@command(
    "headgate subscription create orders billing",
    "headgate subscription create orders audit --type queue --from earliest",
    "headgate subscription create orders audit --from 2026-01-31T18:00:00Z --if-not-exists",
)
@topic_argument
@click.argument("name", metavar="SUBSCRIPTION")
@subscription_type_option
@click.option(
    "--from",
    "start",
    type=Place(),
    default="latest",
    show_default=True,
    help=f"Where it starts. {PLACE_HELP}",
)
@click.option("--if-not-exists", is_flag=True, help="One that exists with this type is no error and stays as it is.")
def create(
    context: CommandContext,
    topic: str,
    name: str,
    kind: SubscriptionType,
    start: str | int,
    if_not_exists: bool,
) -> None:
    """Create SUBSCRIPTION of TOPIC before its first consumer.

    Its records are kept from now on, as for any subscription. Without this command, the first consumer creates its
    subscription. Consumers of another type are refused.
    """
    place = place_arguments(start, "start")
    described = context.ask(
        lambda admin: admin.create_subscription(topic, name, type=kind, if_absent=if_not_exists, **place)
    )
    if not context.printed_as_json(described):
        click.echo(_summary(described), err=True)


def _summary(described: SubscriptionInfo) -> str:
    kind = "unknown" if described.type is None else described.type.lower()
    line = f"subscription {described.subscription} of {described.topic}: {kind}, order {described.order}"
    counts = [each.unacknowledged for each in described.segments]
    if None in counts:
        return line
    total = sum(count for count in counts if count is not None)
    return f"{line}, {records_text(total, any(each.estimated for each in described.segments))} unacknowledged records"
