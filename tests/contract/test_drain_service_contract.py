"""What a daemon may rely on when it asks a Spark process: the fake, and the real server with counts of its own."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drain.backlog.job import RunOutcome
from drain.backlog.results import Result
from drain.checker.checker import SparkDrainChecker
from drain.checker.connection import Connection
from drain.external.topics import ExternalTopicCounter
from drain.protocol import BacklogRequest, CountedLedger, DrainCheckError, DrainQuery, Ping, Pong
from drain.service.run_coalescer import RunCoalescer
from drain.service.service import DrainListener, DrainServer
from metrics import events
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.waiting import until

pytestmark = pytest.mark.real_time

QUERY = DrainQuery(0, 1, 2, 0, frozenset({1}), 100)


class HundredChunks:
    """An empty ledger of 100 chunks, and a job that counts it on an engine that answers."""

    async def ping(self) -> None:
        pass

    async def run(self, shards: Sequence[int], **_: object) -> RunOutcome:
        results = {shard: Result(shard, 100, ()) for shard in shards}
        return RunOutcome(results=results, ledger=await self.identify())

    async def identify(self) -> CountedLedger:
        return CountedLedger("a" * 32, "file:///ledger")


@asynccontextmanager
async def listening(kind: str, path: Path) -> AsyncIterator[None]:
    """Serve at ``path`` with the fake or with the real server."""
    if kind == "fake":
        fake = FakeDrainService()
        async with DrainListener(path, fake.serve):
            yield
        await fake.hang_up()
        return
    counted: Any = HundredChunks()
    async with RunCoalescer(counted, counted, external=ExternalTopicCounter({}, counted)) as coalescer:
        server = DrainServer(coalescer, counted, counted)
        async with DrainListener(path, server.serve):
            yield


@pytest.fixture(params=["fake", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_a_daemon_that_is_who_it_should_be_gets_replies(kind: str, tmp_path: Path) -> None:
    async with listening(kind, tmp_path / "s"), SparkDrainChecker(str(tmp_path / "s"), rng=random.Random(1)) as checker:
        assert (await checker.drained(QUERY)).drained == {}
        assert (await checker.backlog(BacklogRequest(shard=0, now_ms=7, written_to=99))).rows == []


async def test_every_answer_names_the_ledger_that_was_counted(kind: str, tmp_path: Path) -> None:
    asked: list[CountedLedger] = []
    async with (
        listening(kind, tmp_path / "s"),
        SparkDrainChecker(str(tmp_path / "s"), rng=random.Random(1), require_ledger=asked.append) as checker,
    ):
        await checker.drained(QUERY)
        await checker.backlog(BacklogRequest(shard=0, now_ms=7, written_to=99))
        connection = await Connection.open(tmp_path / "s", 60)
        asked.append((await connection.request(Ping(name_ledger=True), Pong, 60)).ledger or CountedLedger())
        connection.close()

    assert asked == [CountedLedger("a" * 32, "file:///ledger")] * 3


async def test_another_process_than_the_own_child_is_a_state_a_metric_and_no_reply(kind: str, tmp_path: Path) -> None:
    """As that of another cluster at the same path. The daemon tries again."""
    states: list[tuple[str, str]] = []
    observer = RecordingObserver()
    child: list[int | None] = [os.getpid() + 1]
    async with (
        listening(kind, tmp_path / "s"),
        SparkDrainChecker(
            str(tmp_path / "s"),
            pid=lambda: child[0],
            on_state=lambda *state: states.append(state),
            observer=observer,
            rng=random.Random(1),
        ) as checker,
    ):
        query = asyncio.create_task(checker.drained(QUERY))
        await until(lambda: states)
        (state,) = states
        assert state[0] == "degraded"
        assert f"it is process {os.getpid()}, and this daemon started {child[0]}" in state[1]
        assert observer.of(events.DrainCheckFailed)[0] == events.DrainCheckFailed(reason="denied")
        assert not query.done()

        child[0] = os.getpid()
        await until(lambda: states[-1][0] == "ready")
        assert (await query).drained == {}


async def test_a_child_that_does_not_run_is_not_asked(kind: str, tmp_path: Path) -> None:
    async with (
        listening(kind, tmp_path / "s"),
        SparkDrainChecker(str(tmp_path / "s"), pid=lambda: None, timeout_seconds=0.2, rng=random.Random(1)) as checker,
    ):
        with pytest.raises(DrainCheckError, match="no answer"):
            await checker.drained(QUERY)
