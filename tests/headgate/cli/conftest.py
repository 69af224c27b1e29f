"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import main
from tests.support.fakes.cli_client import FakeCluster, InProcessContext

Invoke = Callable[..., Result]


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster of plain lists."""
    return FakeCluster()


@pytest.fixture
def context(cluster: FakeCluster) -> InProcessContext:
    """The context of the commands that `invoke` runs."""
    return InProcessContext(cluster)


@pytest.fixture
def invoke(context: InProcessContext) -> Invoke:
    """Run one command line in this process; the result has stdout, stderr and the exit code."""

    def run(*arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin, prog_name="headgate", obj=context)

    return run
