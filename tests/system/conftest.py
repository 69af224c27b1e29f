"""One node for all tests that need no second daemon: starting one takes seconds, and Spark more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.system.node import Node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A running node; each test uses topics of its own."""
    made = Node(tmp_path_factory.mktemp("node"))
    try:
        await made.up()
        yield made
    finally:
        await made.clean_up()
