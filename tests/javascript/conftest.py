"""The example clients in JavaScript, ready to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.npm_packages import npm_packages


@pytest.fixture
def programs(pytestconfig: pytest.Config) -> Path:
    """The folder of the programs with their packages."""
    return npm_packages(Path(__file__).parent, pytestconfig)
