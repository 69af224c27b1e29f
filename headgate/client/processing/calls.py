"""Call a function of the program: one that is no coroutine function runs in a thread.

A thread cannot be cancelled: what runs there runs to its end, and its result is ignored once nothing waits for it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any

from headgate.errors import ConfigError

Call = Callable[..., Awaitable[object]]


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Return whether ``function``, or an object that can be called, is awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def awaitable(function: Callable[..., Any], executor: Executor | None = None) -> Call:
    """Return ``function`` as one that is awaited. ``executor``: its threads; None: those of the event loop."""
    if not callable(function):
        raise ConfigError(f"{function!r:.60} is of type {type(function).__name__}: use a function")
    if is_coroutine_function(function):
        return function

    def guarded(*args: Any) -> object:
        try:
            result = function(*args)
        except StopIteration as error:  # no future can hold it
            raise RuntimeError(f"{function!r} raised StopIteration") from error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{function!r} returned {type(result).__name__}: define it with async def")
        return result

    async def in_thread(*args: Any) -> object:
        call = partial(copy_context().run, guarded, *args)
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    return in_thread
