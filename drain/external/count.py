"""Count the tables of external topics: list their files, read the new ones on Spark, and add up what is known.

Records come from the table of entries, everything else from the ledger; mapped acknowledgements from both. Results
contain the ledger only, so this count is not published.

1. A count belongs to one version of each table. If a file is gone when it is read, the count begins again.
2. New files are read in several runs, so that a large table needs no long one. Quick runs are followed by larger
   ones, and a run that fails by smaller ones.
3. A count uses a listing that began after it was asked for: an older one may have rows that were deleted since, as in a
   seek. A count stops waiting for one that takes too long, whose duration tells how long the next one may take.
4. A table of acknowledgements is the source of truth: its rows count at the current seek generation, so a seek has to
   be done in the table.
5. With opaque positions, the entries after the stored checkpoints are counted. Where files overlap, or a checkpoint
   is in the middle of one, Spark reads these files again for the distinct entries, and the result is remembered.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from drain.backlog.merge import StateRow, merge_rows, previous_rows
from drain.external import known_files as known
from drain.external.backlog import CheckpointKey, RemainingEntries, checkpoint_keys, offset_backlog, opaque_backlog
from drain.external.file_facts import facts_frame, rows_frame
from drain.external.file_reader import GONE, Columns, DataFile, sortable
from drain.external.known_files import FilesGoneError, KnownFiles, Range, TableError
from drain.external.table_files import Manifests, table_files
from drain.protocol import Backlog
from drain.spark.engines import RunError, run_errors
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from headgate.errors import HeadgateError

RUN_BYTES: Final = 16 * 1024 * 1024
"""The size of the files in the first run. Ten million rows of four columns take some 50 MB as Parquet."""
QUICK_SECONDS: Final = 5.0
"""After a faster run, the next one reads twice as much."""
LEAST_BYTES: Final = 32 * 1024
"""A smaller file counts as one of this size."""
LISTING_SECONDS: Final = 10.0
"""A count waits for its listing so long, or twice as long as the last one took."""
ATTEMPTS: Final = 3
"""Counts of a table whose files disappear meanwhile."""

T = TypeVar("T")
Table = EntriesTable | AcknowledgementsTable
TopicKey = tuple[int, int]
"""(shard, topic id). An id is never used again, and the process counts one ledger."""
Run = Callable[[Callable[[SparkSession], pa.Table]], Awaitable[pa.Table]]
"""Runs on the session; raises RunError or JvmGoneError."""

_COUNTED: Final = """
    SELECT number, count(*) AS rows, count(size_bytes) AS sized, sum(size_bytes) AS size_bytes, min(at_ms) AS at_ms
    FROM (SELECT number, order, max(size_bytes) AS size_bytes, min(at_ms) AS at_ms
          FROM {rows} AS rows JOIN {wanted} AS wanted
          ON rows.label = wanted.label AND order >= low AND order > after AND order <= high
          GROUP BY number, order)
    GROUP BY number
