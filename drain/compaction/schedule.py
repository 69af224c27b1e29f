"""Compact periodically in the Spark process, concurrently with counting.

Jitter keeps several daemons from doing the same work in vain. Failures are logged and retried with
a growing pause: no promise depends on compaction. A check lists objects, and a bucket charges for that, so a shard is
checked when it was counted since its last check. All shards are checked, and swept, with pauses that grow while nothing
is due: other processes may count and compact them.
"""

import asyncio
import math
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from drain.backlog.results import Result
from drain.compaction.job import CompactionJob, summary_line
from drain.spark.chunks import MustRestartError
from headgate.backoff import Backoff
from headgate.errors import HeadgateError
from headgate.settings.command_parser import error_line

CHECK_INTERVAL_SECONDS: Final = 120.0
"""Long enough that a busy shard has several ranges' chunks, which become one (drain.compaction.policy)."""
MAX_PAUSE_SECONDS: Final = 1800.0


@dataclass(eq=False, repr=False)
class CompactionScheduler:
    compaction_job: CompactionJob
    _: KW_ONLY
    shards: Callable[[], Awaitable[list[int]]]
    count: Callable[[int], Awaitable[object]]
    """Brings the published result of a shard up to date, and ``results``."""
    results: Mapping[int, Result]
    rng: random.Random
    check_interval_seconds: float = CHECK_INTERVAL_SECONDS
    _failures: int = 0
    _checked_to: dict[int, int] = field(default_factory=dict)
    """Shard → to which chunk it was counted when nothing of it was due."""
    _idle_checks: int = 0
    """How many checks of all shards in a row have found nothing due."""
    _all_at: float = -math.inf
    """When all shards are checked again, by the loop's clock."""
    _pauses: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._pauses = Backoff(
            first_seconds=self.check_interval_seconds,
            longest_seconds=max(MAX_PAUSE_SECONDS, self.check_interval_seconds),
        )

    async def run(self) -> None:
        """Check until cancelled. Returns if this process must restart, which counting reports."""
        while True:
            await asyncio.sleep(self._pauses.bound_seconds(self._failures) * self.rng.uniform(0.5, 1.5))
            try:
                failed = await self.check()
            except MustRestartError as error:
                print(error_line(f"compaction ends: {error}", 1, as_json=False), file=sys.stderr)  # noqa: T201
                return
            self._failures = self._failures + 1 if failed else 0

    async def check(self) -> bool:
        """Compact every range that is due, as far as known; return whether anything failed. Raises MustRestartError."""
        now, counted_to = asyncio.get_running_loop().time(), {at: each.watermark for at, each in self.results.items()}
        if every_shard := now >= self._all_at:
            try:
                shards = await self.shards()
            except HeadgateError:
                return False  # There is no ledger yet.
        else:
            shards = [shard for shard, chunk in counted_to.items() if chunk != self._checked_to.get(shard)]
        failed, idle = False, True
        for shard in shards:
            try:
                counted = counted_to.get(shard, 0)
                if not (last := await self.compaction_job.due_through(shard)):
                    self._checked_to[shard] = counted
                else:
                    idle = False
                    if counted < last:  # A count costs as much as compacting thousands of chunks.
                        await self.count(shard)
                    for manifest in (written := await self.compaction_job.run(shard)):
                        print(summary_line(manifest), flush=True)  # noqa: T201 - the process's log
                    if written:
                        await self.count(shard)
                    for manifest in written:
                        await self.compaction_job.published.delete_removed(manifest)
                if every_shard:
                    await self.compaction_job.published.sweep(shard)
            except HeadgateError as error:
                print(error_line(f"compaction of shard {shard}: {error}", 1, as_json=False), file=sys.stderr)  # noqa: T201
                failed = True
        if every_shard:
            self._idle_checks = self._idle_checks + 1 if idle and not failed else 0
            self._all_at = now + self._pauses.bound_seconds(self._idle_checks)
        return failed
