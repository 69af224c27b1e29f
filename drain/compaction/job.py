"""Compact old chunks into large objects, sorted by segment.

Spark's workers verify what they read, write into a folder of the run's own, and read the objects back
(drain.compaction.object_writer). The run compares them with the facts. Then one manifest with their checksums, created
with put-if-absent, makes the range visible. Of two concurrent runs one succeeds. Objects without a manifest and
replaced ranges are deleted after a delay for readers. drain.compaction.policy has the rules.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from drain.backlog.aggregates import NO_ID, SCHEMA, aggregate
from drain.backlog.counting import encode_range_facts, read_range_facts
from drain.backlog.results import newest_of_history
from drain.command_line import add_ledger_options, add_spark_options, run_command, seconds, spark_session
from drain.compaction.object_writer import WRITTEN, write_compacted
from drain.compaction.policy import WIDEST, PlannedCompaction, next_compactions
from drain.compaction.published_ranges import PublishedRanges, existing_segments
from drain.protocol import CountedLedger
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import RunError, run_errors
from drain.spark.object_reader import read_in_tasks, read_objects
from drain.spark.runner import SparkRunner
from headgate.errors import HeadgateError
from headgate.ledger import compacted
from headgate.ledger.checksum import checksum
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger, if_exists
from headgate.ledger.objects import FANOUT, ChunkRange, chunk_path, compacted_through, ranges_to_read
from headgate.settings.command_parser import CommandParser, error_line
from headgate.storage.object_store import Store, create_own, open_store

CHUNKS: Final = 8192
OBJECT_BYTES: Final = 16 * 1024 * 1024
"""Of keys, values and headers: much longer to transfer than to ask for, and a consumer can hold one per segment."""
MAX_TASKS: Final = 8
TASK_BYTES: Final = 64 * 1024 * 1024
"""Less is not worth another task: each task writes its own objects of each segment that it finds."""
SAMPLES: Final = 8
"""Chunks whose size tells that of a range."""
_Objects = list[tuple[str, int | None]]
"""Path and checksum, as drain.spark.object_reader wants them."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    chunks: int = CHUNKS
    delay_seconds: float = 300.0
    """Minimum age of the youngest chunk: consumers at the tail have read it then."""
    delete_after_seconds: float = 6 * 3600.0
    """How long a replaced range is kept for its readers."""
    object_bytes: int = OBJECT_BYTES
    run_timeout_seconds: float = 3600.0
    widest: int = WIDEST
    fanout: int = FANOUT


