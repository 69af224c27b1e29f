"""Compact old chunks into large objects, sorted by segment.

Spark's workers verify what they read, write into a folder of the run's own, and read the objects back. The run compares
them with the facts. Then one manifest with their checksums, created with put-if-absent, makes the
range visible. Of two concurrent runs one succeeds. Objects without a manifest and replaced ranges
are deleted after a delay for readers. drain.compaction.policy has the rules.

    headgate drain compact --ledger file:///var/lib/headgate/ledger [--shard 3 …]
        [--chunks 8192]
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from drain.backlog.aggregates import NO_ID, aggregate
from drain.backlog.counting import aggregate_chunks, encode_range_facts, read_range_facts
from drain.backlog.results import newest_of_ledger
from drain.command_line import add_ledger_options, add_spark_options, run_command, seconds, spark_session
from drain.compaction.object_writer import KEYS, RECORD_COLUMNS, write_objects
from drain.compaction.policy import PlannedCompaction, next_compaction
from drain.compaction.published_ranges import PublishedRanges, existing_segments
from drain.protocol import CountedLedger
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import RunError, run_errors
from drain.spark.object_reader import object_frame
from drain.spark.runner import SparkRunner
from headgate.errors import HeadgateError, LedgerError, ObjectMissingError
from headgate.ledger import compacted
from headgate.ledger.checksum import checksum
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import FANOUT, chunk_path, compacted_through, ranges_to_read
from headgate.settings.command_parser import CommandParser
from headgate.storage.object_store import Store, create_own, open_store

CHUNKS: Final = 8192
OBJECT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of keys, values and headers in one object: large enough that a request's latency is small beside its
transfer, small enough that a consumer can hold one per segment."""
MAX_TASKS: Final = 8
"""Tasks of a run that write objects: each has whole segments, and one object at a time in memory."""
_RECORDS: Final = pa.schema(
    [(name, pa.int64()) for name in ("topic_id", "segment", "offset", "timestamp_ms", "stored_at_ms", "size_bytes")]
    + [(name, pa.binary()) for name in ("key", "value")]
    + [("headers", pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()})))]
)
_FACTS_AND_RECORDS: Final = _RECORDS.append(pa.field("fact", pa.string()))


def only_segments(records: DataFrame, alive: DataFrame) -> DataFrame:
    """Return the records of the segments in ``alive`` (topic_id, segment), without pruned and deleted ones."""
    return records.join(f.broadcast(alive), ["topic_id", "segment"], "left_semi")


