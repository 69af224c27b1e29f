"""Names for shell completion: topics, subscriptions, consumers and producers, asked from the cluster.

A completion is a convenience: if the cluster does not answer in `TIMEOUT_SECONDS`, or refuses, there are no names, and
nothing is printed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click

from headgate.cli.context import CommandContext
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate import Admin

TIMEOUT_SECONDS: Final = 3.0
"""A person waits with a finger on the Tab key."""

Names = list[str]


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
    """Return the names of topics that begin with ``incomplete``."""

    async def names(admin: Admin) -> Names:
        return [each.topic for each in await admin.list_topics()]

    return _ask(context, names, incomplete)


def complete_subscription(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
    """Return the names of subscriptions of the topic that precedes on the command line."""
    # After an option without its value, click has not assigned the arguments yet.
    topic = context.params.get("topic") or next(iter(context.args), None)

    async def names(admin: Admin) -> Names:
        return [each.subscription for each in await admin.list_subscriptions(topic)]

    return _ask(context, names, incomplete)


def complete_consumer(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
    """Return the names of consumers of the topic and the subscription that precede on the command line."""
    assigned = [context.params[name] for name in ("topic", "name") if context.params.get(name) is not None]
    topic, subscription = (*assigned, *context.args, None, None)[:2]

    async def names(admin: Admin) -> Names:
        if topic is None or subscription is None:
            return []
        return [each.consumer for each in (await admin.describe_subscription(topic, subscription)).consumers]

    return _ask(context, names, incomplete)


def complete_daemon(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
    """Return the names of live daemons."""

    async def names(admin: Admin) -> Names:
        return [each.daemon for each in (await admin.describe_cluster(blocked=True)).daemons]

    return _ask(context, names, incomplete)


def complete_producer(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
    """Return the names of producers."""

    async def names(admin: Admin) -> Names:
        return [each.producer for each in await admin.list_producers()]

    return _ask(context, names, incomplete)


def _ask(context: click.Context, names: Callable[[Admin], Awaitable[Names]], incomplete: str) -> Names:
    import asyncio  # noqa: PLC0415 - only to complete
    import logging  # noqa: PLC0415

    command_context = context.ensure_object(CommandContext)
    if command_context.config is None:
        command_context.config = context.find_root().params.get("config")

    async def ask() -> Names:
        async with asyncio.timeout(TIMEOUT_SECONDS), command_context.open_admin() as admin:
            return await names(admin)

    logging.getLogger("headgate").setLevel(logging.CRITICAL + 1)
    try:
        found = asyncio.run(ask())
    except (HeadgateError, TimeoutError):
        return []
    return sorted({name for name in found if name.startswith(incomplete)})
