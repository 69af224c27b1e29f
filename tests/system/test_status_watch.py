"""`headgate status --watch` on a real node: it shows what changes, and Ctrl-C ends it without a failure."""

import asyncio
import json
import signal
import sys

import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]


async def test_a_new_subscription_appears_and_ctrl_c_ends_the_command(node: Node) -> None:
    watching = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headgate", "--config", str(node.config), "status", "--watch", "0.5", "--json"),
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    try:
        assert json.loads(await watching.stdout.readline())["cluster"]
        await node.commands.succeed("topic", "create", "clocks")
        await node.commands.succeed("subscription", "create", "clocks", "clock-face", "--type", "queue")
        async with asyncio.timeout(60):
            while b"clock-face" not in await watching.stdout.readline():
                pass
        watching.send_signal(signal.SIGINT)
        assert await watching.wait() == 0
    finally:
        if watching.returncode is None:
            watching.kill()
