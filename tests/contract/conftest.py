"""ZooKeeper servers for all files of this folder, and a stack for what a test opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from controller.local.embedded import EmbeddedZooKeeper
from tests.support.servers.secure_zookeeper import SecureZooKeeper
from tests.support.worlds.election_environments import Server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(scope="session")
def secure_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(SecureZooKeeper(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack
