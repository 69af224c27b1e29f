"""The newest chunk that was reported as durable, waiting for a newer one, and polling for one that was not reported."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headgate.backoff import Backoff
from headgate.errors import ObjectMissingError, StoreUnavailableError
from headgate.reading.known_history import KnownHistory

POLL_SECONDS: Final = 1.0
"""How often a reader at the tail polls, and how long it waits for an unreachable store."""
POLLS: Final = Backoff(first_seconds=POLL_SECONDS, longest_seconds=30.0, jitter=0)
"""Pause before each poll that follows others without a result. On a bucket each poll is a request that is billed."""


class Head:
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
        await self._awake.wait()

    def wake(self) -> None:
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


class TailPoll:
    """Polls for the next chunk, once for all readers of one `headgate.reading.chunk_cache.ChunkCache`.

    An announcement of a new head may be lost, and a leader can fail before it announces what it wrote. So the next
    chunk is looked for a second after the head has changed, and then ever more seldom: replies to heartbeats state the
    head as well. A reader is woken when the chunk can be read, and otherwise only by a poll that ends when the reader
    wants to do something else. So the cost of an idle topic does not grow with its segments.
    """

    def __init__(self, load: Callable[[int], asyncio.Task[Any]]) -> None:
        self._load = load
        self._waiting: Counter[int] = Counter()
        """Chunk → how many readers wait for it. One that has just read compacted objects may be ahead of the head."""
        self._wake_at = math.inf
        """The earliest time at which a waiting reader wants to be woken by a poll without a result."""
        self._timer: asyncio.TimerHandle | None = None
        self._timed_at_head = 0
        self._empty_polls = 0
        """How many polls in a row have found nothing."""
        self._polls_in_flight = 0
        self._wakes = 0
        self._found: dict[int, BaseException | None] = {}
        """The chunks that the last poll has found → why they cannot be read."""

    async def wait_for(self, head: Head, number: int, wake_at: float) -> bool:
        """Wait until chunk ``number`` is durable or can be read, and return True.

        Return False after a poll that has found nothing, at loop time ``wake_at`` or later. An unreachable store is
        polled on. Raises LedgerError: the chunk is damaged.
        """
        wakes = self._wakes
        self._waiting[number] += 1
        try:
            while head.number < number:
                self._wake_at = min(self._wake_at, wake_at)
                self._set_timer(head)
                await head.changed()
                if self._wakes != wakes:
                    wakes = self._wakes
                    if number in self._found:
                        if (error := self._found[number]) is not None:
                            raise error
                        return True
                    if asyncio.get_running_loop().time() >= wake_at:
                        return False
        finally:
            self._waiting[number] -= 1
            if not self._waiting[number]:
                del self._waiting[number]
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, head: Head) -> None:
        """Poll a while after the last poll, or a second after the head has changed."""
        if self._timed_at_head != head.number:
            self._empty_polls = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if self._timer is None and not self._polls_in_flight:
            self._timed_at_head = head.number
            pause_seconds = POLLS.bound_seconds(self._empty_polls)
            self._timer = asyncio.get_running_loop().call_later(pause_seconds, self._poll, head)

    def _poll(self, head: Head) -> None:
        self._timer = None
        self._empty_polls += 1
        self._found.clear()
        for number in sorted(self._waiting):
            self._polls_in_flight += 1
            self._load(number).add_done_callback(partial(self._polled, head, number))

    def _polled(self, head: Head, number: int, loaded: asyncio.Task[Any]) -> None:
        self._polls_in_flight -= 1
        if loaded.cancelled() or not self._waiting:
            return
        error = loaded.exception()
        missing = isinstance(error, ObjectMissingError)
        if not missing and not isinstance(error, StoreUnavailableError):
            self._found[number] = error
        if number in self._found or (missing and asyncio.get_running_loop().time() >= self._wake_at):
            self._wakes += 1
            self._wake_at = math.inf
            head.wake()
        else:
            self._set_timer(head)
