"""When the Spark process compacts, and how it handles failures."""

from __future__ import annotations

import asyncio
import random

import pytest

from drain.compaction.schedule import CHECKS_PER_SWEEP, CompactionScheduler
from drain.spark.engines import JvmGoneError, RunError
from headgate.errors import ConfigError

pytestmark = pytest.mark.looptime


class FakeJob:
    """Records the calls of the scheduler; shards in ``due`` have a range to compact."""

    def __init__(self, *due: int) -> None:
        self.due = set(due)
        self.calls: list[str] = []
        self.failing: Exception | None = None

    async def is_due(self, shard: int) -> bool:
        return shard in self.due

    async def count(self, shard: int) -> None:
        self.calls.append(f"count {shard}")

    async def run(self, shard: int) -> list[object]:
        self.calls.append(f"run {shard}")
        if self.failing is not None:
            raise self.failing
        return []

    async def sweep(self, shard: int) -> int:
        self.calls.append(f"sweep {shard}")
        return 0

    def schedule(self, *shards: int) -> CompactionScheduler:
        async def names() -> list[int]:
            if not shards:
                raise ConfigError("no shard found")
            return list(shards)

        return CompactionScheduler(
            self, shards=names, count=self.count, rng=random.Random(1), check_interval_seconds=10
        )  # type: ignore[arg-type]


async def test_a_due_shard_is_counted_and_then_compacted() -> None:
    job = FakeJob(2)
    assert not await job.schedule(1, 2).check(sweep=False)

    assert job.calls == ["count 2", "run 2"]


async def test_a_failing_shard_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(1, 2)
    job.failing = RunError("no")
    assert await job.schedule(1, 2).check(sweep=True)

    assert job.calls == ["count 1", "run 1", "count 2", "run 2"]
    assert "error: compaction of shard 1: no" in capsys.readouterr().err


async def test_a_missing_ledger_is_not_a_failure() -> None:
    assert not await FakeJob().schedule().check(sweep=True)


async def test_the_scheduler_ends_when_the_jvm_is_gone() -> None:
    job = FakeJob(1)
    job.failing = JvmGoneError("gone")
    await job.schedule(1).run()

    assert job.calls == ["count 1", "run 1"]


async def test_the_scheduler_sweeps_rarely_and_backs_off_after_failures() -> None:
    job = FakeJob()
    running = asyncio.create_task(job.schedule(1).run())
    await asyncio.sleep(15 * (CHECKS_PER_SWEEP + 1))
    running.cancel()
    swept = job.calls.count("sweep 1")
    assert 1 < swept < CHECKS_PER_SWEEP

    failing = FakeJob(1)
    failing.failing = RunError("no")
    running = asyncio.create_task(failing.schedule(1).run())
    await asyncio.sleep(600)
    running.cancel()
    assert 3 <= failing.calls.count("run 1") <= 8, "not sixty runs"
