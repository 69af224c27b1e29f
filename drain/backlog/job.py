"""Bring the published results up to date.

A run counts the chunks after each shard's last watermark, merges them with the last result, and
publishes the new one. A killed run leaves the previous result. Of two concurrent runs, one
publishes and the other reads that result. Damage fails only its own shard, with the object's name.

    headgate drain job --ledger file:///var/lib/headgate/ledger [--out URL] [--shard 3 …]
        [--full] [--json]

``--full`` counts from the first chunk, with Spark reading every chunk; the exit code is 1 if the
published result differs. ``--out`` publishes elsewhere than beside the ledger. Of external topics
only the ledger's part is counted. Under `spark-submit`, Spark's own master is used.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from drain.backlog.aggregates import merged_row
from drain.backlog.compacted_facts import read_compacted_facts
from drain.backlog.counting import ChunkBatch, JvmGoneError, RunError, aggregate_chunks
from drain.backlog.job_size import FIRST_CHUNKS, next_chunks
from drain.backlog.merge import MergedRow, merge_rows, outstanding, previous_rows
from drain.backlog.results import Result, newest_result, publish_result, read_result, result_path, watermarks
from drain.command_line import add_ledger_options, add_spark_options, run_command, spark_session
from drain.spark.chunks import LedgerChunks
from drain.spark.small_chunk_reader import SMALL_READ_MAX_ROWS
from headgate.command_parser import CommandParser
from headgate.errors import HeadgateError, LedgerError, ObjectMissingError, StoreError
from headgate.storage.object_store import Store, open_store

MAX_CHUNKS_PER_JOB: Final = 4000
"""Most chunks counted in one Spark job (drain.backlog.job_size decides how many). This bounds the file list
and the ranges in one task. 4000 small files take about 4 s, far above a job's fixed cost."""

Count = Callable[[Sequence[ChunkBatch]], Awaitable[Mapping[int, list[MergedRow]]]]
"""Aggregates chunks (drain.backlog.counting.aggregate_chunks); raises RunError."""


@dataclass(slots=True)
class RunOutcome:
    results: dict[int, Result] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    """Shard → the object and the reason; its previous result remains."""
    chunks: int = 0
    """Number of new chunks that were counted."""


@dataclass(slots=True)
class _Progress:
    result: Result
    numbers: range


def count_on(session: SparkSession, chunks: LedgerChunks) -> Count:
    """Return a `Count` that aggregates on ``session``, in a thread."""

    async def count(batches: Sequence[ChunkBatch]) -> Mapping[int, list[MergedRow]]:
        return await asyncio.to_thread(aggregate_chunks, session, chunks.source, batches)

    return count


class BacklogJob:
    """Runs over one ledger, one at a time."""

    def __init__(
        self,
        chunks: LedgerChunks,
        count: Count,
        *,
        results: Store | None = None,
        max_chunks_per_job: int = MAX_CHUNKS_PER_JOB,
    ) -> None:
        """``results``: where results are read and published; None: beside the ledger."""
        self._chunks = chunks
        self._count = count
        self._results = results or chunks.store
        self._max_chunks_per_job = max_chunks_per_job
        self._chunks_per_job = min(FIRST_CHUNKS, max_chunks_per_job)
        self._last: dict[int, Result] = {}

    async def run(
        self,
        shards: Sequence[int],
        *,
        full: bool = False,
        up_to: Mapping[int, int] | None = None,
    ) -> RunOutcome:
        """Count the new chunks of ``shards`` and publish; with ``full`` count every chunk and publish nothing.

        ``up_to``: shard → the last chunk to count; other shards are counted to their end.

        Raises:
            JvmGoneError: the JVM is gone. Every other error is in the outcome, under its shard.

        """
        outcome = RunOutcome()
        progress_by_shard: dict[int, _Progress] = {}
        for shard in dict.fromkeys(shards):
            try:
                result = Result(shard, 0, ()) if full else await self._newest_result(shard)
                if not result.watermark:
                    result = await self._from_compacted(shard, publish=not full)
                numbers = await self._chunks.newer_than(shard, result.watermark)
                if up_to is not None and shard in up_to:
                    numbers = range(numbers.start, min(numbers.stop, up_to[shard] + 1))
                progress_by_shard[shard] = _Progress(result, numbers)
                outcome.results[shard] = result
            except HeadgateError as error:
                outcome.failures[shard] = str(error)
        while due := self._next_chunks(progress_by_shard):
            await self._count_batch(due, progress_by_shard, outcome, publish=not full)
        return outcome

    async def _from_compacted(self, shard: int, *, publish: bool) -> Result:
        """Return the result of the compacted chunks, which may be deleted; an empty one if there are none."""
        compacted = await read_compacted_facts(self._chunks.store, shard)
        if compacted is None:
            return Result(shard, 0, ())
        rows = merge_rows(merged_row(row) for row in compacted.table.to_pylist())
        result = Result(shard, compacted.last, rows, compacted.last_at_ms)
        return await publish_result(self._chunks.store, result) if publish else result

    async def _newest_result(self, shard: int) -> Result:
        """Return the newest result; the one in memory if it is still the newest, which saves reading it."""
        last = self._last.get(shard)
        if last is None or not last.watermark:
            return await newest_result(self._results, shard)
        newest = await watermarks(self._results, shard, after=last.watermark - 1)
        return last if newest == [last.watermark] else await newest_result(self._results, shard)

    def _next_chunks(self, progress_by_shard: dict[int, _Progress]) -> dict[int, range]:
        """Return the chunks of the next Spark job by shard; capacity that one shard leaves goes to the next one."""
        due: dict[int, range] = {}
        capacity = self._chunks_per_job
        for shard, progress in progress_by_shard.items():
            if progress.numbers and capacity:
                due[shard] = progress.numbers[:capacity]
                capacity -= len(due[shard])
        return due

    async def _count_batch(
        self,
        due: dict[int, range],
        progress_by_shard: dict[int, _Progress],
        outcome: RunOutcome,
        *,
        publish: bool,
    ) -> None:
        batches: dict[int, ChunkBatch] = {}
        made_at_ms: dict[int, int] = {}
        for shard, numbers in due.items():
            try:
                made_at_ms[shard], rows_of_chunks = await self._chunks.check(shard, numbers)
            except (LedgerError, StoreError) as error:
                outcome.failures[shard] = str(error)
                del progress_by_shard[shard]
            else:
                paths = [self._chunks.source.path(shard, number) for number in numbers]
                batches[shard] = ChunkBatch(shard, paths, rows_of_chunks)
        began = asyncio.get_running_loop().time()
        merged, failures = await self._count_shards(batches)
        self._chunks_per_job = next_chunks(
            self._chunks_per_job,
            counted=sum(map(len, due.values())),
            seconds=asyncio.get_running_loop().time() - began,
            failed=bool(failures),
            most_chunks=self._max_chunks_per_job,
        )
        for shard, reason in failures.items():
            outcome.failures[shard] = reason
            del progress_by_shard[shard]
        for shard, rows in merged.items():
            progress, numbers_counted = progress_by_shard[shard], due[shard]
            next_rows = merge_rows([*previous_rows(progress.result.rows), *rows])
            result = Result(shard, numbers_counted[-1], next_rows, made_at_ms[shard])
            try:
                progress.result = await publish_result(self._results, result) if publish else result
            except HeadgateError as error:
                outcome.failures[shard] = str(error)
                del progress_by_shard[shard]
                continue
            progress.numbers = progress.numbers[len(numbers_counted) :]
            outcome.results[shard] = progress.result
            outcome.chunks += len(numbers_counted)
            if publish:
                self._last[shard] = progress.result

    async def _count_shards(self, batches: dict[int, ChunkBatch]) -> tuple[dict[int, list[MergedRow]], dict[int, str]]:
        """Return rows and failures by shard. A failed job is retried for each shard alone."""
        if not batches:
            return {}, {}
        try:
            found = await self._count(list(batches.values()))
            return {shard: found.get(shard, []) for shard in batches}, {}
        except JvmGoneError:
            raise
        except RunError as error:
            if len(batches) == 1:
                return {}, dict.fromkeys(batches, str(error))
        merged: dict[int, list[MergedRow]] = {}
        failures: dict[int, str] = {}
        for shard, batch in batches.items():
            rows, failure = await self._count_shards({shard: batch})
            merged |= rows
            failures |= failure
        return merged, failures


