"""Every command and program in README.md and docs/ runs on a real node, and prints what the document says.

docs/tutorial.md has a test of its own, which also plays the user of its reader.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.markdown import ROOT, Block, blocks, matches
from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

UP = "headgate up"
"""The shared node has been started by it; only what it prints is compared."""
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "tutorial.md" and any(block.runs for block in blocks(path))
]
NIGHTLY = ("migration", "backup.md", "day-two.md", "spark.md")
"""What is among the documents that take minutes and change seldom."""


class Reader:
    """Does what one document says, in the folder of the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._environ = os.environ | node.env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    async def follow(self, block: Block) -> None:
        """Run one block, and compare its output."""
        code = int(block.attributes.get("exit", "0"))
        if block.language == "python":
            program = self._node.folder / block.attributes.get("file", "pasted.py")
            program.write_text(block.text)
            if "file" not in block.attributes:
                await self._run(f"python {program.name}", "", code)
        elif block.language == "bash":
            await self._run(f"set -e\n{block.text}", "", code)
        else:
            commands = block.commands()
            for command, documented in commands:
                if command.partition(" #")[0].strip() == UP:
                    assert self._node.tls or not documented or matches(documented, self._node.start_output)
                else:
                    last = command == commands[-1][0]
                    await self._run(command, documented, code if last else 0)

    async def _run(self, command: str, documented: str, code: int) -> None:
        """Run ``command`` in bash. Without documented output it must only end with ``code``."""
        process = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", command],
            cwd=self._node.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TEST_SECONDS / 2,
            check=False,
        )
        assert code == process.returncode, f"{command}\n{process.stdout}"
        assert not documented or matches(documented, process.stdout), (
            f"{command}\nprinted\n{process.stdout}\nand the document says\n{documented}"
        )

    async def tidy(self) -> None:
        """Delete the topics, so that the next document can use their names."""
        for topic in (await self._node.commands.succeed("topic", "list", "--json")).document():
            await self._node.commands.succeed("topic", "delete", topic["topic"], "--force", "--yes")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=str(path.relative_to(ROOT)),
            marks=[pytest.mark.nightly] * any(part in path.parts for part in NIGHTLY),
        )
        for path in DOCUMENTS
    ],
)
async def test_a_document_does_what_it_says(node: Node, path: Path) -> None:
    reader = Reader(node)
    await reader.tidy()
    try:
        for block in blocks(path):
            if block.runs:
                try:
                    await reader.follow(block)
                except AssertionError as error:
                    raise AssertionError(f"{block}: {error}") from error
    finally:
        await reader.tidy()
