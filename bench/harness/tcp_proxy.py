"""A TCP proxy between a client and a real server, with network faults.

``blackhole``: data is dropped without an error, as with an unplugged cable. New connections are accepted and silent.
               With a direction, open connections still carry data the other way.
``cut``:       connections are reset and new ones rejected, as by a firewall that answers.
``heal``:      new connections work; connections that lost data are reset.

With ``delay_seconds`` all data arrives so much later, and a connection begins after one round trip.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, Literal, Self

from controller.local.reserved_port import LOOPBACK, ReservedPort
from headgate.process.background import end_tasks

Direction = Literal["to_server", "to_client"]
BOTH: Final[tuple[Direction, ...]] = ("to_server", "to_client")


class Proxy:
    """Listens on a reserved loopback port and forwards to ``host:port``."""

    def __init__(self, host: str, port: int, delay_seconds: float = 0.0) -> None:
        self.port = 0
        self._delay_seconds = delay_seconds
        self._reserved = ExitStack()
        self._target = (host, port)
        self._state: Literal["healthy", "hole", "cut"] = "healthy"
        self._dropped: tuple[Direction, ...] = ()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """``host:port`` of the proxy."""
        return f"{LOOPBACK}:{self.port}"

    async def blackhole(self, *directions: Direction) -> None:
        """Drop all data from now on, or only what flows in one of ``directions``."""
        self._state, self._dropped = "hole", directions or BOTH

    async def cut(self) -> None:
        """Reset all connections and reject new ones."""
        self._state, self._dropped = "cut", BOTH
        await self._close_listener()
        await self._reset()

    async def heal(self) -> None:
        broken, self._state, self._dropped = self._state != "healthy", "healthy", ()
        if broken:
            await self._reset()
        if self._server is None:
            await self._listen()

    async def __aenter__(self) -> Self:
        # Reserved also while it does not listen, so that no other process uses the port.
        self.port = self._reserved.enter_context(ReservedPort()).number
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._reserved:
            await self._close_listener()
            await self._reset()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)

    async def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _reset(self) -> None:
        await end_tasks(*self._pipes)
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._state != "healthy":
            return
        await asyncio.sleep(2 * self._delay_seconds)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        for end in (writer, far_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipes: list[tuple[Direction, asyncio.StreamReader, asyncio.StreamWriter]] = [
            ("to_server", reader, far_writer),
            ("to_client", far_reader, writer),
        ]
        for direction, source, sink in pipes:
            task = asyncio.create_task(self._forward(direction, source, sink))
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)

    async def _forward(self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await source.read(65536):
                if not self._delay_seconds:
                    self._deliver(direction, sink.write, data)
                    await sink.drain()
                else:
                    loop.call_later(self._delay_seconds, self._deliver, direction, sink.write, data)
        # The end of a connection is data as well.
        loop.call_later(self._delay_seconds, self._deliver, direction, sink.close)

    def _deliver(self, direction: Direction, deliver: Callable[..., None], *data: bytes) -> None:
        """Deliver, unless the network lost it on the way."""
        if direction not in self._dropped:
            deliver(*data)
