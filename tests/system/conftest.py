"""One shared node for all tests that need no second daemon, because a start takes seconds, and Spark takes longer.

A failed test does not affect the next one: the programs that it started are killed, and a stopped node is started
again. Its report contains the output of the programs during the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.failure_report import pytest_runtest_makereport, pytest_runtest_setup, run_folder
from tests.support.node import Node

__all__ = ["node", "pytest_runtest_makereport", "pytest_runtest_setup", "run_folder", "shared_node"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """The node of this run; the first test starts it."""
    made = Node(tmp_path_factory.mktemp("node"))
    try:
        yield made
    finally:
        await made.clean_up()


@pytest_asyncio.fixture(loop_scope="session")
async def node(shared_node: Node) -> AsyncIterator[Node]:
    """A running node; each test uses topics of its own."""
    if not shared_node.is_up:
        await shared_node.up()
    try:
        yield shared_node
    finally:
        await shared_node.commands.kill_all()
