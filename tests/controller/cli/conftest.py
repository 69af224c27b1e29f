"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from controller.cli.main import main
from tests.support.cli_client import FakeCluster, InProcessContext
from tests.support.node_recorder import NodeContext, NodeRecorder

Invoke = Callable[..., Result]


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster of plain lists."""
    return FakeCluster()


@pytest.fixture
def recorder() -> NodeRecorder:
    """What the fake daemon and servers did."""
    return NodeRecorder()


@pytest.fixture
def context(cluster: FakeCluster, recorder: NodeRecorder) -> InProcessContext:
    """The context of the commands that `invoke` runs."""
    return NodeContext(cluster, recorder)


@pytest.fixture
def invoke(context: InProcessContext) -> Invoke:
    """Run one command line in this process; the result has stdout, stderr and the exit code."""

    def run(*arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin, prog_name="headgate", obj=context)

    return run
