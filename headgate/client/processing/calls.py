"""Call functions of the program, in threads if need be, and refuse what would wait for itself. What SIGTERM stops.

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
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from headgate.client.request_attempts import Handlers
from headgate.errors import ConfigError, HeadgateError

Call = Callable[..., Awaitable[object]]
_stops: Final[Handlers[Callable[[], object]]] = Handlers()


class _Thread(threading.local):
    awaited_by: asyncio.Task[Any] | None = None


_THREAD: Final = _Thread()


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


def awaitable(what: str, function: Callable[..., Any], executor: Executor | None = None) -> Call:
    """Return ``function`` as one that is awaited. ``executor``: its threads; None: those of the event loop."""
    if not callable(function):
        raise ConfigError(f"{what}={function!r:.60}: use a function")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
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
