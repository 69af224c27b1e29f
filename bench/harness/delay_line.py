"""A TCP proxy that delays each direction, in order and without a bandwidth limit.

``python -m bench.harness.delay_line HOST PORT DELAY_MS…`` listens on one free loopback port per delay, prints
the ports on one line in the same order, and forwards to ``HOST:PORT``. It runs as its own process,
so that it takes no time from the measured program, and ends with its standard input. Nothing is
lost; timers fire up to 1 ms late, equally for both sides.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from headgate.transport.loopback import loopback


class DelayLine:
    """Bytes of one direction that are not due yet."""

    def __init__(self, delay_seconds: float, sink: asyncio.WriteTransport) -> None:
        self._delay_seconds = delay_seconds
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | None]] = deque()

    def put(self, data: bytes | None) -> None:
        """Forward ``data`` after the delay; None closes."""
        if not self._delay_seconds:
            self._forward(data)
            return
        due = self._loop.time() + self._delay_seconds
        self._waiting.append((due, data))
        if len(self._waiting) == 1:
            self._loop.call_at(due, self._on_due)

    def _on_due(self) -> None:
        # One timer for all data keeps the order: two timers of the same moment may fire in any order.
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self._forward(self._waiting.popleft()[1])
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._on_due)

    def _forward(self, data: bytes | None) -> None:
        if data is None:
            self._sink.close()
        elif not self._sink.is_closing():
            self._sink.write(data)


class _DelayedProtocol(asyncio.Protocol):
    """One end of a connection; forwards to the other end with a delay."""

    def __init__(self, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        self.transport: asyncio.Transport | None = None
        self.line: DelayLine | None = None
        self._early: list[bytes | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "TCP connections have a Transport"
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def feed(self, sink: asyncio.Transport) -> None:
        """Forward to ``sink`` what has arrived and what will arrive."""
        self.line = DelayLine(self.delay_seconds, sink)
        for data in self._early:
            self.line.put(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._receive(None)

    def _receive(self, data: bytes | None) -> None:
        if self.line is None:
            self._early.append(data)
        else:
            self.line.put(data)


class _ClientSide(_DelayedProtocol):
    """The end that a client connects to."""

    def __init__(self, delay_seconds: float, host: str, port: int) -> None:
        super().__init__(delay_seconds)
        self._target = (host, port)
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        near = self.transport
        assert near is not None, "accepted without a transport"
        try:
            _, far = await asyncio.get_running_loop().create_connection(
                lambda: _DelayedProtocol(self.delay_seconds), *self._target
            )
        except OSError:
            near.abort()
            return
        assert far.transport is not None, "connected without a transport"
        self.feed(far.transport)
        far.feed(near)


async def standard_input_ended() -> None:
    """Wait until standard input is closed."""
    await asyncio.to_thread(sys.stdin.read)


async def serve(
    host: str, port: int, delays_ms: list[float], *, ended: Callable[[], Awaitable[object]] = standard_input_ended
) -> None:
    """Listen for each delay, print the ports, and serve until ``ended`` returns."""
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(partial(_ClientSide, delay_ms / 1000, host, port), loopback(), 0)
        for delay_ms in delays_ms
    ]
    try:
        print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
        await ended()
    finally:
        for server in servers:
            server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), [float(delay) for delay in sys.argv[3:]]))
