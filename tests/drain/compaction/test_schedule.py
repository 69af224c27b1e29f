"""When the Spark process rolls up, and what it does about failures."""

from __future__ import annotations

import asyncio
import random

import pytest

from drain.backlog.counting import JvmGoneError, RunError
from drain.compaction.schedule import CHECKS_PER_SWEEP, CompactionScheduler
from headgate.errors import ConfigError

pytestmark = pytest.mark.looptime


class Rolling:
    """A roll-up that notes what is asked of it; shards in ``due`` have something to do."""

    def __init__(self, *due: int) -> None:
        self.due = set(due)
        self.asked: list[str] = []
        self.failing: Exception | None = None

    async def is_due(self, shard: int) -> bool:
        return shard in self.due

    async def count(self, shard: int) -> None:
        self.asked.append(f"count {shard}")

    async def run(self, shard: int) -> list[object]:
        self.asked.append(f"run {shard}")
        if self.failing is not None:
            raise self.failing
        return []

    async def sweep(self, shard: int) -> int:
        self.asked.append(f"sweep {shard}")
        return 0

    def schedule(self, *shards: int) -> CompactionScheduler:
        async def names() -> list[int]:
            if not shards:
                raise ConfigError("no shard found")
            return list(shards)

        return CompactionScheduler(
            self, shards=names, count=self.count, rng=random.Random(1), check_interval_seconds=10
        )  # type: ignore[arg-type]


async def test_what_is_due_is_counted_first_and_then_rolled_up() -> None:
    rolling = Rolling(2)
    assert not await rolling.schedule(1, 2).check(sweep=False)

    assert rolling.asked == ["count 2", "run 2"]


async def test_one_shard_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    rolling = Rolling(1, 2)
    rolling.failing = RunError("no")
    assert await rolling.schedule(1, 2).check(sweep=True)

    assert rolling.asked == ["count 1", "run 1", "count 2", "run 2"]
    assert "error: roll-up of shard 1: no" in capsys.readouterr().err


async def test_no_ledger_yet_is_no_failure() -> None:
    assert not await Rolling().schedule().check(sweep=True)


async def test_a_jvm_that_is_gone_ends_it() -> None:
    rolling = Rolling(1)
    rolling.failing = JvmGoneError("gone")
    await rolling.schedule(1).run()

    assert rolling.asked == ["count 1", "run 1"]


async def test_it_sweeps_now_and_then_and_looks_less_often_while_it_fails() -> None:
    rolling = Rolling()
    running = asyncio.create_task(rolling.schedule(1).run())
    await asyncio.sleep(15 * (CHECKS_PER_SWEEP + 1))
    running.cancel()
    swept = rolling.asked.count("sweep 1")
    assert 1 < swept < CHECKS_PER_SWEEP

    failing = Rolling(1)
    failing.failing = RunError("no")
    running = asyncio.create_task(failing.schedule(1).run())
    await asyncio.sleep(600)
    running.cancel()
    assert 3 <= failing.asked.count("run 1") <= 8, "not sixty times"
