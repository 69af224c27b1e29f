"""One shared node for all tests that need no second daemon, because a start takes seconds, and Spark takes longer.

A failed test does not affect the next one: the programs that it started are killed, and a stopped node is started
again. Its report contains the output of the programs during the test.

The tests pass with and without TLS, users and passwords. By default, half of the files use them, always the same:
``--tls all`` and ``--tls none`` choose otherwise. The shared node has them, so there is one node, except with ``none``.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.servers.cluster import Cluster
from tests.support.servers.failure_report import pytest_runtest_makereport, pytest_runtest_setup, run_folder
from tests.support.servers.node import Node
from tests.support.servers.tls_choice import uses_tls

__all__ = ["node", "pytest_runtest_makereport", "pytest_runtest_setup", "run_folder", "shared_node", "tls"]

LONGEST_FIRST = ("one_node", "documented_programs", "kinesis", "spark_queries", "debian_package", "buckets_and_jobs")
"""Files of a minute and more. Started last, one of them would run alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files; the order within a file stays."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


@pytest.fixture(scope="module", autouse=True)
def tls(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the tests of this file use TLS."""
    Cluster.tls_by_default = uses_tls(request.config.getoption("tls"), request.path.name)
    yield Cluster.tls_by_default
    Cluster.tls_by_default = False


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_node(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> AsyncIterator[Node]:
    """The node of this run; the first test starts it."""
    made = Node(tmp_path_factory.mktemp("node"), tls=pytestconfig.getoption("tls") != "none")
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
