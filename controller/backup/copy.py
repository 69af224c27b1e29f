"""Copy one shard's ledger to another store, while its cluster writes, compacts and trims.

The copy is a prefix of the ledger: everything up to its last chunk, and nothing after it.

1. Chunks first, in the order of their numbers, up to the end of the source. Then compacted ranges, with
   the chunks written meanwhile before and after them, then snapshots. A chunk that was trimmed before it was copied
   is in a range and in a snapshot that exist afterwards. The feature level is copied before and after them.
2. A range or a snapshot beyond the last copied chunk is left out: the copy would describe records
   that it does not contain, and give their numbers to others.
   A range lacks the records of segments that the source has deleted: the chunks that delete them are copied before it.
3. Only the ranges that readers read are copied. Their manifests name the destination's id, which it gets now: the copy
   is another ledger. At the end every number is a chunk, or in such a range and in a snapshot.
4. Nothing is overwritten. A second run continues, and adds what is new.
5. A destination with other content is refused: its newest chunk must be the source's, too. So is a source whose
   history changes during the run.
6. A damaged object is not copied: it would stay in the copy after the source has a good one again.
7. An interrupted copy is either an older prefix, or is refused by every daemon.

Published results of Spark are not copied: Spark counts again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.backup.check import missing_numbers
from controller.snapshots.restore import catch_up
from headgate.errors import LedgerError, ObjectExistsError, ObjectMissingError
from headgate.ledger.checksum import ChecksumError, check, verify, verify_parquet
from headgate.ledger.compacted import create_manifest, manifest_path, manifest_ranges, named_paths, read_manifest
from headgate.ledger.identity import claim_ledger_id, name_level, read_level, read_shards
from headgate.ledger.ledger import Ledger, if_exists, run_start
from headgate.ledger.objects import ChunkRange, chunk_folder, chunk_path, ranges_to_read, snapshot_path
from headgate.storage.object_store import Store, create_own
from shard.state.shard_state import ShardState

PARALLEL_CHUNKS: Final = 16
PARALLEL_COMPACTED: Final = 2
"""Compacted objects have up to hundreds of megabytes, chunks at most a few."""
LISTINGS: Final = 3
"""How often the ranges are listed. A range disappears only when a wider one has replaced it, which takes hours."""

OnProgress = Callable[[int, int], None]
"""Called with the number of chunks that are done, and of all."""


@dataclass(frozen=True, slots=True)
class CopiedShard:
    shard: int
    last_chunk: int
    """The last chunk of the copy; 0: the shard is empty."""
    chunks: int
    """Chunks that this run copied."""
    ranges: int
    """Compacted ranges that this run copied."""
    snapshots: int


async def copy_shard(source: Store, destination: Store, shard: int, on_progress: OnProgress) -> CopiedShard:
    """Copy what the destination lacks.

    Raises:
        LedgerError: the destination contains another ledger, or the source is damaged.
        StoreUnavailableError, OutcomeUnknownError: a store failed; run it again.
    """
    return await _Copy(Ledger(source, shard), Ledger(destination, shard), on_progress).run()


class _Copy:
    def __init__(self, source: Ledger, destination: Ledger, on_progress: OnProgress) -> None:
        self._from, self._to, self._shard = source, destination, source.shard
        self._on_progress = on_progress
        self._last = 0
        """The last chunk that is copied."""
        self._term_id: int | None = 0
        """Its term, as the source had it first."""

    async def run(self) -> CopiedShard:
        before = await self._to.numbers()
        numbers = await self._listed()
        await self._require_same_history(numbers, before)
        last = self._last = max(numbers, default=0)
        self._term_id = await self._from.term_id_at(last) if last else 0
        ledger_id = await claim_ledger_id(self._to.store, "the destination")
        await self._copy_levels()
        missing = sorted(set(numbers) - set(before))
        await self._copy(dict.fromkeys(chunk_path(self._shard, n) for n in missing), PARALLEL_CHUNKS, self._on_progress)
        copied = await self._copy_ranges(last, ledger_id)
        await self._copy_newer_chunks()
        snapshots = await self._copy_snapshots()
        await self._copy_levels()
        self._require_term(await self._from.term_id_at(self._last) if self._last else 0)
        ranges = ranges_to_read(await manifest_ranges(self._to.store, self._shard))
        for problem in missing_numbers(self._shard, await self._to.numbers(), ranges):
            raise LedgerError(f"the copy cannot be read: {problem}; check the source with `headgate ledger check`")
        await self._to.newest()  # Raises LedgerError if no snapshot includes what was trimmed.
        await self._to.name_begun()
        return CopiedShard(self._shard, self._last, len(missing) + self._last - last, copied, snapshots)

    async def _listed(self) -> list[int]:
        """Return the source's numbers. A listing made during writes may show a chunk and not yet the one before it."""
        numbers = await self._from.numbers()
        while numbers and (start := run_start(numbers)) > 1 and await self._from.exists(start - 1):
            numbers = sorted({*numbers, start - 1})
        return numbers

    async def _require_same_history(self, numbers: Sequence[int], before: Sequence[int]) -> None:
        if not before:
            return
        remedy = "the destination is not a copy of this ledger, or was written to; choose an empty destination"
        if before[-1] > (last := max(numbers, default=0)):
            raise LedgerError(
                f"{chunk_folder(self._shard)}: the destination has chunk {before[-1]}, and the source ends at {last}: "
                f"{remedy}"
            )
        # The source may have trimmed it. Its terms have random ids, and keep their first chunks.
        term_id = (await self._to.header(before[-1])).term_id
        if await self._from.term_id_at(before[-1]) != term_id:
            raise LedgerError(f"{chunk_path(self._shard, before[-1])} is of another term: {remedy}")

    async def _copy_levels(self) -> None:
        if (level := await read_level(self._from.store)) is not None:
            await name_level(self._to.store, level, await read_shards(self._from.store))

    async def _copy_ranges(self, last: int, ledger_id: str) -> int:
        """Copy the compacted ranges that end at ``last`` or before, each after its objects."""
        have = set(before := await manifest_ranges(self._to.store, self._shard))
        for attempt in range(1, LISTINGS + 1):
            listed = await manifest_ranges(self._from.store, self._shard)
            # They may lack records of segments that have ended meanwhile.
            await self._copy_newer_chunks()
            ranges = ranges_to_read(each for each in listed if each.last <= last)
            try:
                for chunks in sorted(set(ranges) - have):
                    await self._copy_range(chunks, ledger_id)
                    have.add(chunks)
            except ObjectMissingError as error:
                if attempt == LISTINGS:
                    raise LedgerError(f"a compacted object is missing: {error}") from None
            else:
                break
        return len(have) - len(before)

    async def _copy_range(self, chunks: ChunkRange, ledger_id: str) -> None:
        manifest = await read_manifest(self._from.store, self._shard, chunks)
        if not await self._copy(named_paths(manifest), PARALLEL_COMPACTED):
            state, _ = await catch_up(self._from, ShardState(self._shard))
            await self._copy_newer_chunks()
            if not await self._copy(named_paths(manifest, state.segments()), PARALLEL_COMPACTED):
                raise ObjectMissingError(f"an object that {manifest_path(self._shard, chunks)} names")
        with contextlib.suppress(ObjectExistsError):
            await create_manifest(self._to.store, msgspec.structs.replace(manifest, ledger_id=ledger_id))

    async def _copy_newer_chunks(self) -> None:
        """Copy the chunks written meanwhile, up to the end. Raises LedgerError: the next one was trimmed."""
        while (header := await if_exists(self._from.header, self._last + 1)) is not None:
            self._require_term(header.previous_term_id)
            await self._copy({chunk_path(self._shard, header.number): None}, 1)
            self._last, self._term_id = header.number, header.term_id
        if await self._from.numbers(after=self._last) and not await self._from.exists(self._last + 1):
            raise LedgerError(f"{chunk_path(self._shard, self._last + 1)} was trimmed meanwhile: copy again")

    def _require_term(self, found: int | None) -> None:
        if found != self._term_id:
            raise LedgerError(f"{chunk_folder(self._shard)}: an older state was put back meanwhile: copy it elsewhere")

    async def _copy_snapshots(self) -> int:
        have = await self._to.snapshots()
        numbers = [each for each in await self._from.snapshots() if each <= self._last and each not in have]
        await self._copy(dict.fromkeys(snapshot_path(self._shard, number) for number in numbers), 1)
        return len(numbers)

    async def _copy(self, objects: Mapping[str, int | None], at_once: int, done: OnProgress | None = None) -> bool:
        """Copy objects (path → checksum, if a manifest has it), ``at_once`` at a time. Return whether all existed."""
        complete, paths = True, list(objects)
        for first in range(0, len(paths), at_once):
            some = paths[first : first + at_once]
            complete &= all(await asyncio.gather(*(self._copy_object(path, objects[path]) for path in some)))
            if done is not None:
                done(first + len(some), len(paths))
        return complete

    async def _copy_object(self, path: str, expected: int | None) -> bool:
        try:
            data = await self._from.store.read(path)
            sealed = verify if path.endswith(".snapshot") else verify_parquet
            sealed(data) if expected is None else check(data, expected)
        except ObjectMissingError:
            return False
        except ChecksumError as error:
            raise LedgerError(f"the source's {path} is damaged: {error}; put a good copy in its place") from None
        with contextlib.suppress(ObjectExistsError):
            await create_own(self._to.store, path, data)
        return True
