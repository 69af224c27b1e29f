"""An HTTP server of the daemon on loopback, whose facts a test can change, and a client."""

from __future__ import annotations

import ssl
from copy import deepcopy

import aiohttp
from prometheus_client import CollectorRegistry

from headgate.protocol.backlog import SegmentBacklog, summarize_backlog
from metrics.events import NoopObserver
from metrics.health import judge_health
from metrics.http import CACHE_SECONDS, HttpServer
from metrics.instruments import Instruments
from metrics.status import DaemonStatus, ShardStatus
from tests.support.status_values import HEALTHY_FACTS

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


def http_server(host="127.0.0.1", port=0, **fields):
    """Return a server of a healthy daemon, unless ``fields`` say otherwise."""
    healthy = {
        "registry": CollectorRegistry(),
        "health": lambda: judge_health(HEALTHY_FACTS),
        "observer": NoopObserver(),
    }
    return HttpServer(host, port, status=described, backlogs=backlogs, **healthy | fields)


async def described():
    return deepcopy(DAEMON_STATUS)  # The server empties it.


async def backlogs(topic):
    found = [each for shard in DAEMON_STATUS.shards for each in shard.backlogs if topic in (None, each.topic)]
    return sorted(found, key=lambda each: each.topic)


class HttpHarness:
    """A server whose health facts a test can change, and a client."""

    def __init__(self, cache_seconds=CACHE_SECONDS, **fields):
        self.facts = HEALTHY_FACTS
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)
        self.scrapes = 0
        self.server = http_server(
            registry=self.registry,
            health=lambda: judge_health(self.facts),
            cache_seconds=cache_seconds,
            observer=self.instruments,
            **fields,
        )
        self.registry.register(self)

    def describe(self):
        """The harness is a collector without metrics, which counts scrapes."""
        return []

    def collect(self):
        self.scrapes += 1
        return []

    async def get(self, path, method="GET", *, tls: ssl.SSLContext | None = None, **headers):
        """Return (status, headers, text)."""
        url = f"{'http' if tls is None else 'https'}://{self.server.address}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, ssl=True if tls is None else tls) as response,
        ):
            return response.status, response.headers, await response.text()

    def denied(self, reason):
        """Return how often ``reason`` was counted."""
        return self.registry.get_sample_value("headgate_http_denied_total", {"reason": reason})
