"""How much one daemon asks of the others, and how long it waits for them. `test_cluster_status` has what they answer."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from aiohttp import web

from controller.cluster.peers import Peers
from web.api.overview import NotAnsweredError

pytestmark = pytest.mark.real_time

Answer = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def peers_with(answer: Answer, *names: str, timeout_seconds: float):
    """Connect to daemons that answer every request so."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with patch("controller.cluster.peers.TIMEOUT_SECONDS", timeout_seconds):
            async with Peers("one", ssl.create_default_context, registry=lambda: None, token_for=str) as peers:
                peers.known = dict.fromkeys(names, f"http://127.0.0.1:{runner.addresses[0][1]}")
                yield peers
    finally:
        await runner.cleanup()


async def test_a_document_that_never_arrives_is_an_error():
    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with peers_with(silent, "two", timeout_seconds=0.1) as peers, asyncio.timeout(30):
        with pytest.raises(NotAnsweredError, match="did not answer: no answer in time"):
            await peers.topic("two", "orders")
        with pytest.raises(NotAnsweredError, match="did not answer: no answer in time"):
            await peers.subscription("two", "orders", "billing")


async def test_a_daemon_that_does_not_answer_is_listed_with_the_reason():
    async def refused(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with peers_with(refused, "two", timeout_seconds=30) as peers:
        (part,) = await peers.parts()

    assert part.daemon.state == "unreachable"
    assert part.daemon.problem == f"daemon 'two' at {part.daemon.url} answered with status 500"
