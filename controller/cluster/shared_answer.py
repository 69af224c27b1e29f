"""One answer for all who ask at about the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

MIN_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0

ValueT = TypeVar("ValueT")


class SharedAnswer(Generic[ValueT]):
    def __init__(
        self,
        make: Callable[[], Awaitable[ValueT]],
        *,
        about: Callable[[], object] = lambda: None,
        seconds: float = MIN_PAUSE_SECONDS,
        pause_factor: float = 0.0,
    ) -> None:
        """Use an answer for ``seconds``, or ``pause_factor`` times as long as it took; at most `MAX_PAUSE_SECONDS`.

        ``about`` returns what an answer holds for: one that was made for another value is not used.
        """
        self._make = make
        self._about = about
        self._seconds = seconds
        self._pause_factor = pause_factor
        self._answer: tuple[ValueT, float, object] | None = None
        """The last answer, until when it is used, and what it is about."""
        self._making = asyncio.Lock()

    async def get(self) -> ValueT:
        """Return the last answer while it is young, otherwise a new one."""
        loop = asyncio.get_running_loop()
        async with self._making:
            if self._answer is None or loop.time() >= self._answer[1] or self._about() != self._answer[2]:
                began, about = loop.time(), self._about()
                value = await self._make()
                took_seconds = loop.time() - began
                pause_seconds = min(max(self._seconds, self._pause_factor * took_seconds), MAX_PAUSE_SECONDS)
                self._answer = value, loop.time() + pause_seconds, about
            return self._answer[0]
