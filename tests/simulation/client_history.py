"""What the producers and consumers of a run have seen, for the judge that knows nothing else.

Only keys of the world's own producers count; of a subscription that was moved, what follows the move.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from headgate.client_history.judge import Event, judge
from tests.simulation.broken_promise import BrokenPromiseError


class ClientHistory:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._keys: set[tuple[str, bytes]] = set()

    def sent(self, topic: str, key: bytes, counter: int, sender: str) -> None:
        self._keys.add((topic, key))
        self._add("send", topic, record=f"{key!r} #{counter}", key=key, sender=sender)

    def known(self, topic: str, key: bytes, counter: int, outcome: str) -> None:
        self._add("outcome", topic, record=f"{key!r} #{counter}", outcome=outcome)

    def delivered(self, topic: str, subscription: str, key: bytes, counter: int, **about: Any) -> None:
        if (topic, key) in self._keys:
            self._add("delivery", topic, subscription=subscription, record=f"{key!r} #{counter}", **about)

    def moved(self, topic: str, subscription: str) -> None:
        self._add("seek", topic, subscription=subscription)

    def check(self, complete: Collection[tuple[str, str]]) -> None:
        """Raise BrokenPromiseError for a violation. ``complete``: who had to get all, by topic and subscription."""
        for found in judge(self.events, complete=True):
            if found.rule == "lost" and (found.topic, found.subscription) not in complete:
                continue
            raise BrokenPromiseError(f"the judge: {found.topic} {found.subscription}: {found.rule}: {found.detail}")

    def _add(self, event: str, topic: str, **fields: Any) -> None:
        self.events.append({"event": event, "topic": topic, "at": asyncio.get_running_loop().time()} | fields)