"""


class TableCounter:
    """Counts external topics, each one once at a time."""

    def __init__(self, run: Run) -> None:
        self._run_now = run
        self._one_run = asyncio.Lock()
        self._topics: dict[TopicKey, _Topic] = {}
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="table-listing")

    async def count(
        self, tables: ExternalTables, view: ExternalView, rows: Sequence[StateRow], shard: int
    ) -> tuple[Backlog, ...]:
        """Return the backlog of one topic; ``rows``: its rows of the ledger's result, at least one.

        Raises:
            TableError: a table is invalid; names it, the file, and what to do.
            RunError: Spark failed or was cancelled.
            JvmGoneError: the JVM is gone.
        """
        key = shard, rows[0].topic_id
        topic = self._topics.get(key)
        if topic is None or topic.tables != tables:
            topic = self._topics[key] = _Topic(tables, self._run, self._threads)
        count = topic.opaque if view.opaque else topic.offsets
        async with topic.lock:
            for _ in range(ATTEMPTS - 1):
                with suppress(FilesGoneError):
                    return await count(view, rows)
            return await count(view, rows)

    async def _run(self, work: Callable[[SparkSession], pa.Table]) -> pa.Table:
        async with self._one_run:  # Other runs get their turn on the session in between.
            return await self._run_now(work)

    def forget(self, topic: TopicKey) -> None:
        """Forget the files of a topic that was deleted."""
        self._topics.pop(topic, None)


@dataclass
class _Topic:
    tables: ExternalTables
    run: Run
    threads: ThreadPoolExecutor
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: dict[Table, KnownFiles] = field(default_factory=dict)
    run_bytes: int = field(default_factory=lambda: RUN_BYTES)
    listings: dict[Table, asyncio.Future[list[DataFile]]] = field(default_factory=dict)
    """The last one of each table. Only the count that began it uses it."""
    listing_seconds: dict[Table, float] = field(default_factory=dict)
    manifests: dict[Table, Manifests] = field(default_factory=dict)
    ranges: dict[Range, RemainingEntries] = field(default_factory=dict)
    """Those that the last count needed."""

    async def offsets(self, view: ExternalView, rows: Sequence[StateRow]) -> tuple[Backlog, ...]:
        topic_id, entries, acknowledgements = rows[0].topic_id, self.tables.entries, self.tables.acknowledgements
        sealed = {row.segment: row.sealed_end_offset for row in rows if row.subscription_id is None}
        segments = {label: number for number, label in view.labels.items()}
        ends = {label: sealed.get(number) for label, number in segments.items()}
        merged = previous_rows(rows)
        if entries is not None:
            merged += known.entry_rows(await self._read(entries, view, ends), segments, topic_id)
        if acknowledgements is not None:
            generations = {f"{row.subscription_id}": row.seek_generation for row in rows if row.segment is None}
            files = await self._read(acknowledgements, view, ends)
            merged += known.range_rows(files, segments, generations, topic_id)
        return offset_backlog(merge_rows(merged), entries)

    async def opaque(self, view: ExternalView, rows: Sequence[StateRow]) -> tuple[Backlog, ...]:
        if self.tables.acknowledgements is not None:
            with _errors_of(self.tables.acknowledgements, view):
                raise TableError(
                    "its positions are opaque, so a table of acknowledgements cannot be counted; remove it, and the "
                    "acknowledgements sent to headgate count"
                )
        entries, found = self.tables.entries, dict[CheckpointKey, RemainingEntries]()
        if entries is not None:
            files = await self._read(entries, view, dict.fromkeys(view.labels.values()), opaque=True)
            with _errors_of(entries, view):
                found = await self._remaining(entries, files, view)
        return opaque_backlog(rows, view.checkpoints, found)

    async def _read(
        self, table: Table, view: ExternalView, ends: Mapping[str, int | None], *, opaque: bool = False
    ) -> KnownFiles:
        with _errors_of(table, view):
            columns, files = _columns(table, opaque=opaque), self.known.setdefault(table, KnownFiles())
            new = files.keep(await self._listed(table, columns))
            while new:
                part, new = split_run(new, [file.size_bytes for file in new], self.run_bytes)
                plan = partial(facts_frame, files=part, columns=columns, first=files.next_number)
                files.add(part, await self._timed(plan))
            files.check(ends)
        return files

    async def _timed(self, plan: Callable[[SparkSession], DataFrame]) -> pa.Table:
        """Return the rows of ``plan``, and adapt `run_bytes` to how long that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await self.run(partial(_collected, plan))
        except RunError:
            self.run_bytes = max(LEAST_BYTES, self.run_bytes // 4)
            raise
        self.run_bytes *= 2 if loop.time() - began < QUICK_SECONDS else 1
        return found

    async def _listed(self, table: Table, columns: Columns) -> list[DataFile]:
        """Return the files of ``table``, from a listing that begins now."""
        seconds, last = self.listing_seconds.get(table, LISTING_SECONDS), self.listings.get(table)
        if last is None or last.done():
            names = [column for _, column in columns.mapped]
            last = asyncio.get_running_loop().run_in_executor(self.threads, self._list, table, names)
            last.add_done_callback(asyncio.Future.exception)  # Perhaps no count waits for it any more.
            self.listings[table] = last
            await asyncio.wait({last}, timeout=seconds)
            if last.done():
                return self.listings.pop(table).result()
        raise TableError(f"its files were not listed within {seconds:g} s, and are still being listed")

    def _list(self, table: Table, columns: Sequence[str]) -> list[DataFile]:
        began = time.monotonic()
        try:
            return table_files(table, columns, self.manifests.setdefault(table, {}))
        finally:
            self.listing_seconds[table] = max(LISTING_SECONDS, 2 * (time.monotonic() - began))

    async def _remaining(
        self, table: EntriesTable, files: KnownFiles, view: ExternalView
    ) -> dict[CheckpointKey, RemainingEntries]:
        """Return the entries after each checkpoint that is found in the table."""
        of_label = known.spans(files)
        counted: dict[Range, RemainingEntries] = {}
        wanted: dict[CheckpointKey, list[Range]] = {}
        for key, order in _orders(view).items():
            mine = of_label.get(view.labels[key[0]], [])
            counted |= {span.whole: span.counted for span in mine if span.counted is not None}
            wanted[key] = [found for span in mine if (found := span.after(order)) is not None]
        needed = {each for ranges in wanted.values() for each in ranges} - counted.keys()
        self.ranges = {each: found for each, found in self.ranges.items() if each in needed}
        new = sorted(needed - self.ranges.keys(), key=lambda each: (each.paths(), each[:4]))
        while new:
            # Ranges of the same files are counted together.
            before = [frozenset[DataFile](), *(each.files for each in new)]
            sizes = [
                sum(file.size_bytes for file in each.files - last) for last, each in zip(before, new, strict=False)
            ]
            part, new = split_run(new, sizes, self.run_bytes)
            read = {file for each in part for file in each.files}
            rows = await self._timed(partial(_counted, table, part, read))
            self.ranges |= dict.fromkeys(part, RemainingEntries(0, 0))
            self.ranges |= {part[row["number"]]: known.remaining(row) for row in rows.to_pylist()}
        counted |= self.ranges
        totals = {key: known.total(counted[each] for each in ranges) for key, ranges in wanted.items()}
        return totals if table.size_bytes else {key: replace(each, size_bytes=None) for key, each in totals.items()}


def _orders(view: ExternalView) -> dict[CheckpointKey, str]:
    """Return the checkpoints that are whole numbers, with their orders; "" for a segment's beginning."""
    return {
        key: "" if key[1] is None else sortable(key[1])
        for key in checkpoint_keys(view)
        if key[1] is None or (key[1].isascii() and key[1].isdecimal())
    }


def _counted(
    table: EntriesTable, wanted: Sequence[Range], files: Iterable[DataFile], session: SparkSession
) -> DataFrame:
    """Return the distinct entries of ``files`` in each of ``wanted``, by its number."""
    given: dict[str, Any] = {
        name: [getattr(each, name) for each in wanted] for name in ("label", "low", "high", "after")
    }
    # Of several batches Spark (seen with 4.3) takes the first empty one for the last, and silently drops the rest.
    numbered = session.createDataFrame(pa.table(given | {"number": range(len(wanted))}).combine_chunks())
    rows = rows_frame(session, sorted(files, key=lambda file: (file.path, file.piece)), _columns(table, opaque=True))
    return session.sql(_COUNTED, rows=rows, wanted=f.broadcast(numbered))


def _collected(plan: Callable[[SparkSession], DataFrame], session: SparkSession) -> pa.Table:
    with run_errors():
        return plan(session).toArrow()


def split_run(items: list[T], sizes: Iterable[int], run_bytes: int) -> tuple[list[T], list[T]]:
    """Return those of ``items`` that the next run reads, and the others. Pure."""
    ends = list(accumulate(max(LEAST_BYTES, size) for size in sizes))
    count = max(1, bisect_right(ends, run_bytes))
    return items[:count], items[count:]


def _columns(table: Table, *, opaque: bool = False) -> Columns:
    mapped: dict[str, str | None] = {"label": table.segment}
    if isinstance(table, AcknowledgementsTable):
        facts = "ranges"
        mapped |= {"name": table.subscription_id, "first": table.first_offset, "end": table.end_offset}
    else:
        facts = "positions" if opaque else "entries"
        mapped |= {"size_bytes": table.size_bytes, "at_ms": table.timestamp}
        mapped["order" if opaque else "first"] = table.offset
    form = table.format if table.format in {"csv", "json"} else "parquet"
    return Columns(form, facts, tuple((name, column) for name, column in mapped.items() if column is not None))


@contextmanager
def _errors_of(table: Table, view: ExternalView) -> Iterator[None]:
    kind = "entries" if isinstance(table, EntriesTable) else "acknowledgements"
    try:
        yield
    except HeadgateError as error:
        text = f"external.{view.topic}.{kind} ({table.path}): {error}"
        if isinstance(error, FilesGoneError) or GONE in str(error):
            raise FilesGoneError(text) from error
        if isinstance(error, RunError):
            raise RunError(text) from error
        raise TableError(text) from error
