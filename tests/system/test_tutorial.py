"""docs/tutorial.md, command by command on a real node: each prints what the page shows.

The page has three terminals. ``headgate up`` is the first one, ``reader.py`` the third, everything else the second.
A ``text`` block is what the reader shows next; Enter is pressed whenever the reader waits for it.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.markdown import DOCS, Block, blocks, comparable
from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, RunningProgram, start, wait_until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

UP = "headgate up"
KILL = "kill -9 "
READER = "python reader.py"
ONLY_REPORTS = ("headgate explain ", "headgate subscription seek payments billing --to earliest --dry-run")
"""Commands that change nothing: they are repeated until what the reader has acknowledged is stored."""


class Terminals:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.reader: RunningProgram | None = None
        self.shown = 0
        """Lines of the reader that the page has mentioned."""
        self.confirmed = 0
        """How often Enter was pressed."""
        self.ran: list[str] = []

    async def play(self, block: Block) -> None:
        """Do what one block of the page shows."""
        if block.language == "python":
            (self.node.folder / "reader.py").write_text(block.text)
        elif block.language == "text":
            await self.read_on(block.text.splitlines())
        for command, printed in block.commands() if block.language == "console" else ():
            self.ran.append(command)
            await self.run(command, printed)

    async def run(self, command: str, printed: str) -> None:
        """Run one command and compare its output."""
        if command == UP:
            await self.up(printed)
        elif command == READER:
            self.reader = await start(
                out=self.node.folder / "reader.out",
                env=self.node.env,
                cwd=self.node.folder,
                stdin=asyncio.subprocess.PIPE,
                program=("reader.py",),
            )
            await self.read_on(printed.splitlines())
        elif command.startswith(ONLY_REPORTS):
            await self.until_printed(command, printed)
        elif command.startswith("headgate consume "):
            # Its subscription reads all segments at once, so only the lines of a segment have an order.
            assert sorted(comparable(printed).splitlines()) == sorted(
                comparable(await self.shell(command)).splitlines()
            )
        else:
            assert comparable(printed) == comparable(await self.shell(command)), command
            if command.startswith(KILL):
                await wait_until(lambda: not self.node.is_up, "the node has ended")

    async def up(self, printed: str) -> None:
        """Compare what the node printed at its start, or start it again. The page shows a node without TLS."""
        if not self.node.is_up:
            await self.node.up()
        elif not self.node.tls:
            assert comparable(printed).startswith(comparable(self.node.start_output))

    async def until_printed(self, command: str, printed: str) -> None:
        found = ""

        async def matches() -> bool:
            nonlocal found
            found = await self.shell(command)
            return comparable(found) == comparable(printed)

        await wait_until(matches, lambda: f"{command} prints\n{printed}\nand not\n{found}")

    async def read_on(self, lines: list[str]) -> None:
        """Press Enter until the reader has shown ``lines``. Independent segments may come in another sequence."""
        for _ in lines:
            if self.confirmed < self.shown:
                self.reader.stdin.write(b"\n")
                await self.reader.stdin.drain()
                self.confirmed += 1
            self.shown += 1
            await self.reader.until_printed(self.shown, 60)
        found = self.reader.lines()[self.shown - len(lines) :]
        assert sorted(lines) == sorted(found)
        for key in ("ada", "bob"):
            assert [line for line in lines if key in line] == [line for line in found if key in line]

    async def ctrl_d(self) -> int:
        """End the reader's input; return its exit code."""
        self.reader.stdin.close()
        return await self.reader.ended()

    async def shell(self, command: str) -> str:
        """Return what a command of the second terminal prints."""
        run = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", command],
            cwd=self.node.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return run.stdout


def environment() -> dict[str, str]:
    """Return the environment of a user who has followed the README: headgate and its Python are found first."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


async def test_every_command_of_the_tutorial_prints_what_the_page_shows(node: Node) -> None:
    await node.until_state("ready")  # which includes Spark, as the page asks
    terminals = Terminals(node)
    try:
        for block in blocks(DOCS / "tutorial.md"):
            await terminals.play(block)
        assert {UP, READER, "headgate topic split payments 0", "headgate topic merge payments 1 2"} <= set(
            terminals.ran
        )
        assert 0 == await terminals.ctrl_d(), terminals.reader.errors()
    finally:
        if terminals.reader is not None:
            await terminals.reader.kill()
