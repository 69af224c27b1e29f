"""One scene for all attacks: an attack that changes it for the next one has succeeded."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.servers.failure_report import pytest_runtest_makereport, pytest_runtest_setup, run_folder
from tests.support.worlds.security_scene import Scene

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup", "run_folder", "scene"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with Scene(tmp_path_factory.mktemp("scene")) as made:
        yield made
