"""Deletes a shard's old chunks up to the point that `retention.policy` decides, and looks whether all others exist.

1. The point is committed first; chunks are deleted, oldest first, once that entry is durable. A later round, of this
   leader or the next, deletes what a failure left behind.
2. All chunks are listed in the first round of a term, and at least once an hour: hours of chunks are kept, and a store
   lists a thousand per request. Meanwhile every number from the lowest on is taken to exist.
3. If a chunk is missing that was not trimmed, the term ends, and no other daemon leads until it is back: its records
   are lost to consumers. A new leader does not look before its term (`controller.snapshots.restore`).
4. Pauses between rounds grow while nothing is written, compacted or deleted: a bucket charges for each listing.
5. Each round first looks whether the ledger is still that of this term, and all chunks are listed again before some are
   deleted: an older ledger that was put back may lack what replaces them. The term ends.
6. A manifest's age is by ledger time, which leaders lived through, and at least as long as this term has seen it. So a
   clock that is set, here or at Spark, neither deletes chunks younger than the delay nor keeps any permanently.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from controller.chunk_writer.group_commit import GroupCommit, TermEndedError
from controller.context.leader_context import LeaderContext
from controller.leadership.policy.transitions import Event
from controller.retention.policy import deletable, trim_point
from controller.snapshots.format import SnapshotError, decode_file
from controller.snapshots.restore import OtherHistoryError, require_complete, require_own
from headgate.backoff import Backoff
from headgate.errors import ForeignObjectError, LedgerError, ObjectMissingError, StoreError
from headgate.ledger.compacted import compacted_folder, manifest_path, manifest_ranges, named_paths, read_manifest
from headgate.ledger.objects import ChunkRange, compacted_through, ranges_to_read, snapshot_path
from headgate.model import entries as e
from metrics import events
from metrics.label_values import ObjectKind
from shard.state.shard_state import ShardState

LISTING_INTERVAL_SECONDS: Final = 3600.0
"""Between two listings of all chunks in a term."""
LONGEST_PAUSE_SECONDS: Final = 1800.0
"""Between two rounds. Chunks are kept for hours after their compaction."""
MAX_DELETIONS_PER_ROUND: Final = 2000
"""Bounds a round on a store that deletes slowly."""

log = structlog.get_logger(__name__)


class Trimmer:
    def __init__(self, context: LeaderContext, state: ShardState, commit: GroupCommit) -> None:
        """``state`` ends with the term chunk, so its trim point is durable."""
        self._context = context
        self._ledger = context.ledger
        self._state = state
        self._commit = commit
        self._below = state.trimmed_below
        """Durable trim point: chunks below it can be deleted."""
        self._lowest = 1
        """From here on, every chunk exists. Below it are the first chunks of terms."""
        self._listed_at: float | None = None
        self._listed_below = 1
        """The trim point at the last listing."""
        self._manifests: dict[ChunkRange, tuple[int, float, int, int]] = {}
        """When it was written, the loop time at which this term saw it first, its objects and their bytes."""
        self._readable: dict[int, bool] = {}

    async def run(self) -> None:
        """Trim again and again; raises TermEndedError (rules 3 and 5)."""
        first_seconds = self._context.trim_interval_seconds
        pauses = Backoff(first_seconds=first_seconds, longest_seconds=max(first_seconds, LONGEST_PAUSE_SECONDS))
        idle_rounds, before, durable = 0, None, 0
        while True:
            await asyncio.sleep(pauses.bound_seconds(idle_rounds))
            found = await self.trim_once()
            # A leader without requests writes a chunk every 50 minutes.
            wrote, durable = self._commit.durable > durable + 1, self._commit.durable
            idle_rounds = idle_rounds + 1 if found and found == before and not wrote else 0
            before = found

    async def trim_once(self) -> tuple[object, ...]:
        """Decide once, delete up to the durable trim point, and return what was found; empty if that failed.

        Raises TermEndedError (rules 3 and 5).
        """
        shard = self._ledger.shard
        deleted = 0
        try:
            await require_own(self._ledger, self._state, self._commit.durable)
            await self._list_if_due()
            if (delay_seconds := self._context.trim_delay_seconds) is not None:
                await self._decide(1000 * delay_seconds)
            for number in self._deletable(range(self._lowest, self._below))[:MAX_DELETIONS_PER_ROUND]:
                await self._ledger.delete(number)
                deleted, self._lowest = deleted + 1, number + 1
                self._context.observer.observe(events.ChunksDeleted(shard=shard, count=1))
            self._count()
        except OtherHistoryError as error:
            raise TermEndedError(Event.LEDGER_UNREADABLE, str(error)) from error
        except (StoreError, LedgerError) as error:
            # No caller waits for this. A persistent fault is logged in every round.
            self._context.observer.observe(events.TrimFailed(shard=shard))
            log.warning("ledger.trim_failed", shard=shard, reason=str(error))
            return ()
        if deleted:
            log.info("ledger.trimmed", shard=shard, below=self._below, deleted=deleted)
        return self._lowest, set(self._manifests)

    async def _list_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        recently = self._listed_at is not None and now - self._listed_at < LISTING_INTERVAL_SECONDS
        if recently and self._listed_below == self._below:
            return
        below, numbers = self._below, await self._ledger.numbers()
        try:
            await require_complete(self._ledger, numbers, self._state.trimmed_below)
        except LedgerError as error:
            raise TermEndedError(Event.LEDGER_UNREADABLE, str(error)) from error
        self._lowest = next(iter(self._deletable(numbers)), self._below)
        self._listed_at, self._listed_below = now, below

    def _deletable(self, numbers: Iterable[int]) -> list[int]:
        return deletable(numbers, below=self._below, term_start_chunks=self._state.terms.start_chunks)

    def _count(self) -> None:
        fences = sum(number < self._lowest for number in self._state.terms.start_chunks)
        count = fences + self._commit.durable - self._lowest + 1
        self._context.observer.observe(events.ObjectsCounted(shard=self._ledger.shard, kind="chunk", count=count))

    async def _decide(self, delay_ms: float) -> None:
        """Propose a new trim point, if it is higher than the current one."""
        ledger, store = self._ledger, self._ledger.store
        snapshots = await ledger.snapshots()
        ranges = await manifest_ranges(store, ledger.shard)
        for chunks in ranges:
            if chunks not in self._manifests:
                try:
                    manifest = await read_manifest(store, ledger.shard, chunks)
                except ObjectMissingError:
                    continue  # Replaced since the listing.
                times = max(manifest.written_at_ms, manifest.last_at_ms), asyncio.get_running_loop().time()
                sizes = [item.size_bytes for item in manifest.objects]
                self._manifests[chunks] = *times, len(sizes), sum(sizes)
        for known in set(self._manifests).difference(ranges):
            del self._manifests[known]
        self._report_objects(len(snapshots), ranges_to_read(self._manifests))
        below = trim_point(snapshots, [(each, self._age_ms(each)) for each in self._manifests], delay_ms=delay_ms)
        if below > self._state.trimmed_below and await self._are_readable(snapshots[-2:]):
            await self._require_compacted(below)
            self._commit.propose(e.LedgerTrimmed(below=below))
            self._commit.when_durable(self._commit.newest, partial(setattr, self, "_below", below))

    def _age_ms(self, chunks: ChunkRange) -> float:
        """Return how old a manifest is (rule 6)."""
        written_at_ms, seen_at, _, _ = self._manifests[chunks]
        seen_ms = 1000 * (asyncio.get_running_loop().time() - seen_at)
        return max(seen_ms, self._state.time.age_ms(written_at_ms, self._context.now_ms()))

    async def _require_compacted(self, below: int) -> None:
        """Raise LedgerError if a range that replaces chunks below ``below`` names an object that does not exist."""
        store, shard = self._ledger.store, self._ledger.shard
        existing = set(await store.paths(compacted_folder(shard)))
        for chunks in ranges_to_read(self._manifests):
            if self._state.trimmed_below <= chunks.last and chunks.first < below:
                manifest = await read_manifest(store, shard, chunks)
                if missing := named_paths(manifest, self._state.segments()).keys() - existing:
                    raise LedgerError(f"{min(missing)} is missing, and {manifest_path(shard, chunks)} names it")

    def _report_objects(self, snapshots: int, covering: list[ChunkRange]) -> None:
        shard = self._ledger.shard
        counts: dict[ObjectKind, int] = {
            "snapshot": snapshots,
            "manifest": len(self._manifests),
            "compacted": sum(objects for _, _, objects, _ in self._manifests.values()),
        }
        for kind, count in counts.items():
            self._context.observer.observe(events.ObjectsCounted(shard=shard, kind=kind, count=count))
        chunk, size_bytes = compacted_through(covering), sum(self._manifests[chunks][3] for chunks in covering)
        self._context.observer.observe(events.CompactionAdvanced(shard=shard, chunk=chunk, size_bytes=size_bytes))

    async def _are_readable(self, snapshots: Sequence[int]) -> bool:
        """Return whether ``snapshots``, which replace the deleted chunks, are intact. Each is read once."""
        known = self._readable
        self._readable = {each: known[each] if each in known else await self._is_readable(each) for each in snapshots}
        return all(self._readable.values())

    async def _is_readable(self, number: int) -> bool:
        shard = self._ledger.shard
        try:
            data = await self._ledger.store.read(snapshot_path(shard, number))
            await asyncio.to_thread(decode_file, data, shard=shard, chunk=number)
        except ObjectMissingError:
            return False  # Replaced by newer snapshots.
        except (SnapshotError, ForeignObjectError) as error:
            self._context.observer.observe(events.SnapshotRejected(shard=shard))
            log.warning("snapshot.unusable", shard=shard, chunk=number, reason=str(error))
            return False
        return True
