"""The HTTP endpoint over a real socket."""

import asyncio
import errno
import json
import shutil
import socket
import subprocess
from dataclasses import replace

import pytest
from prometheus_client import Gauge
from structlog.testing import capture_logs

from headgate.errors import HeadgateError
from metrics.health import STALLED_SECONDS
from tests.support.samples.example_events import example_events
from tests.support.samples.status_documents import HEALTHY_FACTS
from tests.support.servers.http_server import HttpHarness, http_server
from web import listener, server
from web.server import HEADERS

pytestmark = pytest.mark.real_time


async def test_liveness_follows_the_loop(harness):
    status, _, text = await harness.get("/livez")
    assert (status, text) == (200, "alive: the event loop ticked 0.1 s ago\n")

    harness.facts = replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 1)
    status, _, text = await harness.get("/livez")
    assert (status, text.count("\n")) == (503, 1)


async def test_readiness_names_each_component(harness):
    status, _, text = await harness.get("/readyz")
    assert (status, json.loads(text)["state"]) == (200, "ready")

    harness.facts = replace(HEALTHY_FACTS, drain="degraded", drain_reason="no answer")
    status, _, text = await harness.get("/readyz")
    assert (status, json.loads(text)["state"]) == (200, "degraded")
    assert json.loads(text)["components"]["drain"]["state"] == "degraded"

    harness.facts = replace(HEALTHY_FACTS, broker_connected=False)
    status, _, text = await harness.get("/readyz")
    assert (status, json.loads(text)["state"]) == (503, "not_ready")
    assert "not connected" in json.loads(text)["components"]["broker"]["reason"]


async def test_scrapes_within_a_second_share_a_rendering_per_content_type(monkeypatch):
    assert server.CACHE_SECONDS == 1
    monkeypatch.setattr(server, "CACHE_SECONDS", 3600)
    harness = HttpHarness()
    async with harness.server:
        answers = await asyncio.gather(*(harness.get("/metrics") for _ in range(5)))
        assert harness.scrapes == 1
        assert len({text for _, _, text in answers}) == 1

        _, headers, text = await harness.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert harness.scrapes == 2
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await harness.get("/metrics", Accept="text/plain; version=new"))[0] == 200
        assert text.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/", "/api/v1/cluster", "/livez", "/readyz", "/metrics", "/nowhere"])
async def test_every_response_has_the_security_headers(harness, path):
    status, headers, _ = await harness.get(path)

    assert status == (404 if path == "/nowhere" else 200)
    assert {name: headers[name] for name in HEADERS} == HEADERS


async def test_a_port_in_use_is_an_error_with_the_address_the_reason_and_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeadgateError) as raised:
            await http_server(port=port).__aenter__()

    assert str(raised.value) == (
        f"$.http: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port, or 0 for any free one"
    )


async def test_an_address_of_another_host_is_an_error():
    with pytest.raises(HeadgateError, match=r"^\$\.http: cannot listen on 192\.0\.2\.1:0: Cannot assign requested"):
        await http_server("192.0.2.1").__aenter__()


async def test_at_the_limit_the_oldest_connection_is_closed(monkeypatch):
    """Clients that send nothing do not keep a probe out."""
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 10)
    harness = HttpHarness()
    async with harness.server:
        host, port = harness.server.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(14)]
        assert (await harness.get("/livez"))[0] == 200
        for reader, _ in silent[:5]:
            assert await reader.read(1) == b""
        reader, writer = silent[-1]
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in silent:
            writer.close()

    assert harness.registry.get_sample_value("headgate_http_limit_reached_total", {"limit": "connections"}) == 5


async def test_a_client_that_does_not_read_its_answer_loses_its_connection(monkeypatch):
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(listener, "CLOSE_SECONDS", 0.1)
    harness = HttpHarness()
    Gauge("large", "x" * 30_000_000, registry=harness.registry)
    async with harness.server:
        host, port = harness.server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(1)

        assert (await harness.get("/livez"))[0] == 200
        writer.transport.abort()


async def test_a_lack_of_descriptors_is_logged_once_and_passes(monkeypatch):
    """asyncio's server would try, and log, thousands of times per second."""
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0.1)
    harness = HttpHarness()
    loop = asyncio.get_running_loop()
    accept, lacking = loop.sock_accept, 3

    async def accept_later(listening):
        nonlocal lacking
        found = await accept(listening)
        if lacking:
            lacking -= 1
            found[0].close()
            raise OSError(errno.EMFILE, "Too many open files")
        return found

    monkeypatch.setattr(loop, "sock_accept", accept_later)
    began = loop.time()
    async with harness.server:
        host, port = harness.server.address.split(":")
        with capture_logs() as logs:
            for _ in range(3):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
            assert (await harness.get("/livez"))[0] == 200

    assert loop.time() - began >= 3 * 0.1, "a pause follows each failure"
    assert [(line["event"], line["failures"]) for line in logs] == [("http.accept_failed", 1)]
    assert harness.registry.get_sample_value("headgate_http_limit_reached_total", {"limit": "descriptors"}) == 3


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing; it comes with Debian's package prometheus, and CI installs it",
)
async def test_promtool_accepts_a_live_scrape(harness):
    """Prometheus's linter accepts names, types and help texts."""
    for shard in range(3):
        for event in example_events(shard=shard):
            harness.instruments.observe(event)
    _, _, text = await harness.get("/metrics")
    result = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stdout + result.stderr) == (0, "")