class CompactionJob:
    """Compacts the shards of one ledger, one range at a time, on a session that may be shared."""

    def __init__(
        self, ledger_url: str, session: SparkSession, settings: CompactionSettings, *, now_ms: Callable[[], int]
    ) -> None:
        self.store: Store = open_store(ledger_url)
        self._url = ledger_url
        self._session = session
        self._settings = settings
        self._now_ms = now_ms
        self.published = PublishedRanges(self.store, settings.delete_after_seconds, now_ms=now_ms)
        self.runner = SparkRunner(session, name="compaction", run_timeout_seconds=settings.run_timeout_seconds)
        self._failed: dict[int, tuple[int, int]] = {}
        """Shard → the last chunk of a range that failed, and how wide those before it may be now."""
        self._failed_merges: set[int] = set()
        """The shards whose last merge failed."""

    async def run(self, shard: int) -> list[compacted.Manifest]:
        """Write every range of ``shard`` that is due, and sweep; return the new manifests.

        Raises RunError (Spark failed, or its output differs from the facts: nothing of the range is visible then),
        LedgerError (a chunk, manifest or result is damaged) or StoreError: the next run continues from what is stored.
        """
        written: list[compacted.Manifest] = []
        while (manifest := await self.compact_next(shard)) is not None:
            written.append(manifest)
        await self.published.sweep(shard)
        return written

    async def due_through(self, shard: int) -> int:
        """Return the last chunk of the next full range, perhaps too young for `run`; 0: none. Raises like `run`."""
        last = compacted_through(ranges_to_read(await compacted.manifest_ranges(self.store, shard)))
        last += self._settings.chunks
        return last if await Ledger(self.store, shard).exists(last) else 0

    async def compact_next(self, shard: int) -> compacted.Manifest | None:
        """Write the next range that is due and return its manifest, or None. Raises like `run`."""
        began_ms = self._now_ms()
        ranges = ranges_to_read(await compacted.manifest_ranges(self.store, shard))
        covering = [await compacted.read_manifest(self.store, shard, each) for each in ranges]
        ledger = CountedLedger(await read_ledger_id(self.store, self._url) or "", self._url)
        result = await newest_of_history(self.store, shard, ledger)
        failed, widest = self._failed.get(shard, (0, 1))
        for planned in next_compactions(
            [(manifest.range, manifest.level) for manifest in covering],
            watermark=result.watermark,
            chunks=self._settings.chunks,
            widest=widest if compacted_through(ranges) < failed else self._settings.widest,
            fanout=self._settings.fanout,
            merges_last=shard in self._failed_merges,
        ):
            sources = [manifest for manifest in covering if manifest.range in planned.sources]
            last_at_ms, last_term_id = await self._end(shard, planned, sources)
            # A chunk that is ahead by more was written by a clock that was wrong, so its age is unknown.
            is_old = abs(began_ms - last_at_ms) >= self._settings.delay_seconds * 1000
            # One task suffices for less than this.
            if is_old and (planned.is_narrowest or await self._size_bytes(shard, planned.range) < 2 * TASK_BYTES):
                break
        else:
            return None
        first, last = planned.range
        folder = f"{compacted.compacted_folder(shard)}/{first:012d}-{last:012d}-{began_ms}-{secrets.token_hex(4)}"
        try:
            tables = [await read_range_facts(self.store, source) for source in sources]
            facts = aggregate(pa.concat_tables(tables)) if sources else None
            work = _CompactionWork(ledger.ledger_id, shard, planned, folder, sources, facts, existing_segments(result))
            written = await self.published.publish(await self._written(work, last_at_ms, last_term_id), began_ms)
        except HeadgateError:
            # It took too long, or something in it is damaged, which must not keep the others from being compacted.
            if sources:
                self._failed_merges.add(shard)
            else:
                self._failed[shard] = max(failed, last), max(1, (last - first + 1) // self._settings.chunks // 2)
            raise
        if sources:
            self._failed_merges.discard(shard)
        return written

    async def _end(
        self, shard: int, planned: PlannedCompaction, sources: Sequence[compacted.Manifest]
    ) -> tuple[int, int]:
        """Return time and term id of the last chunk."""
        if sources:
            return sources[-1].last_at_ms, sources[-1].last_term_id
        header = await Ledger(self.store, shard).header(planned.range.last)
        return header.at_ms, header.term_id

    async def _written(self, work: _CompactionWork, last_at_ms: int, last_term_id: int) -> compacted.Manifest:
        """Write everything of the range but its manifest, which is returned; raises like `run`."""
        planned = work.planned
        if work.sources:
            inputs, size_bytes = work.merged_objects()
        else:
            inputs = [[(path, None)] for path in _chunk_paths(work.shard, planned.range)]
            size_bytes = await self._size_bytes(work.shard, planned.range)
        objects, facts = await self.runner.run(lambda _: self._write(work, inputs, size_bytes))
        _check_record_counts(work, objects, facts)
        paths = {PurePath(item.path) for item in objects}
        for path in paths.union(*(each.parents for each in paths)):
            await self.store.make_durable(str(path))
        facts_path = f"{work.folder}/facts.parquet"
        facts_data = encode_range_facts(facts)
        await create_own(self.store, facts_path, facts_data)
        return compacted.Manifest(
            ledger_id=work.ledger_id,
            shard=work.shard,
            first=planned.range.first,
            last=planned.range.last,
            level=planned.level,
            written_at_ms=self._now_ms(),
            last_at_ms=last_at_ms,
            last_term_id=last_term_id,
            facts=facts_path,
            facts_checksum=checksum(facts_data),
            objects=objects,
        )

    async def _size_bytes(self, shard: int, chunks: ChunkRange) -> int:
        """Return about how many bytes ``chunks`` have."""
        paths = _chunk_paths(shard, chunks)
        sampled = paths[:: -(-len(paths) // SAMPLES)]
        # The task reports a missing one.
        sizes = [len(await if_exists(self.store.read, path) or b"") for path in sampled]
        return sum(sizes) * len(paths) // len(sampled)

    def _write(
        self, work: _CompactionWork, inputs: list[_Objects], size_bytes: int
    ) -> tuple[list[compacted.CompactedObject], pa.Table]:
        """Write what ``inputs`` contain; return the objects in order, and the facts of the range."""
        object_bytes = self._settings.object_bytes
        write = partial(write_compacted, self._url, work.folder, alive=work.alive, object_bytes=object_bytes)
        tasks = max(1, min(MAX_TASKS, size_bytes // TASK_BYTES))
        sent = [each.__module__ for each in (write_compacted, read_objects, aggregate, checksum)]
        with run_errors(f"chunks {work.planned.range}: ", doing="compact"):
            found = read_in_tasks(self._session, inputs, tasks, write, WRITTEN, sent).toArrow()
        is_object = pc.is_valid(found["path"])
        rows = found.filter(is_object).select(compacted.CompactedObject.__struct_fields__).to_pylist()
        objects = sorted((compacted.CompactedObject(**row) for row in rows), key=_place)
        facts = aggregate(found.filter(pc.invert(is_object)).select(SCHEMA.names)) if work.facts is None else work.facts
        return objects, facts


def _chunk_paths(shard: int, chunks: ChunkRange) -> list[str]:
    return [chunk_path(shard, number) for number in range(chunks.first, chunks.last + 1)]


def _place(item: compacted.CompactedObject) -> tuple[int, int, int]:
    return item.topic_id, item.segment, item.first_offset


@dataclass(frozen=True, slots=True)
class _CompactionWork:
    ledger_id: str
    shard: int
    planned: PlannedCompaction
    folder: str
    sources: Sequence[compacted.Manifest]
    facts: pa.Table | None
    alive: frozenset[tuple[int, int]]

    def merged_objects(self) -> tuple[list[_Objects], int]:
        """Return the objects of the narrower ranges, of each segment that still exists, and their bytes."""
        items = [item for each in self.sources for item in each.objects if _place(item)[:2] in self.alive]
        by_segment = groupby(sorted(items, key=_place), key=lambda item: _place(item)[:2])
        inputs: list[_Objects] = [[(item.path, item.checksum) for item in each] for _, each in by_segment]
        return inputs, sum(item.size_bytes for item in items)


def _check_record_counts(work: _CompactionWork, objects: Sequence[compacted.CompactedObject], facts: pa.Table) -> None:
    """Raise RunError unless every existing segment has as many written records as its facts say."""
    expected: Counter[tuple[int, int]] = Counter()
    for row in facts.to_pylist():
        if row["subscription_id"] == NO_ID and row["kind"] >= 0:
            expected[row["topic_id"], row["segment"]] += row["records"]
    found: Counter[tuple[int, int]] = Counter()
    for item in objects:
        found[item.topic_id, item.segment] += item.end_offset - item.first_offset
    for key in work.alive:
        if expected[key] != found[key]:
            raise RunError(
                f"chunks {work.planned.range}: topic {key[0]}, segment {key[1]} has "
                f"{expected[key]} records, but {found[key]} were written"
            )


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def add_compaction_options(parser: argparse.ArgumentParser, prefix: str = "", *, default_chunks: int = CHUNKS) -> None:
    """Add the options of `parsed_settings`, whose names begin with ``prefix``."""
    default = CompactionSettings(default_chunks)
    none = "" if default_chunks else "; 0: compact nothing"
    options: list[tuple[str, Callable[[str], float], float, str]] = [
        ("chunks", int, default.chunks, f"chunks to compact into one range{none}"),
        ("delay-seconds", seconds, default.delay_seconds, "minimum age of a compacted chunk"),
        ("delete-after-seconds", seconds, default.delete_after_seconds, "how long replaced ranges are kept"),
    ]
    for name, kind, value, text in options:
        destination, described = name.replace("-", "_"), f"{text} (default: %(default)s)"
        parser.add_argument(f"--{prefix}{name}", dest=destination, type=kind, default=value, help=described)


def parsed_settings(arguments: argparse.Namespace) -> CompactionSettings:
    return CompactionSettings(arguments.chunks, arguments.delay_seconds, arguments.delete_after_seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Compact every range that is due. 0: done; 1: a shard failed; 2: invalid setting."""
    parser = CommandParser(
        "headgate drain compact",
        "Compact the old chunks of a ledger into large objects.",
        "--ledger file:///var/lib/headgate/ledger",
    )
    add_ledger_options(parser)
    add_compaction_options(parser)
    add_spark_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.chunks < 1:
        parser.error(f"--chunks {arguments.chunks}: must be at least 1")
    return run_command(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    shards = arguments.shard or await LedgerChunks(arguments.ledger).shards()
    settings = parsed_settings(arguments)
    code = 0
    async with spark_session(arguments) as session:
        compaction_job = CompactionJob(arguments.ledger, session, settings, now_ms=wall_clock_ms)
        for shard in shards:
            try:
                for manifest in await compaction_job.run(shard):
                    print(summary_line(manifest))  # noqa: T201 - a command prints to its terminal
            except HeadgateError as error:
                print(error_line(f"shard {shard}: {error}", 1, as_json=False), file=sys.stderr)  # noqa: T201
                code = 1
        compaction_job.runner.close()
    return code


def summary_line(manifest: compacted.Manifest) -> str:
    """Return one line about a written range, for the log."""
    records = sum(item.end_offset - item.first_offset for item in manifest.objects)
    size = sum(item.size_bytes for item in manifest.objects)
    return (
        f"shard {manifest.shard}: chunks {manifest.first} to {manifest.last} compacted at level {manifest.level}: "
        f"{records} records, {size} bytes in {len(manifest.objects)} objects"
    )


if __name__ == "__main__":
    sys.exit(main())
