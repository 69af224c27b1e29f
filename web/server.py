"""Serves the daemon's metrics, probes and status over HTTP, read-only.

    /metrics  Prometheus metrics
    /livez    200 while the event loop runs, else 503; one line
    /readyz   200 while this daemon is ready, degraded or not, else 503; with a token, components as JSON
    /api/v1   the status of the cluster as JSON (web.api_routes)
    /         the status page, its files and streams (web.page_routes)

web.access decides which of them need a token, and web.listener speaks TLS. Metrics are
rendered in a worker thread, because megabytes of text would block the loop, one rendering at a time.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, Self

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headgate.errors import HeadgateError
from metrics.events import Observer
from metrics.health import Health
from metrics.label_values import HttpDenial
from web import listener
from web.access import CHALLENGES, HttpAccess, peer_token
from web.actions import Actions, Connect
from web.api.openapi import ROOT
from web.api.overview import StatusSource
from web.api_routes import HttpApi
from web.listener import HttpDenials, HttpListener
from web.page_routes import StatusPages
from web.stored_records import StoredRecords

CLIENT_GONE: Final = 499
"""Status of an answer that no client receives, as in the logs of nginx."""
MAX_BODY_BYTES: Final = 16 * 1024
"""The longest body of a request; a longer one gets status 413."""
CACHE_SECONDS = 1.0
"""How long a rendering is reused: far below any scrape interval."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Server": "headgate",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HttpServer:
    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        source: StatusSource,
        observer: Observer,
        daemon: str,
        cluster: str,
        version: str,
        is_peer: Callable[[str], bool] = lambda _: False,
        connect: Callable[[], Connect | None] = lambda: None,
        access: HttpAccess | None = None,
        runbook_url: str | None = None,
        ledger_url: str = "",
    ) -> None:
        """Prepare, without listening. Port 0 is any free port. Without ``access``, everything is open.

        ``is_peer``: whether a token comes from another daemon, which may read the API. ``connect`` returns how
        to act in a user's name; None: this daemon has not joined its cluster yet.
        """
        self.access = access or HttpAccess()
        """The rules in force. They may be replaced at any time, for connections and requests from then on."""
        self._host = host
        self._port = port
        self._metrics = _Metrics(registry)
        self._health = health
        self._is_peer = is_peer
        records = StoredRecords(source, ledger_url, lambda: self.access)
        actions = Actions(lambda: self.access, connect)
        self._api = HttpApi(source, records, actions, version)
        self._pages = StatusPages(
            source,
            records,
            actions,
            daemon=daemon,
            cluster=cluster,
            version=version,
            runbook_url=runbook_url,
            observer=observer,
            may_read=lambda request: self._denial(request) is None,
        )
        self._observer = observer
        self._denials = HttpDenials(observer)
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self.address = ""
        """``host:port``, once it listens."""

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._authorize], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics.respond)
        self._api.add_routes(app.router)
        self._pages.add_routes(app.router)
        self._runner = runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=listener.KEEPALIVE_SECONDS,
            shutdown_timeout=listener.CLOSE_SECONDS,
        )
        await runner.setup()
        assert runner.server is not None, "set up"
        self._listener = HttpListener(runner.server, self._observer, self._denials, tls=lambda: self.access.tls)
        try:
            self.address = await self._listener.open(self._host, self._port)
        except OSError as error:
            await runner.cleanup()
            raise HeadgateError(
                f"$.http: cannot listen on {self._host}:{self._port}: {reason(error)}; "
                "choose another port, or 0 for any free one"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and wait up to `listener.CLOSE_SECONDS` for open requests."""
        if self._runner is not None and self._listener is not None:
            await self._listener.close()
            await self._pages.live.close()
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
            try:
                return await handler(request)
            except ConnectionError:
                if request.transport is not None and not request.transport.is_closing():
                    raise
                # The client has gone, and reads no answer.
                return web.Response(status=CLIENT_GONE)
        self._denials.report(denial, request.remote or "")
        response = web.Response(
            text="a token is required: send it as Authorization: Bearer, or in a browser as the password\n", status=401
        )
        for challenge in CHALLENGES:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    def _denial(self, request: web.Request) -> HttpDenial | None:
        authorization = request.headers.get("Authorization")
        denial = self.access.denial(authorization)
        if denial is not None and request.path.startswith(f"{ROOT}/") and self._is_peer(peer_token(authorization)):
            return None
        return denial

    async def _livez(self, _: web.Request) -> web.Response:
        health = self._health()
        word = "alive" if health.live else "not alive"
        return web.Response(text=f"{word}: {health.live_reason}\n", status=200 if health.live else 503)

    async def _readyz(self, request: web.Request) -> web.Response:
        health = self._health()
        report = _health_report(health) if self._denial(request) is None else {"state": health.state}
        body, status = msgspec.json.encode(report) + b"\n", 200 if health.ready else 503
        return web.Response(body=body, status=status, content_type="application/json")


class _Metrics:
    """Renders the metrics, one rendering at a time, each for all that ask within `CACHE_SECONDS`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rendering = asyncio.Lock()
        self._rendered = ("", b"", 0.0)

    async def respond(self, request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except TypeError:  # The library compares a version that is no number.
            encode, content_type = choose_encoder("")
        loop = asyncio.get_running_loop()
        async with self._rendering:
            rendered_type, body, at = self._rendered
            if rendered_type != content_type or loop.time() - at >= CACHE_SECONDS:
                body = await asyncio.to_thread(encode, self._registry)
                self._rendered = (content_type, body, loop.time())
        return web.Response(body=body, headers={"Content-Type": content_type})


def _health_report(health: Health) -> dict[str, object]:
    return {
        "state": health.state,
        "live": health.live,
        "components": {each.component: {"state": each.state, "reason": each.reason} for each in health.components},
    }


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    cached = response.headers.get("Cache-Control")
    response.headers.update(HEADERS)
    if cached is not None:
        response.headers["Cache-Control"] = cached


def reason(error: OSError) -> str:
    """Return the operating system's message, without the sentence that asyncio adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
