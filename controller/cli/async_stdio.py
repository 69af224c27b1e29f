"""Standard input and output that never hold up the event loop.

A reader that is slow (``| less``) or a writer that is silent (``tail -f |``) must not stop heartbeats and replies. So a
pipe or terminal is read or written only when the kernel says that it is ready, and the flags of the file, which other
processes share, stay as they are. Regular files are always ready.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncGenerator, Callable

READ_BLOCK_BYTES = 256 * 1024
WRITE_BLOCK_BYTES = select.PIPE_BUF
"""A pipe that is ready takes this much without blocking; a larger write could hang."""


async def read_blocks(file: int) -> AsyncGenerator[bytes, None]:
    """Yield what the descriptor ``file`` gives, block by block, until its end."""
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
    """Write ``data`` to the descriptor ``file``. Raises BrokenPipeError if nobody reads any more."""
    waits = _is_pollable(file)
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        if waits:
            await _wait_until_ready(file, loop.add_writer, loop.remove_writer)
        rest = rest[os.write(file, rest[:WRITE_BLOCK_BYTES] if waits else rest) :]


def _is_pollable(file: int) -> bool:
    mode = os.fstat(file).st_mode
    # epoll takes terminals, but no other character device (/dev/null is always ready) and no regular file.
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(file))


async def _wait_until_ready(file: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    add(file, ready.set)
    try:
        await ready.wait()
    finally:
        remove(file)
