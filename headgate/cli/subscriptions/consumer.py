"""`headgate consumer`: the consumers of subscriptions, where they run, and how to evict one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict

from headgate.cli.arguments import consent_options, consumer_argument, destroy, of_any_subscription, of_subscription
from headgate.cli.context import CommandContext, command
from headgate.cli.subscriptions.subscription import describe_holdings
from headgate.cli.terminal.output import print_table
from headgate.errors import HeadgateError
from headgate.model.text import listed
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate import Admin, ConsumerInfo, SubscriptionInfo

_PLAIN: Final = ("topic", "subscription", "consumer", "state", "segments")
_VERBOSE: Final = ("topic", "subscription", "consumer", "state", "host", "version", "since (UTC)", "heard", "segments")
_DROP: Final = ("version", "since (UTC)", "topic", "subscription", "heard")
"""The table of one subscription needs neither its name nor its topic."""


@click.group()
def consumer() -> None:
    """List and evict the consumers of subscriptions."""


@command(
    "headgate consumer list",
    "headgate consumer list orders billing --verbose",
    "headgate consumer list orders --json",
    group=consumer,
    name="list",
)
@of_any_subscription
@click.option("--verbose", "-v", is_flag=True, help="Add where each runs, since when, and when it was heard last.")
def list_(context: CommandContext, topic: str | None, name: str | None, verbose: bool) -> None:
    """List the consumers of SUBSCRIPTION of TOPIC, of all its subscriptions, or of all topics.

    "disconnected": its heartbeats are missing, and it keeps its segments until its grace period ends. Host and version
    are what the program says. "heard" is the time since its last message, or since its leader began to lead.
    """

    async def found(admin: Admin) -> list[SubscriptionInfo]:
        if topic is not None and name is not None:
            return [await admin.describe_subscription(topic, name)]
        return await admin.list_subscriptions(topic)

    members = [(each, member) for each in context.ask(found) for member in each.consumers]
    if context.printed_as_json(
        [{"topic": each.topic, "subscription": each.subscription, **asdict(member)} for each, member in members]
    ):
        return
    if not members:
        click.echo("no consumers; see: headgate consume --help", err=True)
        return
    columns = _VERBOSE if verbose else _PLAIN
    print_table(
        columns,
        [[_row(each, member)[column] for column in columns] for each, member in members],
        numbers=("heard",),
        drop=_DROP,
    )


def _row(subscription: SubscriptionInfo, member: ConsumerInfo) -> dict[str, str]:
    return {
        "topic": subscription.topic,
        "subscription": subscription.subscription,
        "consumer": member.consumer,
        "state": _state(member),
        "host": member.host or "-",
        "version": member.version or "-",
        "since (UTC)": "-" if member.registered_at_ms is None else utc_minute(member.registered_at_ms),
        "heard": "-" if member.last_heard_age_ms is None else f"{member.last_heard_age_ms / 1000:.0f} s",
        "segments": describe_holdings(member),
    }


def _state(member: ConsumerInfo) -> str:
    return "connected" if member.connected else "disconnected"


@command(
    "headgate consumer evict orders billing reader-1 --dry-run",
    "headgate consumer evict orders billing reader-1",
    "headgate consumer evict orders billing reader-1 --yes --json",
    group=consumer,
)
@of_subscription
@consumer_argument
@consent_options()
def evict(context: CommandContext, topic: str, name: str, consumer: str) -> None:
    """Remove CONSUMER from SUBSCRIPTION of TOPIC; the other consumers get its segments.

    Use it for a program that hangs and still sends heartbeats. What it has not acknowledged is delivered again. The
    program ends with an error and does not join again; one that is started afterwards may use the name. On a
    terminal, the command shows what would go and asks first. Elsewhere it needs --yes.
    """
    what = f"consumer {consumer} of subscription {name} of {topic}"

    def contents() -> dict[str, Any]:
        member = _find(context.ask(lambda admin: admin.describe_subscription(topic, name)), consumer)
        if not context.as_json:
            host = f" on {member.host}" if member.host else ""
            click.echo(
                f"{what}: {_state(member)}{host}; segments: {describe_holdings(member)}", err=not context.dry_run
            )
        return {"segments": member.segments, "connected": member.connected, "host": member.host}

    destroy(
        context,
        {"topic": topic, "subscription": name, "consumer": consumer},
        what,
        contents,
        lambda admin: admin.evict_consumer(topic, name, consumer),
        question=f"Evict {what}?",
        done="evicted",
    )


def _find(described: SubscriptionInfo, name: str) -> ConsumerInfo:
    for member in described.consumers:
        if member.consumer == name:
            return member
    known = listed([member.consumer for member in described.consumers]) or "none"
    raise HeadgateError(f"subscription {described.subscription} has no consumer {name!r}; consumers: {known}")
