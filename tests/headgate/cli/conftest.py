"""Fixtures of the command-line tests."""

import asyncio
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import main
from headgate.client.topic_source import TopicSource
from headgate.views.topics import TopicInfo
from tests.support.fakes.cli_client import FakeCluster, InProcessContext, segment, topic
from tests.support.samples.positioned_ledger import LedgerWithPositions

Invoke = Callable[..., Result]
AT_MS = 1_769_882_400_000


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    cluster.topics["orders"] = topic("orders", segment(0, 0, 0xFFFF))
    return cluster


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


async def never() -> TopicInfo:
    """Do not answer."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets the event")


@pytest.fixture
def stored(cluster: FakeCluster) -> FakeCluster:
    """A topic with records 0.0, 1.0, 0.1 and 0.2 (segment.offset), stored before, at and after 2026-01-31 18:00."""

    async def write() -> LedgerWithPositions:
        known = LedgerWithPositions()
        for at_ms, steps in ((AT_MS - 10, (0, 1)), (AT_MS, (0,)), (AT_MS + 10, (0,))):
            await known.write(at_ms, *steps)
        return known

    known = asyncio.run(write())
    cluster.source = TopicSource(known.description(), known.ledger, "ledger", newest_chunk=3, describe=never)
    return cluster
