"""`headgate top` in a real terminal, on a real node: it shows a subscription, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

RESTORED = b"\x1b[?1049l"
"""The terminal shows again what it showed before."""


class Terminal:
    """A terminal of 80 x 24 that remembers everything that was written to it."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(self._ours, False)
        self._written = bytearray()
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", *arguments),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    async def until_written(self, text: bytes) -> None:
        async with asyncio.timeout(60):
            while text not in self._written:
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)

    def _read(self) -> None:
        self._written += os.read(self._ours, 65_536)
        self._news.set()


async def test_top_shows_a_subscription_and_q_restores_the_terminal(node: Node) -> None:
    await node.commands.succeed("topic", "create", "shown-in-top")
    await node.commands.succeed("subscription", "create", "shown-in-top", "clock-face", "--type", "queue")
    terminal = Terminal()
    try:
        process = await terminal.start("--config", str(node.config), "top", "--sort", "name")
        await terminal.until_written(b"clock-face")
        terminal.type(b"q")
        await terminal.until_written(RESTORED)
        assert await process.wait() == 0
    finally:
        terminal.close()
