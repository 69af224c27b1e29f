"""The newest chunk that was reported as durable, and waiting for a newer one."""

import asyncio
from typing import Final

from headgate.reading.known_history import KnownHistory

POLL_SECONDS: Final = 1.0
"""How often a reader at the tail polls, and how long it waits for an unreachable store."""


class Head:
    """The newest chunk that was reported as durable."""

    def __init__(self, history: KnownHistory | None = None) -> None:
        self.number = 0
        self.history = KnownHistory() if history is None else history
        """What is known of the chunks that were read, and of those that a leader's replies stated."""
        self._awake = asyncio.Event()
        """Set when the head has advanced, or readers have waited for long enough."""
        self._timeouts = 0
        self._timer: asyncio.TimerHandle | None = None
        """Ends the waits of all readers."""

    def advance(self, number: int) -> None:
        """Record that chunk ``number`` is durable."""
        if number > self.number:
            self.number = number
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.wake()

    def retract(self, number: int) -> None:
        """Record that chunk ``number`` + 1 does not exist. Any program may have forged the announcement of a head."""
        self.number = min(self.number, number)

    async def changed(self) -> None:
        """Wait until the head has advanced, or `wake` was called."""
        await self._awake.wait()

    def wake(self) -> None:
        """End all waits for a change."""
        self._awake.set()
        self._awake = asyncio.Event()

    async def wait_for(self, number: int, timeout_seconds: float) -> None:
        """Wait until chunk ``number`` is known to be durable, at most ``timeout_seconds``.

        When one reader has waited for long enough, all end their waits: they poll for one chunk, and share its load.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        timeouts = self._timeouts
        while self.number < number and self._timeouts == timeouts:
            if self._timer is None or deadline < self._timer.when():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_at(deadline, self._time_out)
            await self._awake.wait()

    def _time_out(self) -> None:
        self._timer = None
        self._timeouts += 1
        self.wake()
