"""When the Spark process compacts, and how it handles failures."""

import asyncio
import random
from typing import Self

from drain.backlog.results import Result
from drain.compaction.schedule import CompactionScheduler
from drain.spark.engines import JvmGoneError, RunError
from headgate.errors import ConfigError
from headgate.ledger.compacted import Manifest
from tests.support.samples.manifests import manifest


class FakeJob:
    """Records the calls of the scheduler; shards in ``due`` have a range to compact, which ends at chunk 8."""

    def __init__(self, *due: int) -> None:
        self.due = set(due)
        self.asked: list[int] = []
        self.results: dict[int, Result] = {}
        self.calls: list[str] = []
        self.written: list[Manifest] = []
        self.failing: Exception | None = None

    async def due_through(self, shard: int) -> int:
        self.asked.append(shard)
        return 8 if shard in self.due else 0

    async def count(self, shard: int) -> None:
        self.calls.append(f"count {shard}")

    async def run(self, shard: int) -> list[Manifest]:
        self.calls.append(f"run {shard}")
        if self.failing is not None:
            raise self.failing
        return self.written

    @property
    def published(self) -> Self:
        return self

    async def delete_removed(self, manifest: Manifest) -> None:
        self.calls.append(f"delete what was removed from {manifest.range}")

    async def sweep(self, shard: int) -> int:
        self.calls.append(f"sweep {shard}")
        return 0

    def schedule(self, *shards: int) -> CompactionScheduler:
        async def names() -> list[int]:
            if not shards:
                raise ConfigError("no shard found")
            return list(shards)

        return CompactionScheduler(
            self,  # type: ignore[arg-type]
            shards=names,
            count=self.count,
            results=self.results,
            rng=random.Random(1),
            check_interval_seconds=10,
        )


async def test_a_due_shard_is_counted_if_it_was_not_and_compacted_and_counted_for_what_was_removed_meanwhile() -> None:
    job = FakeJob(2)
    assert not await job.schedule(1, 2).check()
    assert job.calls == ["sweep 1", "count 2", "run 2", "sweep 2"]

    for counted, first in ((7, ["count 2"]), (8, [])):
        job.calls, job.written, job.results[2] = [], [manifest(1, 4)], Result(2, counted, ())
        assert not await job.schedule(2).check()
        assert job.calls == [*first, "run 2", "count 2", "delete what was removed from 1 to 4", "sweep 2"]


async def test_a_failing_shard_does_not_stop_the_others_and_a_missing_ledger_is_no_failure(capsys) -> None:
    assert not await FakeJob().schedule().check()
    job = FakeJob(1, 2)
    job.failing = RunError("no")
    assert await job.schedule(1, 2).check()

    assert job.calls == ["count 1", "run 1", "count 2", "run 2"]
    assert "headgate: compaction of shard 1: no" in capsys.readouterr().err


async def test_the_scheduler_ends_when_the_jvm_is_gone() -> None:
    job = FakeJob(1)
    job.failing = JvmGoneError("gone")
    await job.schedule(1).run()
    assert job.calls == ["count 1", "run 1"]


async def test_an_idle_ledger_is_checked_ever_more_seldom_and_a_shard_soon_after_it_has_grown() -> None:
    job = FakeJob()
    job.results |= {1: Result(1, 5, ()), 2: Result(2, 5, ())}
    running = asyncio.create_task(job.schedule(1, 2, 3).run())
    await asyncio.sleep(3600)
    assert job.asked == [1, 2, 3] * 8, "after pauses of 10 s to half an hour"

    job.results[2] = Result(2, 6, ())
    job.due = {2}
    job.asked.clear()
    await asyncio.sleep(30)
    assert job.asked.count(2) >= 2, "again: its range was too young to be compacted"
    assert set(job.asked) == {2}
    job.due = set()
    await asyncio.sleep(30)
    job.asked.clear()
    await asyncio.sleep(60)
    running.cancel()
    assert job.asked == []


async def test_the_scheduler_backs_off_after_failures() -> None:
    failing = FakeJob(1)
    failing.failing = RunError("no")
    running = asyncio.create_task(failing.schedule(1).run())
    await asyncio.sleep(600)
    running.cancel()
    assert 3 <= failing.calls.count("run 1") <= 8, "not sixty runs"
