"""One node for all tests that need no second daemon: starting one takes seconds, and Spark more.

A test that fails leaves it well for the next one: what it started on the node is ended, and a node that is down is
started again. Its report says what the programs said meanwhile.
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
    """A node for every test of this run; it is started by the first one."""
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
