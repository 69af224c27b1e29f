"""One answer for all who ask at about the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Generic, TypeVar

MIN_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0

ValueT = TypeVar("ValueT")


@dataclass(eq=False, repr=False)
class SharedAnswer(Generic[ValueT]):
    make: Callable[[], Awaitable[ValueT]]
    _: KW_ONLY
    about: Callable[[], object] = lambda: None
    """Returns what an answer holds for: one that was made for another value is not used."""
    seconds: float = MIN_PAUSE_SECONDS
    """How long an answer is used, or ``pause_factor`` times as long as it took; at most `MAX_PAUSE_SECONDS`."""
    pause_factor: float = 0.0
    _answer: tuple[ValueT, float, object] | None = None
    """The last answer, until when it is used, and what it is about."""
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self) -> ValueT:
        """Return the last answer while it is young, otherwise a new one."""
        loop = asyncio.get_running_loop()
        async with self._making:
            if self._answer is None or loop.time() >= self._answer[1] or self.about() != self._answer[2]:
                began, about = loop.time(), self.about()
                value = await self.make()
                took_seconds = loop.time() - began
                pause_seconds = min(max(self.seconds, self.pause_factor * took_seconds), MAX_PAUSE_SECONDS)
                self._answer = value, loop.time() + pause_seconds, about
            return self._answer[0]
