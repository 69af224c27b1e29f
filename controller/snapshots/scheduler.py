"""Start the snapshot job when a shard led by this daemon needs a snapshot: one job at a time.

No guarantee depends on snapshots: without them restores take longer, and old chunks are kept.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from headgate.errors import StoreUnavailableError
from headgate.ledger.ledger import Ledger
from headgate.process.child_process import python_module
from headgate.storage.object_store import Store
from metrics import events

JOB_TIMEOUT_SECONDS: Final = 600.0
"""A job that takes longer is killed; the next one starts from the beginning."""
CHECK_INTERVAL_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


def due_shards(heads: Mapping[int, int], snapshots: Mapping[int, int], chunks: int) -> list[int]:
    """Return the shards whose head (shard → chunk) is ``chunks`` or more beyond their newest snapshot."""
    return sorted(shard for shard, head in heads.items() if head - snapshots.get(shard, 0) >= chunks)


@dataclass(eq=False, repr=False, kw_only=True)
class SnapshotScheduler:
    store: Store
    ledger_url: str
    chunks: int
    pause_seconds: float
    heads: Callable[[], Mapping[int, int]]
    """Returns the durable head of every shard led here."""
    observer: events.Observer
    _newest: dict[int, int] = field(default_factory=dict)
    _due_since: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Check for due shards and start the job, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            heads = self.heads()
            # A snapshot ahead of the ledger is of a lost one: an older ledger was put back.
            self._newest = {shard: at for shard, at in self._newest.items() if at <= heads.get(shard, 0)}
            # The known snapshots first, which costs nothing; another process may have written newer ones.
            shards = due_shards(heads, self._newest, self.chunks)
            if not shards:
                self._report_overdue(shards)
                continue
            for shard in shards:
                await self._refresh_newest(shard)
            shards = due_shards(heads, self._newest, self.chunks)
            self._report_overdue(shards)
            if shards:
                if not await self._run_job(shards):
                    self.observer.observe(events.SnapshotJobFailed())
                for shard in shards:
                    await self._refresh_newest(shard)
                self._report_overdue(due_shards(heads, self._newest, self.chunks))
            await asyncio.sleep(self.pause_seconds)

    def _report_overdue(self, shards: Sequence[int]) -> None:
        """Report how long ``shards`` have been due, and 0 for those that no longer are."""
        now = asyncio.get_running_loop().time()
        for shard in self._due_since.keys() - set(shards):
            del self._due_since[shard]
            self.observer.observe(events.SnapshotOverdueMeasured(shard=shard, seconds=0))
        for shard in shards:
            seconds = now - self._due_since.setdefault(shard, now)
            self.observer.observe(events.SnapshotOverdueMeasured(shard=shard, seconds=seconds))

    async def _refresh_newest(self, shard: int) -> None:
        try:
            numbers = await Ledger(self.store, shard).snapshots()
        except StoreUnavailableError as error:
            log.debug("snapshot.listing_failed", shard=shard, reason=str(error))
            return
        if numbers:
            self._newest[shard] = numbers[-1]
            self.observer.observe(events.SnapshotFound(shard=shard, chunk=numbers[-1]))

    def _command(self, shards: Sequence[int]) -> Sequence[str]:
        heads = self.heads()
        which = [word for at in shards for word in ("--shard", str(at), "--head", str(heads.get(at, 0)))]
        options = ("--chunks", str(self.chunks), "--parent", str(os.getpid()))
        return python_module("controller.snapshots.job", "--ledger", self.ledger_url, *options, *which)

    async def _run_job(self, shards: Sequence[int]) -> bool:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(shards),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            log.warning("snapshot.job_failed", shards=shards, reason=str(error))
            return False
        try:
            async with asyncio.timeout(JOB_TIMEOUT_SECONDS):
                output, errors_output = await process.communicate()
        except TimeoutError:
            reason = f"took longer than {JOB_TIMEOUT_SECONDS:g} s"
            log.warning("snapshot.job_failed", shards=shards, reason=reason)
            return False
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for line in output.decode(errors="replace").splitlines():
            log.info("snapshot.written", detail=line)
        if process.returncode:
            lines = errors_output.decode(errors="replace").strip().splitlines()
            log.warning(
                "snapshot.job_failed", shards=shards, code=process.returncode, reason=lines[-1] if lines else ""
            )
        return process.returncode == 0
