"""Reads on for the readers of one `headgate.reading.chunk_cache.ChunkCache` that are at the end of the shard.

Each chunk is looked at once, and wakes the readers whose segments have records in it. So its cost does not grow with
the segments that a consumer holds.

An announcement of a new head may be lost, and a leader can fail before it announces what it wrote. So the next chunk
is looked for a second after the last one, and then ever more seldom: replies to heartbeats state the head as well, and
their absence ends a pause. A chunk that was not announced may not be durable yet, although it can be read, so it is
made durable first.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from headgate.backoff import Backoff
from headgate.errors import ObjectMissingError, StoreUnavailableError
from headgate.reading.head import POLL_SECONDS, Head

POLLS: Final = Backoff(first_seconds=POLL_SECONDS, longest_seconds=300.0, jitter=0)
"""Pause before each poll that follows others without a result. On a bucket each poll is a request that is billed."""
SILENCE_SECONDS: Final = 30.0
"""A pause ends after this time without a leader that states the head."""


class Tail:
    def __init__(self, rows: Callable[[int, int], Awaitable[Any]], make_durable: Callable[[], Awaitable[None]]) -> None:
        """``rows``: `ChunkCache.rows`, for segment → rows, and the ids of terms."""
        self.number = 0
        """The next chunk to look at."""
        self._rows = rows
        self._make_durable = make_durable
        self._waiting: dict[int | None, dict[asyncio.Future[int], float]] = {}
        """Segment → its readers → from which loop time on a poll without a result wakes them."""
        self._task: asyncio.Task[None] | None = None

    def join(self, head: Head, segment: int | None, number: int, wake_at: float) -> asyncio.Future[int]:
        """Return what wakes a reader of ``segment``, whose next chunk is ``number``: its next one then.

        It is woken by each chunk if ``segment`` is None, by one that cannot be read, and by a poll that finds nothing
        at loop time ``wake_at`` or later. An unreachable store is polled on. The future raises LedgerError: a chunk is
        damaged.
        """
        self.number = min(self.number, number) if self._waiting else number
        woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(segment, {})[woken] = wake_at
        woken.add_done_callback(partial(self._leave, segment))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(head), name="read-tail")
        return woken

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _leave(self, segment: int | None, woken: asyncio.Future[int]) -> None:
        readers = self._waiting[segment]
        del readers[woken]
        if not readers:
            del self._waiting[segment]

    async def _run(self, head: Head) -> None:
        polls = 0
        try:
            while self._waiting:
                if self.number > (known := head.number):
                    await pause(head, known, POLLS.bound_seconds(polls))
                    polls = polls + 1 if head.number == known else 0
                if self._waiting and await self._look(head):
                    polls = 0
        except Exception as error:  # noqa: BLE001 - ends the readers, which raise it
            for woken in self._asleep():
                woken.set_exception(error)

    def _asleep(self, until: float = math.inf) -> list[asyncio.Future[int]]:
        """Return what wakes those that wait, up to loop time ``until``."""
        everyone = (each for readers in self._waiting.values() for each in readers.items())
        return [woken for woken, wake_at in everyone if wake_at <= until and not woken.done()]

    async def _look(self, head: Head) -> bool:
        """Look at the next chunk, and wake its readers; return whether it could be read."""
        number = self.number
        try:
            chunk = await self._rows(number, head.number)
            if number > head.number:
                await self._make_durable()
                head.advance(number)
        except (ObjectMissingError, StoreUnavailableError) as error:
            announced = number <= head.number
            if announced or isinstance(error, ObjectMissingError):
                for woken in self._asleep(math.inf if announced else asyncio.get_running_loop().time()):
                    woken.set_result(number)
            return False
        head.history.add(number, chunk.term_id, chunk.previous_term_id)
        if self.number == number:  # Otherwise a reader has joined that needs an earlier one.
            self.number += 1
            for woken in [each for segment in (None, *chunk) for each in self._waiting.get(segment, ())]:
                if not woken.done():
                    woken.set_result(number)
        return True


async def pause(head: Head, known: int, seconds: float) -> None:
    """Wait until a head after ``known`` is stated, for so long, or until nothing was stated for `SILENCE_SECONDS`."""
    until, heard = asyncio.get_running_loop().time() + seconds, -1
    while head.number == known and heard != head.statements:
        if (left := until - asyncio.get_running_loop().time()) <= 0:
            return
        heard = head.statements
        await head.wait_for(known + 1, min(left, SILENCE_SECONDS))