def sort_into_objects(records: DataFrame, *, tasks: int, object_bytes: int) -> DataFrame:
    """Return ``records`` with the column ``part``, sorted for writing.

    A part is one object. It ends with the record at which the running size of the segment passes
    the next multiple of ``object_bytes``. ``tasks`` run concurrently, each on whole segments. It takes one
    shuffle. Keys and values are copied as they are, without Python functions.
    """
    before = f.sum("size_bytes").over(
        Window.partitionBy("topic_id", "segment").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    part = f.floor(f.coalesce(before, f.lit(0)) / f.lit(object_bytes)).cast("long")
    return (
        records.repartition(tasks, "topic_id", "segment")
        .withColumn("part", part)
        .sortWithinPartitions(*KEYS, "offset")
        .select(*KEYS, *RECORD_COLUMNS)
    )


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    chunks: int = CHUNKS
    delay_seconds: float = 300.0
    """Minimum age of the youngest chunk: consumers at the tail have read it then."""
    delete_after_seconds: float = 6 * 3600.0
    """How long a replaced range is kept for its readers."""
    object_bytes: int = OBJECT_BYTES
    run_timeout_seconds: float = 3600.0
    fanout: int = FANOUT
    """Ranges of one level that become one of the next."""


class CompactionJob:
    """Compacts the shards of one ledger, one range at a time, on a session that may be shared."""

    def __init__(
        self, ledger_url: str, session: SparkSession, settings: CompactionSettings, *, now_ms: Callable[[], int]
    ) -> None:
        self.store: Store = open_store(ledger_url)
        parts = urlsplit(ledger_url)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._url = ledger_url
        self._session = session
        self._settings = settings
        self._now_ms = now_ms
        self.published = PublishedRanges(self.store, settings.delete_after_seconds, now_ms=now_ms)
        self.runner = SparkRunner(session, name="compaction", run_timeout_seconds=settings.run_timeout_seconds)

    async def run(self, shard: int) -> list[compacted.Manifest]:
        """Write every range of ``shard`` that is due, and sweep; return the new manifests.

        Raises:
            RunError: Spark failed, or its output differs from the facts. Nothing of the range is
                visible then.
            LedgerError: a chunk, manifest or result is damaged.
            StoreError: the store failed; the next run continues from what is stored.
        """
        written: list[compacted.Manifest] = []
        while (manifest := await self.compact_next(shard)) is not None:
            written.append(manifest)
        await self.published.sweep(shard)
        return written

    async def is_due(self, shard: int) -> bool:
        """Return whether enough chunks follow the last range. `run` merges ranges, too, once that is written.

        Raises like `run`.
        """
        last = compacted_through(ranges_to_read(await compacted.manifest_ranges(self.store, shard)))
        return await Ledger(self.store, shard).exists(last + self._settings.chunks)

    async def compact_next(self, shard: int) -> compacted.Manifest | None:
        """Write the next range that is due and return its manifest, or None. Raises like `run`."""
        began_ms = self._now_ms()
        ranges = ranges_to_read(await compacted.manifest_ranges(self.store, shard))
        covering = [await compacted.read_manifest(self.store, shard, each) for each in ranges]
        ledger = CountedLedger(await read_ledger_id(self.store, self._url) or "", self._url)
        result = await newest_of_ledger(self.store, shard, ledger)
        planned = next_compaction(
            [(manifest.range, manifest.level) for manifest in covering],
            watermark=result.watermark,
            chunks=self._settings.chunks,
            fanout=self._settings.fanout,
        )
        if planned is None:
            return None
        sources = [manifest for manifest in covering if manifest.range in planned.sources]
        last_at_ms = sources[-1].last_at_ms if sources else await self._stored_at_ms(shard, planned.range.last)
        if last_at_ms > began_ms - self._settings.delay_seconds * 1000:
            return None
        first, last = planned.range
        folder = f"{compacted.compacted_folder(shard)}/{first:012d}-{last:012d}-{began_ms}-{secrets.token_hex(4)}"
        facts = (
            aggregate(pa.concat_tables([await read_range_facts(self.store, source) for source in sources]))
            if sources
            else None
        )
        work = _CompactionWork(ledger.ledger_id, shard, planned, folder, sources, facts, existing_segments(result))
        return await self.published.publish(await self._written(work, last_at_ms), began_ms)

    async def _written(self, work: _CompactionWork, last_at_ms: int) -> compacted.Manifest:
        """Write everything of the range but its manifest, which is returned; raises like `run`."""
        planned = work.planned
        written = await self.runner.run(lambda _: self._write(work))
        _check_record_counts(work, written)
        facts_path = f"{work.folder}/facts.parquet"
        facts_data = encode_range_facts(written.facts)
        await create_own(self.store, facts_path, facts_data)
        return compacted.Manifest(
            ledger_id=work.ledger_id,
            shard=work.shard,
            first=planned.range.first,
            last=planned.range.last,
            level=planned.level,
            written_at_ms=self._now_ms(),
            last_at_ms=last_at_ms,
            facts=facts_path,
            facts_checksum=checksum(facts_data),
            objects=written.objects,
        )

    async def _stored_at_ms(self, shard: int, number: int) -> int:
        try:
            return (await Ledger(self.store, shard).header(number)).at_ms
        except ObjectMissingError as error:
            raise LedgerError(f"the chunk is counted, not compacted, and missing: {error}") from error

    def _write(self, work: _CompactionWork) -> _Written:
        with run_errors(f"chunks {work.planned.range}: ", doing="compact"):
            laid_out = sort_into_objects(
                self.records(work),
                tasks=max(1, min(len(work.alive), MAX_TASKS)),
                object_bytes=self._settings.object_bytes,
            )
            rows = write_objects(laid_out, self._url, work.folder).collect() if work.alive else []
            facts = work.facts
            if facts is None:
                facts = aggregate_chunks(self._session, self._url, {work.shard: work.numbers()})
        if self._folder is not None and rows:
            _make_durable(self._folder / work.folder)
        objects = (
            compacted.CompactedObject(**{name: row[name] for name in compacted.CompactedObject.__struct_fields__})
            for row in sorted(rows, key=lambda row: (row["topic_id"], row["segment"], row["part"]))
        )
        return _Written(list(objects), facts)

    def records(self, work: _CompactionWork) -> DataFrame:
        alive = self._session.createDataFrame(work.alive, "topic_id long, segment long")
        if work.sources:
            objects = {item.path: item.checksum for item in work.source_objects()}
            stored = object_frame(self._session, self._url, objects, _RECORDS)
        else:
            paths = [chunk_path(work.shard, number) for number in work.numbers()]
            chunks = object_frame(self._session, self._url, dict.fromkeys(paths), _FACTS_AND_RECORDS)
            stored = chunks.where("fact = 'record'").drop("fact")
        return only_segments(stored, alive)


@dataclass(frozen=True, slots=True)
class _CompactionWork:
    ledger_id: str
    shard: int
    planned: PlannedCompaction
    folder: str
    sources: Sequence[compacted.Manifest]
    facts: pa.Table | None
    alive: list[tuple[int, int]]

    def numbers(self) -> range:
        return range(self.planned.range.first, self.planned.range.last + 1)

    def source_objects(self) -> list[compacted.CompactedObject]:
        """Return the objects of narrower ranges whose segments still exist."""
        alive = set(self.alive)
        return [item for source in self.sources for item in source.objects if (item.topic_id, item.segment) in alive]


@dataclass(frozen=True, slots=True)
class _Written:
    objects: list[compacted.CompactedObject]
    """Sorted by topic, segment and offset."""
    facts: pa.Table


def _check_record_counts(work: _CompactionWork, written: _Written) -> None:
    """Raise RunError unless every existing segment has as many written records as its facts say."""
    expected: Counter[tuple[int, int]] = Counter()
    for row in written.facts.to_pylist():
        if row["subscription_id"] == NO_ID and row["kind"] >= 0:
            expected[row["topic_id"], row["segment"]] += row["records"]
    found: Counter[tuple[int, int]] = Counter()
    for item in written.objects:
        found[item.topic_id, item.segment] += item.end_offset - item.first_offset
    for key in work.alive:
        if expected[key] != found[key]:
            raise RunError(
                f"chunks {work.planned.range}: topic {key[0]}, segment {key[1]} has "
                f"{expected[key]} records, but {found[key]} were written"
            )


def _make_durable(folder: Path) -> None:
    """Flush everything below ``folder`` to the disk."""
    for directory, _, names in os.walk(folder, topdown=False):
        for name in names:
            with Path(directory, name).open("rb") as file:
                os.fsync(file.fileno())
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
                print(f"error: shard {shard}: {error}", file=sys.stderr)  # noqa: T201
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
