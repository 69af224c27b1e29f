"""Run blocking calls in threads, with as little work for each as possible.

A commit and a read of a small chunk take tens of microseconds of a thread. The pools of the standard library take as
much again for a future of their own, its condition and a second turn of the loop.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

THREADS: Final = 8
"""Maximum of concurrent calls: a disk benefits from about this many concurrent fsyncs."""


class DiskThreads:
    """Up to `THREADS` threads, which end with this object, or with the process."""

    def __init__(self, name: str) -> None:
        self._name, self._threads = name, 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Return or raise what ``work`` does. It runs to its end, also if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def report(set_outcome: Callable[[Any], None], value: object) -> None:
            if not outcome.done():
                set_outcome(value)

        def call() -> None:
            found: tuple[Callable[[Any], None], object]
            try:
                found = outcome.set_result, work()
            except Exception as error:  # noqa: BLE001 - the caller raises it
                found = outcome.set_exception, error
            with contextlib.suppress(RuntimeError):  # The loop was closed after the caller was cancelled.
                loop.call_soon_threadsafe(report, *found)

        self._calls.put(call)
        if self._threads < THREADS and not self._calls.empty():
            self._threads += 1
            threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._calls.put, None)
        return await outcome


def _serve(calls: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call
