"""What the comparison needs of a server and its client."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from controller.local.reserved_port import LOOPBACK
from headgate.errors import HeadgateError
from headgate.process.child_process import ChildProcess

START_SECONDS, PROBE_SECONDS, STOP_SECONDS = 90.0, 0.1, 20.0
AT_ONCE = 500
"""Records of one request, where the client asks for a number."""
KEYS = [f"sensor-{number:04d}" for number in range(1000)]


class MissingServerError(HeadgateError):
    """The server is not installed."""


class Peer(Protocol):
    """A server in a folder of its own, and a client of it in this process."""

    async def start(self, stack: AsyncExitStack, folder: Path, streams: Sequence[str]) -> None:
        """Start the server with empty ``streams``, until ``stack`` is closed. Raises MissingServerError."""

    async def send(self, stream: str, values: Sequence[bytes]) -> None:
        """Store records in the fastest way of the client; return when all are acknowledged."""

    async def receive(self, stream: str, on_records: Callable[[int], None], *, new: bool) -> None:
        """Pass the number of records that a new consumer got and looked at, until cancelled: all, or ``new`` ones."""


async def start_server(
    stack: AsyncExitStack, folder: Path, port: int, *command: str, environ: Mapping[str, str] | None = None
) -> None:
    """Start a server that ends with ``stack``, and return when it listens on ``port``."""
    try:
        process = await ChildProcess.start(*command, log_path=folder / f"{port}.log", environ=environ)
    except FileNotFoundError:
        raise MissingServerError(f"{command[0]} is not installed") from None
    stack.push_async_callback(process.stop, STOP_SECONDS)
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
            except OSError:
                await asyncio.sleep(PROBE_SECONDS)
            else:
                return writer.close()
