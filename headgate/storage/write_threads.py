"""Threads for the disk writes that a reply waits for.

In the loop's default pool a commit would wait behind reads, and a round trip takes 0.23 ms instead
of 0.13 ms. A thread is started when all are busy, up to a limit; beyond it writes are queued.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final

LIMIT: Final = 8
"""Maximum of concurrent writes: a disk benefits from about this many concurrent fsyncs."""


_Write = tuple[Callable[[], None], Callable[[BaseException | None], None]]
"""The operation, and what is called on the writing thread with its error, or None."""
_Queue = SimpleQueue[_Write | None]


class WriteThreads:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._queue: _Queue = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        # The threads reference the queue and not this object, so it can be collected; its finalizer ends them.
        weakref.finalize(self, self._queue.put, None)

    async def run(self, operation: Callable[[], None]) -> None:
        """Run ``operation`` and raise its error. If the caller is cancelled, the operation still runs to its end."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()
        if not self._idle.acquire(blocking=False) and self._started < self._limit:
            self._started += 1
            name = f"writer-{self._started}"
            threading.Thread(target=_run_writes, args=(self._queue, self._idle), name=name, daemon=True).start()
        self._queue.put((operation, partial(_notify, loop, outcome)))
        await outcome


def _run_writes(queue: _Queue, idle: threading.Semaphore) -> None:
    while (write := queue.get()) is not None:
        (operation, on_done), failure = write, None
        try:
            operation()
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            failure = error
        idle.release()
        on_done(failure)
        del write, operation, on_done, failure
    queue.put(None)  # For the next thread.


def _notify(loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[None], failure: BaseException | None) -> None:
    # On a closed loop no caller waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_set_outcome, outcome, failure)


def _set_outcome(outcome: asyncio.Future[None], failure: BaseException | None) -> None:
    if outcome.done():
        return
    if failure is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(failure)
