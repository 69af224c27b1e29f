"""How many chunks a Spark job counts, so that slow machines make progress too."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from drain.backlog.counting import Counted
from drain.backlog.job import MAX_CHUNKS_PER_JOB, BacklogJob
from drain.backlog.job_size import FEWEST_CHUNKS, FIRST_CHUNKS, next_chunks
from drain.protocol import CountedLedger
from drain.spark.engines import RunError
from tests.support.fakes.object_store import FakeStore

RUN_SECONDS = 60.0


@pytest.mark.parametrize(
    ("counted", "seconds", "failed", "expected"),
    [
        pytest.param(400, 20.0, False, 800, id="quick"),
        pytest.param(399, 20.0, False, 400, id="quick and not full"),
        pytest.param(400, 20.1, False, 400, id="slow"),
        pytest.param(400, 0.1, True, 200, id="failed"),
        pytest.param(100, 0.1, True, 50, id="failed and not full"),
        pytest.param(10, 60.0, True, 25, id="few and failed"),
    ],
)
def test_the_next_job_follows_from_the_last_one(counted: int, seconds: float, failed: bool, expected: int) -> None:
    assert next_chunks(400, counted=counted, seconds=seconds, failed=failed, most_chunks=1000) == expected


def test_the_limits_hold() -> None:
    assert next_chunks(700, counted=700, most_chunks=1000, seconds=0.0, failed=False) == 1000
    assert next_chunks(FEWEST_CHUNKS, counted=1, most_chunks=1000, seconds=1.0, failed=True) == FEWEST_CHUNKS
    assert next_chunks(2, counted=2, most_chunks=2, seconds=1.0, failed=True) == 2


class Machine:
    """A ledger of one shard, and a machine that needs some time for each of its chunks."""

    def __init__(self, length: int, seconds_per_chunk: float, seconds_per_job: float = 0.0) -> None:
        self.store = FakeStore()
        self.jobs: list[int] = []
        self._length = length
        self._seconds_per_chunk = seconds_per_chunk
        self._seconds_per_job = seconds_per_job

    async def identify(self) -> CountedLedger:
        return CountedLedger()

    async def newer_than(self, _: int, watermark: int, up_to: int) -> range:
        return range(watermark + 1, self._length + 1)

    async def header(self, *_: int) -> Any:
        return type("Header", (), {"term_id": 1})

    async def count(self, due: Mapping[int, range]) -> dict[int, Counted]:
        chunks = sum(map(len, due.values()))
        self.jobs.append(chunks)
        seconds = self._seconds_per_job + chunks * self._seconds_per_chunk
        await asyncio.sleep(min(RUN_SECONDS, seconds))
        if seconds > RUN_SECONDS:
            raise RunError("the run took too long")
        return {0: Counted((), 0)}

    def job(self) -> BacklogJob:
        chunks: Any = self
        return BacklogJob(chunks, self.count)


async def test_after_a_failed_job_smaller_ones_advance() -> None:
    machine = Machine(length=300, seconds_per_chunk=0.5)
    job = machine.job()

    assert (await job.run([0])).failures == {0: "the run took too long"}
    outcome = await job.run([0])
    assert (outcome.failures, outcome.results[0].watermark) == ({}, 300)


async def test_a_quick_machine_counts_a_long_ledger_in_few_jobs() -> None:
    machine = Machine(length=20_000, seconds_per_chunk=0.0001)

    await machine.job().run([0])
    assert machine.jobs == [200, 400, 800, 1600, 3200, *[MAX_CHUNKS_PER_JOB] * 3, 1800]


async def test_what_was_stored_during_an_outage_is_counted_on_a_machine_too_slow_for_one_job() -> None:
    machine = Machine(length=3000, seconds_per_chunk=0.05)

    outcome = await machine.job().run([0])

    assert (outcome.failures, outcome.results[0].watermark) == ({}, 3000)
    assert max(machine.jobs) <= 4 * FIRST_CHUNKS
