"""One HTTP connection: knows whether a request has begun to arrive and is not complete.

aiohttp closes a connection that has no complete request in time, whether a request has begun or not. It reports
neither. The first is an attack or a fault of the network, the second usual for browsers and keep-alive.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web


class HttpConnection(asyncio.Protocol):
    """Passes everything to aiohttp's protocol, and reports how the connection ended."""

    def __init__(
        self, handler: web.RequestHandler, slow_seconds: float, on_end: Callable[[web.RequestHandler, bool], None]
    ) -> None:
        """``on_end``: called with ``handler``, and whether this side ended a request that was too slow.

        ``slow_seconds``: a connection that ends sooner was closed for another reason, e.g. to accept another one.
        """
        self.handler = handler
        self._slow_seconds = slow_seconds
        self._on_end = on_end
        self._opened_at = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport | None = None
        self._request_begun = False
        self._peer_left = False

    def request_complete(self) -> None:
        """Note that a request has arrived completely."""
        self._request_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._transport = transport
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._request_begun = True
        self.handler.data_received(data)

    def eof_received(self) -> None:
        # With TLS, a peer answers the end of the connection with one of its own.
        self._peer_left = self._transport is None or not self._transport.is_closing()
        self.handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        lived_seconds = asyncio.get_running_loop().time() - self._opened_at
        ended_here = error is None and not self._peer_left
        self._on_end(self.handler, self._request_begun and ended_here and lived_seconds >= self._slow_seconds)
        self.handler.connection_lost(error)

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()
