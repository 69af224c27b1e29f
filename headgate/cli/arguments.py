"""The names that commands take, in one order everywhere: TOPIC SUBSCRIPTION CONSUMER."""

from __future__ import annotations

import click

from headgate.cli.completion import complete_consumer, complete_subscription, complete_topic

topic_argument = click.argument("topic", shell_complete=complete_topic)
subscription_argument = click.argument("name", metavar="SUBSCRIPTION", shell_complete=complete_subscription)
consumer_argument = click.argument("consumer", shell_complete=complete_consumer)
optional_topic_argument = click.argument("topic", required=False, shell_complete=complete_topic)
optional_subscription_argument = click.argument(
    "name", metavar="[SUBSCRIPTION]", required=False, shell_complete=complete_subscription
)
