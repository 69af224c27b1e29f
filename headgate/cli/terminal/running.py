"""What a command needs while it runs: logs, an end by signals, and standard streams that do not block the event loop.

A slow reader (``| less``) or a silent writer (``tail -f |``) must not stop heartbeats and replies. Therefore a pipe or
terminal is read or written only when the kernel reports it ready. O_NONBLOCK is not set, because other processes share
the file. Regular files are always ready.
"""

import asyncio
import errno
import logging
import os
import select
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, TypeVar

import headgate
from headgate.cli.exit_codes import InterruptedBySignalError
from headgate.process.background import end_tasks

REPEATING: dict[str, int] = {
    # Its errors are the reasons of headgate.transport.mqtt, once more at each attempt.
    "headgate.transport.paho": logging.CRITICAL,
    "asyncio": logging.WARNING,
}
"""Minimum level of loggers that repeat what others say. With ``--debug``, INFO for all."""
Result = TypeVar("Result")
READ_BLOCK_BYTES = 256 * 1024
WRITE_BLOCK_BYTES = select.PIPE_BUF
"""A ready pipe accepts this much without blocking; a larger write could block."""
LOOK_INTERVAL_SECONDS: Final = 0.2
"""How often an idle command looks whether its output still has a reader."""


def start_logs(*, debug: bool) -> None:
    """Log warnings to a terminal, where they show why a command waits, and only errors to a script."""
    level = logging.WARNING if sys.stderr.isatty() else logging.ERROR
    if debug:
        level = logging.DEBUG
    logging.basicConfig(
        stream=sys.stderr,
        level=max(level, logging.INFO),
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger(headgate.__name__).setLevel(level)
    for name, quiet in REPEATING.items():
        logging.getLogger(name).setLevel(logging.INFO if debug else max(quiet, level))


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


async def read_blocks(file: int) -> AsyncGenerator[bytes, None]:
    """Yield the content of the descriptor ``file``, block by block, until its end."""
    waits = _is_pollable(file)
    loop = asyncio.get_running_loop()
    while True:
        if waits:
            await _wait_until_ready(file, loop.add_reader, loop.remove_reader)
        else:
            await asyncio.sleep(0)
        block = os.read(file, READ_BLOCK_BYTES)
        if not block:
            return
        yield block


async def write_all(file: int, data: bytes) -> None:
    """Write ``data`` to the descriptor ``file``. Raises BrokenPipeError if the reader has closed it."""
    waits = _is_pollable(file)
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        if waits:
            await _wait_until_ready(file, loop.add_writer, loop.remove_writer)
        rest = rest[os.write(file, rest[:WRITE_BLOCK_BYTES] if waits else rest) :]


async def while_read(file: int, main: Coroutine[Any, Any, Result]) -> Result:
    """Run ``main``, which writes to the descriptor ``file``, to its end.

    Raises BrokenPipeError once the reader has closed it, also while ``main`` has nothing to write.
    """
    errors = select.poll()
    errors.register(file, 0)
    task = asyncio.create_task(main, name="main")
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_INTERVAL_SECONDS)
            if not task.done() and errors.poll(0):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE), "standard output")
        return task.result()
    finally:
        await end_tasks(task)


def _is_pollable(file: int) -> bool:
    mode = os.fstat(file).st_mode
    # epoll supports terminals, but no other character device (/dev/null is always ready) and no regular file.
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(file))


async def _wait_until_ready(file: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    add(file, ready.set)
    try:
        await ready.wait()
    finally:
        remove(file)
