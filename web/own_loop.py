"""Runs work of seconds in a thread with an event loop of its own, so that the daemon's loop does not wait for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from web.api.overview import NotAnsweredError

MAX_RUNNING: Final = 2

ValueT = TypeVar("ValueT")


class OwnLoop:
    def __init__(self, name: str) -> None:
        self._name = name
        self._running = asyncio.Semaphore(MAX_RUNNING)

    async def run(self, work: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        """Return what ``work`` returns. Raises NotAnsweredError if `MAX_RUNNING` others have not ended."""
        if self._running.locked():
            raise NotAnsweredError(f"{MAX_RUNNING} {self._name} are under way; try again soon")
        async with self._running:
            return await asyncio.to_thread(lambda: asyncio.run(work()))
