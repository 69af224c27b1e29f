"""The tasks of one run, which call its handler.

1. A worker that begins lets the next one begin before it calls the handler. So calls that wait have a worker each, and
   those that never wait share one.
2. Workers that never wait let the loop do other work, once it could not for `TURN_SECONDS`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headgate.process.background import end_tasks

TURN_SECONDS: Final = 0.01
STARTING: Final = 4
"""Most workers that are about to begin."""
CANCEL_SECONDS: Final = 5.0
"""For a handler that was cancelled to end."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Workers:
    def __init__(self, work: Work, fail: Callable[[BaseException], None]) -> None:
        """``work`` is what a worker does. ``fail`` gets the error of a task that has failed."""
        self._work = work
        self._fail = fail
        self.tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._turn_began_at: float | None = None
        """Loop time of the first question of this turn of the loop."""

    def start(self) -> None:
        """Start a worker, unless enough are about to begin."""
        if self._starting < STARTING:
            self._starting += 1
            self.spawn(self._begin())

    async def _begin(self) -> None:
        self._starting -= 1
        await self._work()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def should_pause(self, now: float) -> bool:
        """Rule 2. The first question of each turn of the loop begins its time."""
        if self._turn_began_at is not None:
            return now > self._turn_began_at + TURN_SECONDS
        self._turn_began_at = now
        asyncio.get_running_loop().call_soon(self._end_turn)
        return False

    def _end_turn(self) -> None:
        self._turn_began_at = None

    async def cancel(self) -> None:
        await end_tasks(*self.tasks, seconds=CANCEL_SECONDS)
