"""The HTTP endpoint over a real socket."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
from dataclasses import replace

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headgate.errors import HeadgateError
from headgate.protocol.backlog import SegmentBacklog, summarize_backlog
from metrics import http
from metrics.events import StatusCollected
from metrics.health import STALLED_SECONDS, HealthFacts, judge_health
from metrics.http import HEADERS, HttpServer
from metrics.instruments import Instruments
from metrics.status import DaemonStatus, ShardStatus
from tests.support.example_events import example_events

HEALTHY_FACTS = HealthFacts(
    tick_age_seconds=0.1,
    zookeeper="connected",
    broker_connected=True,
    drain="ready",
    drain_reason="",
    shards=1,
    shards_led=1,
)
BACKLOGS = tuple(
    summarize_backlog(
        topic=topic,
        subscription="s",
        subscription_type="STREAM",
        counted_by="leader",
        as_of_ms=1,
        segments=[SegmentBacklog(segment=0, sealed=False, records=records, size_bytes=1)],
    )
    for topic, records in (("b", 4), ("a", 3))
)
DAEMON_STATUS = DaemonStatus(
    instance="one",
    shards=(ShardStatus(shard=0, role="leading", leader_epoch=3, head=8, backlogs=BACKLOGS),),
)


class HttpHarness:
    """A server whose facts a test may change, and a client."""

    def __init__(self):
        self.facts = HEALTHY_FACTS
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)
        self.scrapes = 0
        self.server = HttpServer(
            "127.0.0.1",
            0,
            registry=self.registry,
            health=lambda: judge_health(self.facts),
            status=lambda: DAEMON_STATUS,
        )
        self.registry.register(self)

    def describe(self):
        """Nothing of its own: it only counts how often it is asked."""
        return []

    def collect(self):
        self.scrapes += 1
        return []

    async def ask(self, path, method="GET", **headers):
        """Return (status, headers, text)."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://{self.server.address}{path}", headers=headers) as response,
        ):
            return response.status, response.headers, await response.text()


@pytest.fixture
async def harness():
    harness = HttpHarness()
    async with harness.server:
        yield harness


async def test_liveness_follows_the_loop(harness):
    """200 while it ticks, 503 when it stands; one line each."""
    status, _, text = await harness.ask("/livez")
    assert (status, text) == (200, "alive: the event loop ticked 0.1 s ago\n")

    harness.facts = replace(HEALTHY_FACTS, tick_age_seconds=STALLED_SECONDS + 1)
    status, _, text = await harness.ask("/livez")
    assert (status, text.count("\n")) == (503, 1)


async def test_readiness_names_each_part(harness):
    """Ready 200, degraded 200 and saying so, not ready 503."""
    status, _, text = await harness.ask("/readyz")
    assert (status, json.loads(text)["state"]) == (200, "ready")

    harness.facts = replace(HEALTHY_FACTS, drain="degraded", drain_reason="no answer")
    status, _, text = await harness.ask("/readyz")
    assert (status, json.loads(text)["state"]) == (200, "degraded")
    assert json.loads(text)["components"]["drain"]["state"] == "degraded"

    harness.facts = replace(HEALTHY_FACTS, broker_connected=False)
    status, _, text = await harness.ask("/readyz")
    assert (status, json.loads(text)["state"]) == (503, "not_ready")
    assert "not connected" in json.loads(text)["components"]["broker"]["reason"]


async def test_status_is_the_snapshot(harness):
    """Everything the page shows, as JSON."""
    status, headers, text = await harness.ask("/status")

    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text)["daemon"]["instance"] == "one"
    assert json.loads(text)["daemon"]["shards"][0]["leader_epoch"] == 3
    assert json.loads(text)["health"]["state"] == "ready"


