"""Compact periodically in the Spark process, concurrently with counting.

Jitter keeps several daemons from doing the same work in vain. Failures are logged and retried with
a growing pause: no promise depends on compaction.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from drain.compaction.job import CompactionJob, summary_line
from drain.spark.chunks import MustRestartError
from headgate.errors import HeadgateError

CHECK_INTERVAL_SECONDS: Final = 30.0
CHECKS_PER_SWEEP: Final = 10
MAX_PAUSE_SECONDS: Final = 1800.0


class CompactionScheduler:
    """Checks every shard of a ledger periodically."""

    def __init__(
        self,
        compaction_job: CompactionJob,
        *,
        shards: Callable[[], Awaitable[list[int]]],
        count: Callable[[int], Awaitable[object]],
        rng: random.Random,
        check_interval_seconds: float = CHECK_INTERVAL_SECONDS,
    ) -> None:
        """``shards`` returns the shards; ``count`` brings a shard's published result up to date."""
        self._job = compaction_job
        self._shards = shards
        self._count = count
        self._rng = rng
        self._check_interval_seconds = check_interval_seconds
        self._failures = 0

    async def run(self) -> None:
        """Check until cancelled. Returns if this process must restart, which counting reports."""
        checks = 0
        while True:
            pause = min(
                self._check_interval_seconds * 2**self._failures, max(MAX_PAUSE_SECONDS, self._check_interval_seconds)
            )
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
            try:
                failed = await self.check(sweep=checks % CHECKS_PER_SWEEP == 0)
            except MustRestartError as error:
                print(f"error: compaction ends: {error}", file=sys.stderr)  # noqa: T201
                return
            self._failures = min(self._failures + 1, 10) if failed else 0
            checks += 1

    async def check(self, *, sweep: bool) -> bool:
        """Compact every range that is due; return whether anything failed. Raises MustRestartError."""
        try:
            shards = await self._shards()
        except HeadgateError:
            return False  # There is no ledger yet.
        failed = False
        for shard in shards:
            try:
                if await self._job.is_due(shard):
                    await self._count(shard)
                    for manifest in await self._job.run(shard):
                        print(summary_line(manifest), flush=True)  # noqa: T201 - the process's log
                if sweep:
                    await self._job.sweep(shard)
            except HeadgateError as error:
                print(f"error: compaction of shard {shard}: {error}", file=sys.stderr)  # noqa: T201
                failed = True
        return failed
