"""An event loop whose clock jumps to the next timer instead of waiting for it.

There is no external input: a loop with nothing scheduled can never continue, so it raises instead
of hanging. Nothing is waited for, so a turn of the loop is shorter than asyncio's: no selector, and
timers in a heap of tuples. Timers of one time run in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from typing import Any


class DeadlockError(AssertionError):
    """Every task waits, and no timer is scheduled."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in virtual time, starting at 0."""

    _ready: Any  # handles that asyncio runs in this turn or the next one

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual_now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call ``callback`` when the clock has reached ``when``."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``function`` immediately: a thread would finish after real time, which varies."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting task raises it
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, jump to the next timer first. asyncio calls it until the loop stops."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise DeadlockError("nothing is scheduled, and nothing is ready")
            self._virtual_now = max(self._virtual_now, timers[0][0])
        while timers and timers[0][0] <= self._virtual_now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
