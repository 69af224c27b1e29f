"""The compacted ranges of a ledger's shards: publishing one, and deleting what others have replaced.

The rules are in drain.compaction.policy. Nothing here needs Spark.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Final

from drain.backlog.results import Result, newest_of_history
from drain.compaction.policy import ORPHAN_MAX_AGE_SECONDS, max_run_age_seconds, refusal, replaced
from drain.protocol import CountedLedger
from drain.spark.chunks import in_groups
from drain.spark.engines import RunError
from headgate.errors import LedgerError, ObjectExistsError, ObjectMissingError
from headgate.ledger import compacted
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger, if_exists
from headgate.ledger.objects import ChunkRange, compacted_through, ranges_to_read
from headgate.storage.object_store import Store

_RUN_FOLDER: Final = re.compile(r"(\d{12})-(\d{12})-(\d+)-[0-9a-f]+")


class PublishedRanges:
    def __init__(self, store: Store, delete_after_seconds: float, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._delete_after_seconds = delete_after_seconds
        self._now_ms = now_ms
        self._removed_at_ms: dict[int, dict[str, int]] = {}
        """Shard → object of a segment that was removed by its last sweep → when a sweep saw that first."""

    async def publish(self, manifest: compacted.Manifest, began_ms: int) -> compacted.Manifest:
        """Create the manifest of a run that began at ``began_ms``; return the one that counts.

        Raises StoreError, or RunError: the rules forbid it, and the folder is swept, like that of a run that died.
        """
        shard = manifest.shard
        if reason := await self._refusal(manifest, began_ms):
            raise RunError(f"chunks {manifest.range} are not compacted: {reason}")
        try:
            await compacted.create_manifest(self._store, manifest)
        except ObjectExistsError:
            # Another run was first, so this folder is an orphan.
            stored = await compacted.read_manifest(self._store, shard, manifest.range)
            await self._delete_folder(run_folder(manifest))
            return stored
        if reason := await self._missing(manifest):
            await self._store.delete(compacted.manifest_path(shard, manifest.range))
            raise RunError(f"the manifest of chunks {manifest.range} was withdrawn: {reason}")
        await self.delete_removed(manifest)
        return manifest

    async def delete_removed(self, manifest: compacted.Manifest) -> None:
        """Delete what leaders removed during the run. Only a count that began after the publication shows all of it."""
        if (existing := await self._counted_segments(manifest)) is not None:
            for item in manifest.objects:
                if (item.topic_id, item.segment) not in existing:
                    await self._store.delete(item.path)

    async def _counted_segments(self, manifest: compacted.Manifest) -> frozenset[tuple[int, int]] | None:
        """Return the segments that exist; None: the range is not counted."""
        counted = await newest_of_history(self._store, manifest.shard, CountedLedger(manifest.ledger_id, "this ledger"))
        return existing_segments(counted) if counted.watermark >= manifest.last else None

    async def _missing(self, manifest: compacted.Manifest) -> str | None:
        """Return which object of a run's manifest does not exist; None if all do."""
        missing = compacted.named_paths(manifest).keys() - set(await self._store.paths(run_folder(manifest)))
        return f"{min(missing)} was written by the run and is missing" if missing else None

    async def _refusal(self, manifest: compacted.Manifest, began_ms: int) -> str | None:
        """Return why a manifest cannot be published; None if it can (rules 1 to 3)."""
        if (ledger_id := await read_ledger_id(self._store, "this ledger") or "") != manifest.ledger_id:
            return (
                f"it is of the ledger {manifest.ledger_id or 'without an id'}, and {ledger_id or 'none'} is there now"
            )
        ranges = await compacted.manifest_ranges(self._store, manifest.shard)
        last = await if_exists(Ledger(self._store, manifest.shard).header, manifest.last)
        is_trimmed = last is None and manifest.last <= compacted_through(ranges_to_read(ranges))
        if not is_trimmed and (last is None or not last.is_of(manifest.last_at_ms, manifest.last_term_id)):
            return f"chunk {manifest.last} is missing or another one by now: an older ledger was put back"
        return await self._missing(manifest) or refusal(
            manifest.range,
            ranges,
            age_seconds=(self._now_ms() - began_ms) / 1000,
            max_age_seconds=max_run_age_seconds(self._delete_after_seconds),
        )

    async def sweep(self, shard: int) -> None:
        """Delete replaced ranges, objects of removed segments and folders that no manifest names, after their delays.

        Raises StoreError, or LedgerError: a range that replaces others is not intact, so nothing of them is deleted.
        """
        await self._sweep_ranges(shard)
        await self._sweep_orphans(shard)
        await self._sweep_removed(shard)

    async def _sweep_removed(self, shard: int) -> None:
        """Delete what leaders removed during a run whose process ended before `delete_removed`."""
        ranges = ranges_to_read(await compacted.manifest_ranges(self._store, shard))
        manifests = [await compacted.read_manifest(self._store, shard, each) for each in ranges]
        if not manifests or (existing := await self._counted_segments(manifests[-1])) is None:
            return
        present, now_ms = set(await self._store.paths(compacted.compacted_folder(shard))), self._now_ms()
        objects, seen = chain.from_iterable(each.objects for each in manifests), self._removed_at_ms.get(shard, {})
        removed = {each.path for each in objects if (each.topic_id, each.segment) not in existing} & present
        self._removed_at_ms[shard] = {path: seen.get(path, now_ms) for path in removed}
        for path, seen_at_ms in self._removed_at_ms[shard].items():
            if now_ms - seen_at_ms >= self._delete_after_seconds * 1000:
                await self._store.delete(path)

    async def _sweep_ranges(self, shard: int) -> None:
        intact: set[ChunkRange] = set()
        for each, covering in replaced(await compacted.manifest_ranges(self._store, shard)):
            manifests = [await compacted.read_manifest(self._store, shard, wider) for wider in covering]
            age_ms = self._now_ms() - max(manifest.written_at_ms for manifest in manifests)
            if age_ms < self._delete_after_seconds * 1000:
                continue
            for manifest in manifests:
                if manifest.range not in intact:
                    await self._require_intact(manifest)
                    intact.add(manifest.range)
            # The manifest first: its objects are then orphans, which this or a later sweep deletes.
            old = await compacted.read_manifest(self._store, shard, each)
            await self._store.delete(compacted.manifest_path(shard, each))
            await self._delete_folder(run_folder(old))

    async def _require_intact(self, manifest: compacted.Manifest) -> None:
        """Raise LedgerError unless everything that the manifest names of existing segments, if counted, can be read."""
        alive = await self._counted_segments(manifest)
        for path, expected in compacted.named_paths(manifest, alive).items():
            try:
                compacted.check_object(await self._store.read(path), path, expected)
            except ObjectMissingError as error:
                raise LedgerError(
                    f"{error}, and {compacted.manifest_path(manifest.shard, manifest.range)} names it: "
                    "the ranges that it replaces are kept"
                ) from error

    async def _sweep_orphans(self, shard: int) -> None:
        for name in await self._store.folders(compacted.compacted_folder(shard)):
            match = _RUN_FOLDER.fullmatch(name)
            if match is None or self._now_ms() - int(match[3]) < ORPHAN_MAX_AGE_SECONDS * 1000:
                continue
            try:
                manifest = await compacted.read_manifest(self._store, shard, ChunkRange(int(match[1]), int(match[2])))
            except ObjectMissingError:
                named = False
            else:
                named = run_folder(manifest) == f"{compacted.compacted_folder(shard)}/{name}"
            if not named and await self._is_elsewhere(shard, ChunkRange(int(match[1]), int(match[2]))):
                await self._delete_folder(f"{compacted.compacted_folder(shard)}/{name}")

    async def _is_elsewhere(self, shard: int, chunks: ChunkRange) -> bool:
        """Whether each chunk of a range exists, or belongs to a published range (rule 6)."""
        published = await compacted.manifest_ranges(self._store, shard)
        missing = {n for n in range(chunks.first, chunks.last + 1) if not any(a <= n <= b for a, b in published)}
        return all(exists for _, exists in await in_groups(missing, Ledger(self._store, shard).exists))

    async def _delete_folder(self, folder: str) -> None:
        for path in await self._store.paths(folder):
            await self._store.delete(path)


def run_folder(manifest: compacted.Manifest) -> str:
    return manifest.facts.rsplit("/", 1)[0]


def existing_segments(result: Result) -> frozenset[tuple[int, int]]:
    rows = (row for row in result.rows if row.subscription_id is None)
    return frozenset((row.topic_id, row.segment) for row in rows if row.segment is not None)
