"""`headgate subscription set`: what a QUEUE does with records that are not acknowledged."""

import click

from headgate.cli.arguments import subscription_argument, topic_argument
from headgate.cli.completion import complete_topic
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.seconds_type import Seconds
from headgate.model.entries import DeliveryPolicy


@command(
    "headgate subscription set orders jobs --max-deliveries 5 --dead-letter orders-dead",
    "headgate subscription set orders jobs --ack-timeout 60",
    name="set",
)
@topic_argument
@subscription_argument
@click.option("--max-deliveries", type=int, metavar="N", help="Failed deliveries until a record is dead; 0: no limit.")
@click.option("--ack-timeout", type=Seconds(0.0), help="Seconds until a delivery has failed; 0: no limit.")
@click.option("--dead-letter", metavar="TOPIC", shell_complete=complete_topic, help='Where dead records go; "": none.')
def set_(
    context: CommandContext,
    topic: str,
    name: str,
    max_deliveries: int | None,
    ack_timeout: float | None,
    dead_letter: str | None,
) -> None:
    """Set what SUBSCRIPTION of TOPIC, a queue, does with records that are not acknowledged. Consumers may run."""
    described = context.ask(
        lambda admin: admin.set_delivery_policy(
            topic,
            name,
            max_deliveries=max_deliveries,
            ack_timeout_seconds=ack_timeout,
            dead_letter_topic=dead_letter,
        )
    )
    if not context.printed_as_json(described):
        click.echo(f"subscription {name} of {topic}: {policy_text(described.policy)}", err=True)


def policy_text(policy: DeliveryPolicy) -> str:
    parts = [f"dead after {policy.max_deliveries} deliveries"] if policy.max_deliveries else []
    parts += [f"acknowledged within {policy.ack_timeout_ms / 1000:g} s"] if policy.ack_timeout_ms else []
    parts += [f"dead letters in {policy.dead_letter_topic}"] if policy.dead_letter_topic else []
    return ", ".join(parts) or "no limits"
