"""Streams of server-sent events that keep open status pages current.

1. Readers of one page share one rendering, which runs while there are readers. It pauses for
   `INTERVAL_SECONDS`, or longer if a rendering takes long.
2. A reader gets the parts of the page that differ from those it was sent last, so an update that a
   reader misses costs nothing: it gets the newest one.
3. A reader that takes no data for `WRITE_SECONDS` is dropped. It may connect again, and gets all parts.
4. The number of streams is limited; a further one is refused, and the page tries again.
5. A stream ends once its token is not accepted any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from headgate.process.background import cancel_and_wait, end_tasks
from metrics import events
from web.access import RefusedError
from web.page.shell import Page, as_of

INTERVAL_SECONDS: Final = 2.0
MAX_INTERVAL_SECONDS: Final = 30.0
PAUSE_FACTOR: Final = 10.0
WRITE_SECONDS: Final = 10.0
MAX_STREAMS: Final = 20
"""A fifth of the connections: they must not keep probes and Prometheus out."""
RECONNECT_MS: Final = 2000

Render = Callable[[str], Awaitable[Page]]
"""Path and query → the page; raises RefusedError."""


@dataclass(frozen=True, slots=True)
class _Update:
    number: int
    parts: Mapping[str, str]
    problem: str
    interval_seconds: float


class _View:
    """One page, rendered again and again while it has readers."""

    def __init__(self, path: str, render: Render) -> None:
        self.readers = 0
        self.has_ended = False
        """By a bug: its readers end, and the last one raises it."""
        self.task: asyncio.Task[None] | None = None
        self._path = path
        self._render = render
        self._update = _Update(0, {}, "", INTERVAL_SECONDS)
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        try:
            await self._render_repeatedly()
        finally:
            async with self._changed:
                self.has_ended = True
                self._changed.notify_all()

    async def _render_repeatedly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            parts, problem = self._update.parts, ""
            try:
                page = await self._render(self._path)
                parts = {name: str(part) for name, part in {"as-of": as_of(page), **page.parts}.items()}
            except RefusedError as error:
                problem = str(error)
            pause = min(max(INTERVAL_SECONDS, PAUSE_FACTOR * (loop.time() - began)), MAX_INTERVAL_SECONDS)
            async with self._changed:
                self._update = _Update(self._update.number + 1, parts, problem, pause)
                self._changed.notify_all()
            await asyncio.sleep(pause)

    async def after(self, number: int) -> _Update:
        async with self._changed:
            await self._changed.wait_for(lambda: self._update.number > number or self.has_ended)
            return self._update


class LivePages:
    def __init__(self, render: Render, *, version: str, observer: events.Observer) -> None:
        """``version`` is sent along: a page of another version loads itself again."""
        self._render = render
        self._version = version
        self._observer = observer
        self._views: dict[str, _View] = {}
        self._streams: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await cancel_and_wait(*self._streams)

    async def stream(self, request: web.Request, path: str, allowed: Callable[[], bool]) -> web.StreamResponse:
        """Send updates of the page at ``path`` while the reader takes them and is ``allowed`` to read."""
        if len(self._streams) >= MAX_STREAMS:
            self._observer.observe(events.HttpLimitReached(limit="streams"))
            text = f"{MAX_STREAMS} pages are open at this daemon; close one, or open another daemon's\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sending = asyncio.get_running_loop().create_task(self._follow(path, response, allowed), name="http-stream")
        self._streams.add(sending)
        self._observer.observe(events.HttpStreamsChanged(change=1))
        try:
            await asyncio.wait({sending})
        finally:
            await end_tasks(sending)
            self._streams.discard(sending)
            self._observer.observe(events.HttpStreamsChanged(change=-1))
            if request.transport is not None:
                # What the reader has not taken would otherwise be waited for.
                request.transport.abort()
            await cancel_and_wait(sending)  # It has ended. Only a bug is raised.
        return response

    async def _follow(self, path: str, response: web.StreamResponse, allowed: Callable[[], bool]) -> None:
        view = self._views.setdefault(path, _View(path, self._render))
        view.readers += 1
        if view.task is None:
            view.task = asyncio.get_running_loop().create_task(view.run(), name="http-view")
        try:
            await self._send(view, response, allowed)
        except TimeoutError:
            self._observer.observe(events.HttpLimitReached(limit="slow_stream"))
        except ConnectionError:
            pass  # The reader went away.
        finally:
            view.readers -= 1
            if view.readers == 0:
                self._views.pop(path, None)
                await cancel_and_wait(view.task)

    async def _send(self, view: _View, response: web.StreamResponse, allowed: Callable[[], bool]) -> None:
        sent: Mapping[str, str] = {}
        update = await view.after(0)
        await self._write(response, f"retry: {RECONNECT_MS}\n".encode())
        while allowed() and not view.has_ended:
            data = msgspec.json.encode(
                {
                    "version": self._version,
                    "interval_ms": int(update.interval_seconds * 1000),
                    "problem": update.problem,
                    "parts": {name: part for name, part in update.parts.items() if sent.get(name) != part},
                }
            )
            await self._write(response, b"event: update\ndata: " + data + b"\n\n")
            sent = update.parts
            update = await view.after(update.number)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(data)