async def test_backlogs_are_told_as_json_of_all_topics_or_of_one(harness):
    """By topic and subscription; a topic that is not there has none."""
    _, _, text = await harness.ask("/backlog")
    assert [(each["topic"], each["records"]) for each in json.loads(text)["backlogs"]] == [("a", 3), ("b", 4)]
    assert json.loads(text)["backlogs"][0]["segments"][0]["oldest_ms"] is None, "null, and not left out"

    _, _, text = await harness.ask("/backlog?topic=b")
    assert [each["topic"] for each in json.loads(text)["backlogs"]] == ["b"]
    assert (await harness.ask("/backlog?topic=c"))[2] == '{"backlogs":[]}\n'


async def test_the_page_is_html(harness):
    """For people."""
    status, headers, text = await harness.ask("/")

    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")


async def test_a_scrape_shows_what_was_measured(harness):
    """Gauges come out under their names."""
    harness.instruments.observe(StatusCollected(status=DAEMON_STATUS, now_seconds=0.0))
    _, headers, text = await harness.ask("/metrics")
    samples = {
        (sample.name, sample.labels.get("shard")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    assert samples["headgate_ledger_head_chunk", "0"] == 8
    assert samples["headgate_shard_is_leader", "0"] == 1
    assert headers["Content-Type"].startswith("text/plain")


async def test_a_second_scrape_within_a_second_is_served_from_the_first(harness, monkeypatch):
    """Renderings are one at a time and shared, per content type; later there is a new one."""
    assert http.CACHE_SECONDS == 1
    monkeypatch.setattr(http, "CACHE_SECONDS", 3600)
    answers = await asyncio.gather(*(harness.ask("/metrics") for _ in range(5)))
    assert harness.scrapes == 1
    assert len({text for _, _, text in answers}) == 1

    _, headers, text = await harness.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert harness.scrapes == 2
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")

    monkeypatch.setattr(http, "CACHE_SECONDS", 0)
    await harness.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert harness.scrapes == 3


@pytest.mark.parametrize("path", ["/", "/status", "/livez", "/readyz", "/metrics", "/nowhere"])
async def test_every_answer_carries_the_security_headers(harness, path):
    """Errors included."""
    status, headers, _ = await harness.ask(path)

    assert status == (404 if path == "/nowhere" else 200)
    assert {name: headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("path", ["/", "/status", "/livez", "/readyz", "/metrics"])
async def test_reading_only(harness, path):
    """HEAD is GET without a body; nothing else is answered."""
    assert (await harness.ask(path, "HEAD"))[::2] == (200, "")
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await harness.ask(path, method))[0] == 405


async def test_a_port_in_use_is_one_clear_line():
    """It says which, why, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HttpServer(
            "127.0.0.1",
            port,
            registry=CollectorRegistry(),
            health=lambda: judge_health(HEALTHY_FACTS),
            status=lambda: DAEMON_STATUS,
        )
        with pytest.raises(HeadgateError) as raised:
            await server.__aenter__()

    assert str(raised.value) == (
        f"$.http: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port, or 0 for any free one"
    )


async def test_a_host_that_is_not_ours_is_one_clear_line():
    """An unknown address fails the same way."""
    server = HttpServer(
        "192.0.2.1",
        0,
        registry=CollectorRegistry(),
        health=lambda: judge_health(HEALTHY_FACTS),
        status=lambda: DAEMON_STATUS,
    )
    with pytest.raises(HeadgateError, match=r"^\$\.http: cannot listen on 192\.0\.2\.1:0: Cannot assign requested"):
        await server.__aenter__()


async def test_signals_stay_with_the_daemon():
    """Entering and serving changed no handler."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    other = HttpHarness()
    async with other.server:
        await other.ask("/livez")
        during = {number: signal.getsignal(number) for number in before}

    assert during == before


async def test_a_closed_server_listens_no_more():
    """The port is free again."""
    harness = HttpHarness()
    async with harness.server:
        host, port = harness.server.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing; it comes with the prometheus package"
)
async def test_promtool_accepts_a_live_scrape(harness):
    """Prometheus's own linter has nothing to say about names, types and help."""
    for shard in range(3):
        for event in example_events(shard=shard):
            harness.instruments.observe(event)
    _, _, text = await harness.ask("/metrics")
    result = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stdout + result.stderr) == (0, "")
