"""Refuses circles of dead-letter topics. Only a client sees the topics of all shards."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable

from headgate.errors import ConfigError, RequestRejectedError
from headgate.views.subscriptions import SubscriptionInfo


async def check_dead_letter_topic(
    topic: str, dead_letter_topic: str, subscriptions_of: Callable[[str], Awaitable[Iterable[SubscriptionInfo]]]
) -> None:
    """Raise ConfigError if dead letters of ``dead_letter_topic`` return to ``topic``, over whatever topics."""
    pending: list[tuple[str, ...]] = [(topic, dead_letter_topic)]
    seen: set[str] = set()
    while pending:
        way = pending.pop()
        if way[-1] == topic:
            raise ConfigError(f"dead letters would return in a circle: {' to '.join(way)}; choose another topic")
        if way[-1] not in seen:
            seen.add(way[-1])
            # A topic further on that was deleted has no subscriptions.
            with contextlib.suppress(RequestRejectedError):
                known = await subscriptions_of(way[-1])
                pending += [(*way, each.policy.dead_letter_topic) for each in known if each.policy.dead_letter_topic]