async def differences(results: Store, outcome: RunOutcome) -> dict[int, str]:
    """Return, by shard, how a full count differs from the published result with the same watermark."""
    found: dict[int, str] = {}
    for shard, counted in outcome.results.items():
        if not counted.watermark:
            continue
        try:
            published = await read_result(results, shard, counted.watermark)
        except ObjectMissingError:
            continue
        differing = set(counted.rows) ^ set(published.rows)
        if differing:
            first = min(differing, key=repr)
            found[shard] = (
                f"{result_path(shard, counted.watermark)}: {len(differing)} rows differ from a full count, "
                f"for example {first}"
            )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run once. 0: up to date; 1: a shard failed, or a full count differs; 2: invalid setting."""
    parser = CommandParser(
        "headgate drain job",
        "Count the backlog of a ledger, once.",
        "--ledger s3://bucket/headgate --out s3://bucket/headgate",
        "--ledger file:///var/lib/headgate/ledger --json",
    )
    add_ledger_options(parser)
    parser.add_argument("--out", metavar="URL", help="where to publish the results (default: beside the ledger)")
    parser.add_argument("--full", action="store_true", help="count from the first chunk, and compare")
    parser.add_argument("--json", action="store_true", help="print one JSON line per subscription and segment")
    add_spark_options(parser, default_master=None)
    arguments = parser.parse_args(argv)
    return run_command(_run(arguments), as_json=arguments.json)


async def _run(arguments: argparse.Namespace) -> int:
    chunks = LedgerChunks(
        arguments.ledger, arguments.reader, small_read_max_rows=0 if arguments.full else SMALL_READ_MAX_ROWS
    )
    results = chunks.store if arguments.out is None else open_store(arguments.out)
    shards = arguments.shard or await chunks.shards()
    async with spark_session(arguments) as session:
        backlog_job = BacklogJob(chunks, count_on(session, chunks), results=results)
        outcome = await backlog_job.run(shards, full=arguments.full)
    differing = await differences(results, outcome) if arguments.full else {}
    for text in [*outcome.failures.values(), *differing.values()]:
        print(f"error: {text}", file=sys.stderr)  # noqa: T201
    for shard, result in sorted(outcome.results.items()):
        for line in _lines(shard, result, as_json=arguments.json):
            print(line)  # noqa: T201
    return 1 if outcome.failures or differing else 0


def _lines(shard: int, result: Result, *, as_json: bool) -> list[str]:
    rows = outstanding(result.rows)
    if as_json:
        source = {"shard": shard, "watermark": result.watermark}
        return [msgspec.json.encode(source | asdict(row) | {"drained": row.drained}).decode() for row in rows]
    total = sum(row.records or 0 for row in rows)
    return [f"shard {shard}: counted to chunk {result.watermark}; {total} records outstanding in {len(rows)} backlogs"]


if __name__ == "__main__":
    sys.exit(main())
