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
Completion = Callable[[click.Context, click.Parameter, str], Names]


def _completion(find: Callable[[Admin, str | None, str | None], Awaitable[Names]]) -> Completion:
    """Return what completes an argument with the names that ``find`` returns.

    ``find`` gets the topic and the subscription that precede on the command line, None where there is none.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
        # After an option without its value, click has not assigned the arguments yet.
        assigned = [context.params[name] for name in ("topic", "name") if context.params.get(name) is not None]
        topic, subscription = (*assigned, *context.args, None, None)[:2]
        return _ask(context, lambda admin: find(admin, topic, subscription), incomplete)

    return complete


@_completion
async def complete_topic(admin: Admin, *_: str | None) -> Names:
    return [each.topic for each in await admin.list_topics()]


@_completion
async def complete_subscription(admin: Admin, topic: str | None, _: str | None) -> Names:
    return [each.subscription for each in await admin.list_subscriptions(topic)]


@_completion
async def complete_consumer(admin: Admin, topic: str | None, subscription: str | None) -> Names:
    if topic is None or subscription is None:
        return []
    return [each.consumer for each in (await admin.describe_subscription(topic, subscription)).consumers]


@_completion
async def complete_daemon(admin: Admin, *_: str | None) -> Names:
    return [each.daemon for each in (await admin.describe_cluster(blocked=True)).daemons]


@_completion
async def complete_producer(admin: Admin, *_: str | None) -> Names:
    return [each.producer for each in await admin.list_producers()]


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
