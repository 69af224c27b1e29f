"""Accepts HTTP connections within two limits: their number, and the file descriptors of the process.

asyncio's own server has neither. Without descriptors it fails to accept thousands of times per
second and logs each failure (python/cpython#151615), while ZooKeeper and the store get none.

1. Connections take at most a quarter of the descriptors that the process may open.
2. At the limit, the oldest connection is closed once its request is answered, or a second later: a
   client that sends or reads nothing must not keep others out.
3. A failure to accept is logged once a minute, and followed by a pause.
4. A TLS handshake has a time limit, counts as a connection, and delays no other one. At the limit,
   handshakes are ended first, because their clients have proved nothing.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from headgate.backoff import ReportLimit
from headgate.process.background import end_tasks
from headgate.transport.loopback import host_port
from metrics import events
from metrics.label_values import HttpDenial

LOG_SECONDS: Final = 3600.0
MAX_LOGGED_PEERS: Final = 1000
"""Above it, all are forgotten, and are logged again."""
DESCRIPTOR_FRACTION: Final = 4
BACKLOG: Final = 100
"""Connections that the kernel holds until they are accepted."""
LOOK_SECONDS: Final = 0.01
"""Between two looks at whether a connection has been closed."""
REPORT_SECONDS: Final = 60.0
MAX_CONNECTIONS: Final = 100
"""Far above what Prometheus, a probe and some browsers need."""
KEEPALIVE_SECONDS: Final = 15.0
"""After this long, a connection without a complete request is closed."""
HANDSHAKE_SECONDS: Final = 10.0
"""Longest TLS handshake: some round trips of the slowest network."""
PAUSE_SECONDS: Final = 1.0
"""After a failure to accept: whatever took the descriptors needs time to return them."""
CLOSE_SECONDS: Final = 1.0
"""Longest wait for the answer to a request, and for its client to read it, on a connection that is closed; also for all
when the daemon stops."""

log = structlog.get_logger(__name__)


class HttpDenials:
    """Counts what HTTP refuses, and logs the first refusal of each peer in an hour."""

    def __init__(self, observer: events.Observer) -> None:
        self._observer = observer
        self._logged = ReportLimit(LOG_SECONDS, MAX_LOGGED_PEERS)

    def report(self, reason: HttpDenial, peer: str) -> None:
        """Report one refusal; ``peer`` is an address without a port."""
        self._observer.observe(events.HttpDenied(reason=reason))
        if self._logged.is_due(asyncio.get_running_loop().time(), (peer, reason)):
            log.warning("http.denied", peer=peer, reason=reason)


def handshake_denial(error: OSError) -> HttpDenial | None:
    """Return why a TLS handshake failed; None if the peer only went away, as the probe of a port does."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return None
    reason = error.reason or ""
    if reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "plaintext"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return "server_certificate"
    return "client_certificate" if "CERTIFICATE" in reason else "handshake"


class HttpConnection(asyncio.Protocol):
    """Passes everything to aiohttp's protocol, and reports how the connection ended.

    aiohttp closes a connection that has no complete request in time, whether a request has begun or not. It reports
    neither. The first is an attack or a fault of the network, the second usual for browsers and keep-alive.
    """

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


def connection_limit(max_connections: int, descriptors: int) -> int:
    """Return how many connections may be open if the process may open ``descriptors``; negative: any number."""
    return max_connections if descriptors < 0 else max(1, min(max_connections, descriptors // DESCRIPTOR_FRACTION))


@dataclass(eq=False, repr=False)
class HttpListener:
    server: web.Server
    observer: events.Observer
    denials: HttpDenials
    _: KW_ONLY
    tls: Callable[[], ssl.SSLContext | None]
    """Called for each connection; None: without TLS."""
    _connections: dict[web.RequestHandler, HttpConnection] = field(default_factory=dict)
    _sockets: list[socket.socket] = field(default_factory=list)
    _accepting: list[asyncio.Task[None]] = field(default_factory=list)
    _handshakes: dict[asyncio.Task[None], socket.socket] = field(default_factory=dict)
    _reports: ReportLimit = field(default_factory=lambda: ReportLimit(REPORT_SECONDS))
    _failures: int = 0

    async def open(self, host: str, port: int) -> str:
        """Listen on all addresses of ``host``; return the first as ``host:port``. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address[:2]) for family, *_, address in found):
                listening = socket.create_server(address, family=family, backlog=BACKLOG)
                self._sockets.append(listening)
                listening.setblocking(False)
        except OSError:
            self._close_sockets()
            raise
        self._accepting = [loop.create_task(self._accept(listening), name="http-accept") for listening in self._sockets]
        bound_host, bound_port = self._sockets[0].getsockname()[:2]
        return host_port(bound_host, bound_port)

    async def close(self) -> None:
        await end_tasks(*self._accepting, *self._handshakes)
        self._close_sockets()

    def request_arrived(self, handler: web.RequestHandler) -> None:
        if (connection := self._connections.get(handler)) is not None:
            connection.request_complete()

    def _new_connection(self, peer: str) -> HttpConnection:
        def on_end(handler: web.RequestHandler, slow: bool) -> None:
            del self._connections[handler]
            if slow:
                self.denials.report("slow_request", peer)

        handler = self.server()
        connection = self._connections[handler] = HttpConnection(handler, KEEPALIVE_SECONDS / 2, on_end)
        return connection

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                self._report(error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                await self._close_surplus()
                if (context := self.tls()) is None:
                    await loop.connect_accepted_socket(partial(self._new_connection, address[0]), connection)
                    continue
            except asyncio.CancelledError:
                connection.close()
                raise
            handshake = loop.create_task(self._shake_hands(connection, address[0], context), name="http-handshake")
            self._handshakes[handshake] = connection
            handshake.add_done_callback(self._end_handshake)

    async def _shake_hands(self, connection: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await loop.connect_accepted_socket(
                    partial(self._new_connection, peer), connection, ssl=context, ssl_shutdown_timeout=CLOSE_SECONDS
                )
        except TimeoutError:
            self.denials.report("slow_handshake", peer)
        except OSError as error:
            if (reason := handshake_denial(error)) is not None:
                self.denials.report(reason, peer)

    def _end_handshake(self, handshake: asyncio.Task[None]) -> None:
        connection = self._handshakes.pop(handshake)
        if handshake.cancelled():
            # It may have been cancelled before it began.
            connection.close()
        else:
            handshake.result()

    async def _close_surplus(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = connection_limit(MAX_CONNECTIONS, soft)
        while len(self._handshakes) + len(connections := self.server.connections) >= limit:
            self.observer.observe(events.HttpLimitReached(limit="connections"))
            if self._handshakes:
                await end_tasks(next(iter(self._handshakes)))
            else:
                await self._close(connections[0])

    async def _close(self, connection: web.RequestHandler) -> None:
        transport = connection.transport
        connection.close()
        await connection.shutdown(CLOSE_SECONDS)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while connection in self.server.connections:  # noqa: ASYNC110 - aiohttp reports no end
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            assert isinstance(transport, asyncio.Transport), "a connection that is open has a transport"
            transport.abort()
            await asyncio.sleep(LOOK_SECONDS)

    def _report(self, error: OSError) -> None:
        self.observer.observe(events.HttpLimitReached(limit="descriptors"))
        self._failures += 1
        if self._reports.is_due(asyncio.get_running_loop().time()):
            log.error("http.accept_failed", error=str(error), failures=self._failures, advice="raise LimitNOFILE")
