"""Call functions of the program: handlers in tasks, callbacks of segments, and what SIGTERM stops.

A function that is no coroutine function runs in a thread. A thread cannot be cancelled: what runs there runs to its
end, and its result is ignored once nothing waits for it.

What would wait for the function that calls it is refused. Within a task that the function has started it is not: such a
task may outlive the call.
"""

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from headgate.client.cluster_watch import Handlers
from headgate.client.consuming.record_feed import Spawn
from headgate.client.decisions.held_segments import HeldKey
from headgate.errors import ConfigError, HeadgateError
from headgate.log.event_log import EventLogger
from headgate.model.layout import SegmentSlice, slice_of
from headgate.process.background import end_tasks
from headgate.protocol.replies import Grant

Call = Callable[..., Awaitable[object]]
OnGranted = Callable[[list[SegmentSlice]], object]
"""(segments). A whole segment is its number, a part of one a `BucketRange`."""
OnRevoked = Callable[[list[SegmentSlice], float], object]
"""(segments, seconds left). 0.0: another consumer may read them already."""
SHORTEST_SECONDS: Final = 5.0
"""For `on_revoked`, however little time is left."""
TURN_SECONDS: Final = 0.01
STARTING: Final = 4
"""Most workers that are about to begin."""
CANCEL_SECONDS: Final = 5.0
"""For a handler that was cancelled to end."""
Work = Callable[[], Coroutine[Any, Any, None]]
_stops: Final[Handlers[Callable[[], object]]] = Handlers()


class _Thread(threading.local):
    awaited_by: asyncio.Task[Any] | None = None


_THREAD: Final = _Thread()


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Return whether ``function``, or an object that can be called, is awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def calling_tasks() -> set[asyncio.Task[Any]]:
    """Return the task that this code runs in, and the one that awaits what this thread runs."""
    tasks = {_THREAD.awaited_by}
    with contextlib.suppress(RuntimeError):  # no event loop runs in this thread
        tasks.add(asyncio.current_task())
    return {task for task in tasks if task}


def refuse_own_caller(what: str, tasks: Collection[asyncio.Task[Any] | None]) -> None:
    """Raise HeadgateError if ``what`` is called by a function that one of ``tasks`` calls, and would wait for that."""
    if not calling_tasks().isdisjoint(tasks):
        raise HeadgateError(
            f"{what}: it would wait for the handler or callback that calls it: return from there, and call stop() "
            "before if the run has to end; close the consumer after it"
        )


def awaitable(function: Callable[..., Any], executor: Executor | None = None) -> Call:
    """Return ``function`` as one that is awaited. ``executor``: its threads; None: those of the event loop."""
    if not callable(function):
        raise ConfigError(f"{function!r:.60} is of type {type(function).__name__}: use a function")
    if is_coroutine_function(function):
        return function

    def guarded(task: asyncio.Task[Any] | None, *args: Any) -> object:
        _THREAD.awaited_by = task
        try:
            result = function(*args)
        except StopIteration as error:  # no future can hold it
            raise RuntimeError(f"{function!r} raised StopIteration") from error
        finally:
            _THREAD.awaited_by = None
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{function!r} returned {type(result).__name__}: define it with async def")
        return result

    async def in_thread(*args: Any) -> object:
        call = partial(copy_context().run, guarded, asyncio.current_task(), *args)
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    return in_thread


class SegmentCallbacks:
    """Tells the program which segments it holds: `on_granted` before their first record, `on_revoked` when they go.

    1. Each slice that `on_granted` was called with is one that `on_revoked` is called with, once.
    2. One call runs at a time, in the order of the leader's messages.
    3. A callback that raises ends the consumer. An `on_revoked` that takes too long is cancelled, and logged.
    """

    def __init__(
        self, on_granted: OnGranted | None, on_revoked: OnRevoked | None, spawn: Spawn, log: EventLogger
    ) -> None:
        self._on_granted = None if on_granted is None else awaitable(on_granted)
        self._on_revoked = None if on_revoked is None else awaitable(on_revoked)
        self._spawn = spawn
        self._log = log
        self._turn = asyncio.Lock()
        self.caller: asyncio.Task[Any] | None = None
        """The task that calls a callback now."""
        self._announced: dict[HeldKey, SegmentSlice] = {}

    def granted(self, grants: Iterable[Grant]) -> asyncio.Task[None] | None:
        """Call `on_granted`; return the task that ends when reading may begin. None: now."""
        slices = {
            (each.segment, each.generation): slice_of(each.segment, each.first_bucket, each.end_bucket)
            for each in grants
        }
        self._announced |= slices
        if not slices or self._on_granted is None:
            return None
        return self._spawn(self._call(self._on_granted, list(slices.values())), "on-granted")

    def revoked(self, keys: Iterable[HeldKey], seconds_left: float) -> asyncio.Task[None] | None:
        """Call `on_revoked`; return the task of the call. None: there is nothing to tell."""
        slices = [self._announced.pop(key) for key in keys if key in self._announced]
        return self._spawn(self._revoke(slices, seconds_left), "on-revoked") if slices and self._on_revoked else None

    async def _revoke(self, slices: list[SegmentSlice], seconds_left: float) -> None:
        assert self._on_revoked is not None, "only called if there is one"
        try:
            async with asyncio.timeout(max(seconds_left, SHORTEST_SECONDS)) as limit:
                await self._call(self._on_revoked, slices, max(seconds_left, 0.0))
        except TimeoutError:
            if not limit.expired():
                raise
            self._log.warning("segment.callback_late", segments=str(slices))

    async def _call(self, callback: Call, *args: object) -> None:
        async with self._turn:
            self.caller = asyncio.current_task()
            try:
                await callback(*args)
            except SystemExit as error:  # it would end the event loop before the consumer
                raise HeadgateError(f"{callback!r} raised {error!r}") from error
            finally:
                self.caller = None


class Workers:
    """The tasks of one run, which call its handler.

    1. A worker that begins lets the next one begin before it calls the handler. So calls that wait have a worker each,
       and those that never wait share one.
    2. Workers that never wait let the loop do other work, once it could not for `TURN_SECONDS`.
    """

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


@contextmanager
def stopped_by_sigterm(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` when the process receives SIGTERM during the block. It is called between any two instructions.

    This happens only where nothing else handles SIGTERM: in the main thread, as long as the signal has its default
    action, which would end the process at once. A program or framework with a handler of its own calls `Consumer.stop`
    there.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_sigterm):
        yield
        return
    remove = _stops.add(stop)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        remove()
        if not list(_stops) and signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(_signal: int, _frame: object) -> None:
    for stop in _stops:
        stop()
