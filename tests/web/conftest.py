"""The HTTP server for tests, with sample documents."""

import pytest

from tests.support.servers.http_server import HttpHarness


@pytest.fixture
async def harness():
    async with (harness := HttpHarness()).server:
        yield harness
