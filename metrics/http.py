"""The daemon's HTTP endpoint: metrics, probes and status, for reading only.

    /metrics  what Prometheus scrapes
    /livez    200 while the event loop turns, else 503; one line
    /readyz   200 while this daemon is safe to rely on, degraded or not, else 503; JSON with each part and its reason
    /status   everything as JSON
    /backlog  what the subscriptions on the shards led here have not acknowledged, as JSON; ?topic=NAME for one topic
    /         the same as a page for people

It runs inside the caller's loop and leaves signals alone. Nothing here decides: `metrics.health` judges,
`metrics.status_page` draws. Only GET and HEAD are answered. Nobody is asked for a password, so it belongs on loopback
or behind something that asks.

The text for Prometheus is made in a worker thread, since thousands of lines would hold up the loop, by one request at a
time, and serves whoever asks again within a second.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headgate.errors import HeadgateError
from headgate.protocol.backlog import document
from metrics.health import Health
from metrics.status import DaemonStatus
from metrics.status_page import STYLE, status_page

CACHE_SECONDS = 1.0
"""How long a rendering serves: far below any scrape interval."""
KEEPALIVE_SECONDS = 15.0
"""An idle connection is closed after this long."""
CLOSE_SECONDS = 1.0
"""Longest wait for requests under way when the daemon stops."""

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
    """Serves while it is entered."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        status: Callable[[], DaemonStatus],
    ) -> None:
        """Take what to show; port 0 takes any free one."""
        self._host = host
        self._port = port
        self._registry = registry
        self._health = health
        self._status_source = status
        self._runner: web.AppRunner | None = None
        self._address = ""
        self._rendering = asyncio.Lock()
        self._rendered = ("", b"", 0.0)

    @property
    def address(self) -> str:
        """``host:port`` that it listens on; empty before it is entered."""
        return self._address

    async def __aenter__(self) -> Self:
        """Listen. Raises HeadgateError if it cannot."""
        app = web.Application()
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
        runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            shutdown_timeout=CLOSE_SECONDS,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise HeadgateError(
                f"$.http: cannot listen on {self._host}:{self._port}: {_reason(error)}; "
                "choose another port, or 0 for any free one",
            ) from None
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening; requests under way get a second."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=status_page(self._status_source(), self._health()), content_type="text/html")

    async def _status(self, _: web.Request) -> web.Response:
        status, health = self._status_source(), self._health()
        return _json({"health": _health_report(health), "daemon": status}, 200)

    async def _backlog(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic")
        found = [
            backlog
            for shard in self._status_source().shards
            for backlog in shard.backlogs
            if topic in (None, backlog.topic)
        ]
        found.sort(key=lambda each: (each.topic, each.subscription))
        return _json({"backlogs": [document(each) for each in found]}, 200)

    async def _livez(self, _: web.Request) -> web.Response:
        health = self._health()
        word = "alive" if health.live else "not alive"
        return web.Response(text=f"{word}: {health.live_reason}\n", status=200 if health.live else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        health = self._health()
        return _json(_health_report(health), 200 if health.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
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
        "components": {
            component.name: {"state": component.state, "reason": component.reason} for component in health.components
        },
    }


def _json(value: object, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _reason(error: OSError) -> str:
    """Return the system's words alone; asyncio wraps them in a sentence of its own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
