"""What several commands take: names in one order (TOPIC SUBSCRIPTION CONSUMER), and the type of a subscription."""

import click

from headgate.cli.completion import complete_consumer, complete_subscription, complete_topic
from headgate.model.entries import SubscriptionType

topic_argument = click.argument("topic", shell_complete=complete_topic)
subscription_argument = click.argument("name", metavar="SUBSCRIPTION", shell_complete=complete_subscription)
consumer_argument = click.argument("consumer", shell_complete=complete_consumer)
optional_topic_argument = click.argument("topic", required=False, shell_complete=complete_topic)
optional_subscription_argument = click.argument(
    "name", metavar="[SUBSCRIPTION]", required=False, shell_complete=complete_subscription
)
subscription_type_option = click.option(
    "--type",
    "kind",
    type=click.Choice(SubscriptionType, case_sensitive=False),
    default=SubscriptionType.STREAM,
    show_default=False,
    help="stream: ordered per key. queue: any order. checkpoint: nothing is acknowledged. [default: stream]",
)
