"""The daemon's commands run like those of clients, with a fake daemon and fake servers."""

import pytest

from tests.headgate.cli.conftest import cluster, invoke
from tests.support.fakes.cli_client import FakeCluster
from tests.support.fakes.node_recorder import NodeContext, NodeRecorder

__all__ = ["cluster", "invoke"]


@pytest.fixture
def recorder() -> NodeRecorder:
    """What the fake daemon and servers did."""
    return NodeRecorder()


@pytest.fixture
def context(cluster: FakeCluster, recorder: NodeRecorder) -> NodeContext:
    """The context of the commands that `invoke` runs."""
    return NodeContext(cluster, recorder)
