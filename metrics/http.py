"""Serves the daemon's metrics, probes and status over HTTP, read-only.

    /metrics  Prometheus metrics
    /livez    200 while the event loop runs, else 503; one line
    /readyz   200 while this daemon is ready, degraded or not, else 503; with a token, components as JSON
    /status   health and status as JSON
    /backlog  backlogs on the shards that this daemon leads, as JSON; ?topic=NAME for one topic
    /         health and status as an HTML page

metrics.http_access decides which of them need a token, and metrics.http_listener speaks TLS. Pages are
rendered in a worker thread, because megabytes of text would block the loop, one rendering at a time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headgate.errors import HeadgateError
from headgate.protocol.backlog import SubscriptionBacklog, document
from headgate.protocol.messages import SubscriptionDescription, TopicDescription
from metrics.events import HttpDenial, Observer
from metrics.health import Health
from metrics.http_access import CHALLENGES, HttpAccess
from metrics.http_denials import HttpDenials
from metrics.http_listener import HANDSHAKE_SECONDS, MAX_CONNECTIONS, HttpListener
from metrics.status import DaemonStatus
from metrics.status_page import STYLE, status_page

CACHE_SECONDS = 1.0
"""How long a rendering is reused: far below any scrape interval."""
PIECE_BYTES = 256 * 1024
"""Bytes of a body that are handed to the socket at a time."""
KEEPALIVE_SECONDS = 15.0
"""After this long, a connection without a complete request is closed."""
CLOSE_SECONDS = 1.0
"""Longest wait for open requests when the daemon stops."""

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Server": "headgate",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HttpServer:
    """An async context manager: it serves from entry to exit."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        status: Callable[[], Awaitable[DaemonStatus]],
        backlogs: Callable[[str | None], Awaitable[Sequence[SubscriptionBacklog]]],
        observer: Observer,
        access: HttpAccess | None = None,
        cache_seconds: float = CACHE_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Prepare, without listening. Port 0 is any free port. Without ``access``, everything is open.

        What ``status`` returns is emptied once it is rendered.
        """
        self.access = access or HttpAccess()
        """The rules in force. They may be replaced at any time, for connections and requests from then on."""
        self._host = host
        self._port = port
        self._registry = registry
        self._health = health
        self._status_source = status
        self._backlog_source = backlogs
        self._observer = observer
        self._denials = HttpDenials(observer)
        self._max_connections = max_connections
        self._keepalive_seconds = keepalive_seconds
        self._handshake_seconds = handshake_seconds
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._address = ""
        self._cache_seconds = cache_seconds
        self._rendering = asyncio.Lock()
        self._rendered = ("", b"", 0.0)

    @property
    def address(self) -> str:
        """``host:port`` of the listening socket; empty before entry."""
        return self._address

    async def __aenter__(self) -> Self:
        """Listen; raises HeadgateError if that fails."""
        app = web.Application(middlewares=[self._authorize])
        app.on_response_prepare.append(_add_headers)
        handlers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/": self._page,
            "/status": self._status,
            "/backlog": self._backlog,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }
        for path, handler in handlers.items():
            app.router.add_get(path, handler)
        self._runner = runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=self._keepalive_seconds,
            shutdown_timeout=CLOSE_SECONDS,
        )
        await runner.setup()
        assert runner.server is not None, "set up"
        self._listener = HttpListener(
            runner.server,
            self._observer,
            self._denials,
            tls=lambda: self.access.tls,
            max_connections=self._max_connections,
            handshake_seconds=self._handshake_seconds,
            slow_seconds=self._keepalive_seconds / 2,
        )
        try:
            self._address = await self._listener.open(self._host, self._port)
        except OSError as error:
            await runner.cleanup()
            raise HeadgateError(
                f"$.http: cannot listen on {self._host}:{self._port}: {_reason(error)}; "
                "choose another port, or 0 for any free one",
            ) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening, and wait up to `CLOSE_SECONDS` for open requests."""
        if self._runner is not None and self._listener is not None:
            await self._listener.close()
            await self._runner.cleanup()
            self._runner = self._listener = None

    @web.middleware
    async def _authorize(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        assert self._listener is not None, "it accepted the connection"
        self._listener.request_arrived(request.protocol)
        denial = self._denial(request)
        if denial is None or self.access.is_open(request.path):
            return await handler(request)
        self._denials.report(denial, request.remote or "")
        response = web.Response(
            text="a token is required: send it as Authorization: Bearer, or in a browser as the password\n", status=401
        )
        for challenge in CHALLENGES:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    def _denial(self, request: web.Request) -> HttpDenial | None:
        return self.access.denial(request.headers.get("Authorization"))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        body = await self._rendered_status(lambda status, health: status_page(status, health).encode())
        return await _send(request, body, "text/html", "utf-8")

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return await _send(request, await self._rendered_status(_status_json), "application/json")

    async def _rendered_status(self, render: Callable[[DaemonStatus, Health], bytes]) -> bytes:
        async with self._rendering:
            status = await self._status_source()
            body = await asyncio.to_thread(render, status, self._health())
            for shard in status.shards:
                await _release((*shard.topics, *shard.subscriptions, *shard.backlogs))
        return body

    async def _backlog(self, request: web.Request) -> web.StreamResponse:
        async with self._rendering:
            found = await self._backlog_source(request.query.get("topic"))
            body = await asyncio.to_thread(_backlogs_json, found)
        return await _send(request, body, "application/json")

    async def _livez(self, _: web.Request) -> web.Response:
        health = self._health()
        word = "alive" if health.live else "not alive"
        return web.Response(text=f"{word}: {health.live_reason}\n", status=200 if health.live else 503)

    async def _readyz(self, request: web.Request) -> web.Response:
        health = self._health()
        report = _health_report(health) if self._denial(request) is None else {"state": health.state}
        return _json(report, 200 if health.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        loop = asyncio.get_running_loop()
        async with self._rendering:
            rendered_type, body, at = self._rendered
            if rendered_type != content_type or loop.time() - at >= self._cache_seconds:
                body = await asyncio.to_thread(encode, self._registry)
                self._rendered = (content_type, body, loop.time())
        return web.Response(body=body, headers={"Content-Type": content_type})


async def _release(described: Iterable[TopicDescription | SubscriptionDescription | SubscriptionBacklog]) -> None:
    """Empty descriptions that are not needed any more, one per turn of the event loop.

    To free 200 000 values at once would stall it for 40 ms.
    """
    for each in described:
        each.segments.clear()
        await asyncio.sleep(0)


async def _send(request: web.Request, body: bytes, content_type: str, charset: str | None = None) -> web.StreamResponse:
    """Send ``body`` in pieces: asyncio moves the rest of a body in memory each time that the socket takes a part."""
    response = web.StreamResponse()
    response.content_type, response.charset = content_type, charset
    response.content_length = len(body)
    await response.prepare(request)
    for start in range(0, len(body) if request.method == "GET" else 0, PIECE_BYTES):
        await response.write(body[start : start + PIECE_BYTES])
    await response.write_eof()
    return response


def _health_report(health: Health) -> dict[str, object]:
    return {
        "state": health.state,
        "live": health.live,
        "components": {
            component.name: {"state": component.state, "reason": component.reason} for component in health.components
        },
    }


def _status_json(status: DaemonStatus, health: Health) -> bytes:
    shards = [
        {
            **{field.name: getattr(shard, field.name) for field in fields(shard)},
            "topics": _encoded_each(shard.topics),
            "subscriptions": _encoded_each(shard.subscriptions),
            "backlogs": _encoded_each(shard.backlogs),
        }
        for shard in status.shards
    ]
    daemon = {"instance": status.instance, "shards": shards, "cluster": status.cluster}
    return msgspec.json.encode({"health": _health_report(health), "daemon": daemon}) + b"\n"


def _backlogs_json(backlogs: Iterable[SubscriptionBacklog]) -> bytes:
    return msgspec.json.encode({"backlogs": _encoded_each(document(each) for each in backlogs)}) + b"\n"


def _encoded_each(values: Iterable[object]) -> list[msgspec.Raw]:
    """Encode each value for itself: the encoder holds the interpreter's lock, so the event loop waits for each call."""
    return [msgspec.Raw(msgspec.json.encode(value)) for value in values]


def _json(value: object, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _reason(error: OSError) -> str:
    """Return the operating system's message, without the sentence that asyncio adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
