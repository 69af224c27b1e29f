"""Streams of events keep pages current, over real sockets."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from metrics.events import HttpLimitReached, HttpStreamsChanged
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.status_documents import NOW_MS, part, subscription_summary, topic_summary
from tests.support.servers.http_server import HttpHarness
from tests.support.waiting import until
from web import live_stream
from web.access import HttpAccess
from web.live_stream import LivePages
from web.page.markup import element
from web.page.shell import Page

pytestmark = pytest.mark.real_time

QUICK_SECONDS = 0.05


@pytest.fixture(autouse=True)
def quick_pages(monkeypatch):
    monkeypatch.setattr(live_stream, "INTERVAL_SECONDS", QUICK_SECONDS)


@asynccontextmanager
async def stream(harness, page="/", **headers):
    """Return a function that returns the next update."""
    url = f"http://{harness.server.address}/live"
    async with aiohttp.ClientSession() as session, session.get(url, params={"page": page}, headers=headers) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")

        async def update():
            async with asyncio.timeout(60):
                while line := await response.content.readline():
                    if line.startswith(b"data: "):
                        return json.loads(line[6:])
            return None

        yield update


async def ended(update):
    """Read until the stream has ended."""
    try:
        while await update() is not None:
            pass
    except (aiohttp.ClientError, ConnectionError):
        pass
    return True


def streams(harness):
    return harness.registry.get_sample_value("headgate_http_streams")


async def test_the_first_update_has_all_parts_and_later_ones_what_has_changed(harness):
    async with stream(harness) as update:
        first = await update()
        assert first["parts"].keys() == {"as-of", "totals", "problems", "rates", "topics", "daemons", "sources"}
        assert (first["version"], first["problem"]) == ("1.0", "")
        assert first["interval_ms"] >= QUICK_SECONDS * 1000
        assert (await update())["parts"] == {}

        harness.source.parts = [part(topics=[topic_summary("new")], subscriptions=[subscription_summary()])]
        while not (found := await update())["parts"]:
            pass
        assert "new" in found["parts"]["topics"]
        assert "daemons" not in found["parts"]


async def test_a_source_that_does_not_answer_is_said_and_the_parts_stay(harness):
    page = "/topics/orders/subscriptions/billing"
    async with stream(harness, page) as update:
        assert "waiting" in (await update())["parts"]
        harness.source.problem = "daemon 'two' did not answer"
        while not (found := await update())["problem"]:
            pass
        assert (found["problem"], found["parts"]) == ("daemon 'two' did not answer", {})
        harness.source.problem = None
        while (found := await update())["problem"]:
            pass


async def test_a_stream_ends_when_its_token_is_revoked():
    class Revocable:
        def holder(self, token):
            return "me" if token == self.token else None

    tokens = Revocable()
    tokens.token = "good"
    harness = HttpHarness(access=HttpAccess(tokens=tokens))
    async with harness.server, stream(harness, Authorization="Bearer good") as update:
        await update()
        tokens.token = "other"
        assert await ended(update)


async def test_a_bug_in_a_rendering_ends_its_streams_and_is_logged(caplog):
    async with OneHandlerServer() as server, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{server.port}/") as response:
            await response.content.readline()
            server.size = "a bug"
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        await until(lambda: HttpStreamsChanged(change=-1) in server.observer.events)
    assert "TypeError" in caplog.text


async def test_streams_end_with_the_server():
    harness = HttpHarness()
    async with harness.server:
        reading = stream(harness)
        update = await reading.__aenter__()
        await update()
    assert await ended(update)
    await reading.__aexit__(None, None, None)

    assert streams(harness) == 0


class OneHandlerServer:
    """A server whose only page is a stream of `LivePages`."""

    def __init__(self):
        self.size = 1

        async def render(_):
            self.size += 1
            return Page(title="t", as_of_ms=NOW_MS, parts={"big": element("p", str(self.size) * 300_000, id="big")})

        self.observer = RecordingObserver()
        self.live = LivePages(render, version="1", observer=self.observer)

    async def __aenter__(self):
        app = aiohttp.web.Application()

        async def stream(request):
            return await self.live.stream(request, "/", lambda: True)

        app.router.add_get("/", stream)
        self.runner = aiohttp.web.AppRunner(app)
        await self.runner.setup()
        site = aiohttp.web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]
        return self

    async def __aexit__(self, *_):
        await self.live.close()
        await self.runner.cleanup()


async def test_a_reader_that_takes_no_data_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(live_stream, "WRITE_SECONDS", 0.3)
    async with OneHandlerServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readline()
        await until(lambda: HttpLimitReached(limit="slow_stream") in server.observer.events)
        await until(lambda: HttpStreamsChanged(change=-1) in server.observer.events)
        writer.transport.abort()


async def test_above_the_limit_a_stream_is_refused_and_counted(monkeypatch):
    monkeypatch.setattr(live_stream, "MAX_STREAMS", 1)
    async with OneHandlerServer() as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/"
        async with session.get(url) as first, session.get(url) as second:
            assert (first.status, second.status, second.headers["Retry-After"]) == (200, 503, "5")
            assert "1 pages are open" in await second.text()

    assert HttpLimitReached(limit="streams") in server.observer.events
