"""ZooKeeper servers for all files of this folder, clients of elections, and a stack for what a test opens."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from controller.leadership.zookeeper import elections
from controller.local.embedded import EmbeddedZooKeeper
from tests.support.waiting import until
from tests.support.worlds import election_environments


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[election_environments.Server]:
    with election_environments.Server(EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(scope="session")
def secure_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[election_environments.Server]:
    with election_environments.Server(
        election_environments.SecureZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    ) as server:
        yield server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def server(request: pytest.FixtureRequest, environment: str) -> election_environments.Server | None:
    return None if "fake" in environment else request.getfixturevalue(environment)


@pytest.fixture
async def harness(
    environment: str, server: election_environments.Server | None, stack: AsyncExitStack
) -> election_environments.ElectionHarness:
    if server is None:
        return election_environments.FakeElectionHarness(
            election_environments.DAEMONS if environment == "secure_fake" else None
        )
    return election_environments.ZooKeeperHarness(stack, server)


@pytest.fixture
def short_session(harness: election_environments.ElectionHarness) -> None:
    harness.short_session = "a"


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "RECONCILE_INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(elections, "GRANT_TIMEOUT_SECONDS", 60.0)  # A busy machine may need more than a second.


@pytest.fixture
def join(harness: election_environments.ElectionHarness, stack: AsyncExitStack) -> election_environments.Join:
    async def join(name: str) -> election_environments.Candidate:
        candidate = await election_environments.joined(stack, harness, name)
        await until(lambda: candidate.connected)
        return candidate

    return join
