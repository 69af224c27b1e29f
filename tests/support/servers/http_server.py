"""An HTTP server of the daemon on loopback, whose facts a test can change, and a client."""

import ssl

import aiohttp
from prometheus_client import CollectorRegistry

from metrics.events import NoopObserver
from metrics.health import judge_health
from metrics.instruments import Instruments
from metrics.status import ShardStatus
from tests.support.samples.status_documents import HEALTHY_FACTS, FakeSource
from web.server import HttpServer

SHARDS = (ShardStatus(shard=0, role="leading", leader_epoch=3, head_chunk=8),)


def http_server(host="127.0.0.1", port=0, **fields):
    """Return a server of a healthy daemon, unless ``fields`` say otherwise."""
    healthy = {
        "registry": CollectorRegistry(),
        "health": lambda: judge_health(HEALTHY_FACTS),
        "observer": NoopObserver(),
        "source": FakeSource(),
        "daemon": "one",
        "cluster": "test",
        "version": "1.0",
    }
    return HttpServer(host, port, **healthy | fields)


class HttpHarness:
    """A server whose health facts a test can change, and a client."""

    def __init__(self, **fields):
        self.facts = HEALTHY_FACTS
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)
        self.scrapes = 0
        self.source = fields.pop("source", None) or FakeSource()
        self.peer_token, self.connect = None, None
        self.server = http_server(
            source=self.source,
            registry=self.registry,
            health=lambda: judge_health(self.facts),
            observer=self.instruments,
            is_peer=lambda token: token == self.peer_token,
            connect=lambda: self.connect,
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
        url = f"{'http' if tls is None else 'https'}://{self.server.address}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, ssl=True if tls is None else tls) as response,
        ):
            return response.status, response.headers, await response.text()

    def denied(self, reason):
        """Return how often ``reason`` was counted."""
        return self.registry.get_sample_value("headgate_http_denied_total", {"reason": reason})
