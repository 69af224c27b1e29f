"""The newest chunk of a shard that was reported as durable, and waiting for a newer one."""

import asyncio
from contextlib import suppress
from typing import Final

from headgate.reading.known_history import KnownHistory

POLL_SECONDS: Final = 1.0
"""How often a reader at the tail polls, and how long it waits for an unreachable store."""


class Head:
    def __init__(self, history: KnownHistory | None = None) -> None:
        self.number = 0
        self.history = KnownHistory() if history is None else history
        """What is known of the chunks that were read, and of those that a leader's replies stated."""
        self.statements = 0
        """How often a leader has stated a head, newer or not: silence means that it is gone, or its words are lost."""
        self._advanced = asyncio.Event()

    def advance(self, number: int) -> None:
        self.statements += 1
        if number > self.number:
            self.number = number
            self._advanced.set()
            self._advanced = asyncio.Event()

    def retract(self, number: int) -> None:
        """Record that chunk ``number`` + 1 does not exist. Any program may have forged the announcement of a head."""
        self.number = min(self.number, number)

    async def wait_for(self, number: int, timeout_seconds: float) -> None:
        """Wait until chunk ``number`` is known to be durable, at most ``timeout_seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.number < number:
                    await self._advanced.wait()
