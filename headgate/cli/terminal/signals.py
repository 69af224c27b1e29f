"""Runs a command until it ends or a signal asks it to end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.cli.exit_codes import InterruptedBySignalError

Result = TypeVar("Result")


async def until_signalled(main: Coroutine[Any, Any, Result], *, patient: bool) -> Result:
    """Run ``main`` to its end. On SIGINT or SIGTERM cancel it, let it clean up, raise InterruptedBySignalError.

    A second signal during the cleanup ends the process at once. A ``patient`` command ignores it, because it has
    servers to stop and its cleanup has a time limit.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(main, name="command")
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            task.cancel()
        elif not patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        result = await task
    except asyncio.CancelledError:
        if not seen:
            raise
    else:
        if not seen:
            return result
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    raise InterruptedBySignalError(seen[0])
