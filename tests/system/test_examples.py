"""The programs of examples/ on a real node: they do what their first lines say, and end cleanly."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.local.reserved_port import ReservedPort
from headgate import Admin, SubscriptionInfo, load_client_config
from tests.support.servers.node import Node
from tests.support.servers.programs import RunningProgram, start, wait_until
from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]
Run = Callable[..., Awaitable[RunningProgram]]


@pytest_asyncio.fixture(loop_scope="session")
async def run(node: Node, tmp_path: Path) -> AsyncIterator[Run]:
    """Start ``python -m MODULE ARGUMENTS…`` with the configuration of the node; what still runs at the end is killed."""
    started: list[RunningProgram] = []

    async def run(module: str, *arguments: str, topic: str, **environ: str) -> RunningProgram:
        await node.commands.succeed("topic", "create", topic, "--segments", "2")
        paths = f"{ROOT / 'integrations' / 'faststream'}:{ROOT}"
        env = {**node.env, "HEADGATE_CONFIG": str(node.config), "PYTHONPATH": paths, "TOPIC": topic, **environ}
        out = tmp_path / f"{topic}.out"
        started.append(await start(*arguments, out=out, env=env, cwd=tmp_path, program=("-m", module)))
        return started[-1]

    yield run
    for program in started:
        await program.kill()


async def described(node: Node, topic: str, subscription: str) -> SubscriptionInfo:
    async with Admin(load_client_config(node.config)) as admin:
        return await admin.describe_subscription(topic, subscription)


def request(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    made = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(made, timeout=60) as response:
            return json.load(response)
    except ConnectionError:
        return None


@pytest.mark.parametrize("program", ["with_faststream"])
async def test_a_web_service_stores_requests_handles_them_and_leaves(node: Node, run: Run, program: str) -> None:
    topic = f"web-{program}"
    with ReservedPort() as port:
        options = "--app-dir", str(ROOT / "examples" / "fastapi"), "--port", str(port.number), f"{program}:app"
        service = await run("uvicorn", *options, topic=topic)
        await wait_until(lambda: "startup complete" in service.errors(), service.errors, 60)
        for total in range(1, 11):
            stored = await asyncio.to_thread(
                request, port.number, "/orders", {"customer": f"c{total % 2}", "total": total}
            )
            assert stored["offset"] >= 0

        async def totals() -> bool:
            return {"c0": 30, "c1": 25} == await asyncio.to_thread(request, port.number, "/totals")

        await wait_until(totals, service.errors)
        assert await service.terminate() in (0, -15), service.errors()
    assert "shutdown complete" in service.errors()
    left = await described(node, topic, "totals")
    assert not left.consumers, "it has left"
    assert {0} == {segment.unacknowledged for segment in left.segments}
