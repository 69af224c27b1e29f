"""Bring the published results up to date.

A run counts the chunks after each shard's last watermark, merges them with the last result, and
publishes the new one. A killed run leaves the previous result. Of two concurrent runs, one
publishes and the other reads that result. Damage fails only its own shard, with the object's name.

    headgate drain job --ledger file:///var/lib/headgate/ledger [--out URL] [--shard 3 …]
        [--json]

``--out`` publishes elsewhere than beside the ledger. Of external topics only the ledger's part is
counted. Under `spark-submit`, Spark's own master is used. drain.backlog.verify compares with a full count.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from drain.backlog.aggregates import merged_rows
from drain.backlog.compacted_facts import read_compacted_facts
from drain.backlog.counting import ChunkBatch, JvmGoneError, RunError, aggregate_chunks
from drain.backlog.job_size import FIRST_CHUNKS, next_chunks
from drain.backlog.merge import MergedRow, merge_rows, next_result, outstanding
from drain.backlog.results import (
    ForeignResultError,
    Result,
    delete_results,
    newest_of_ledger,
    publish_result,
    watermarks,
)
from drain.command_line import add_ledger_options, add_spark_options, run_command, spark_session
from drain.protocol import CountedLedger
from drain.spark.chunks import LedgerChunks, MustRestartError, in_groups
from headgate.errors import HeadgateError, LedgerError, StoreError
from headgate.settings.command_parser import CommandParser
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
    ledger: CountedLedger = field(default_factory=CountedLedger)
    """What was counted."""


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
            MustRestartError: the JVM is gone, or the ledger was replaced. Every other error is in the outcome, under
                its shard.
        """
        try:
            ledger = await self._chunks.identify()
        except MustRestartError:
            raise
        except HeadgateError as error:
            return RunOutcome(failures=dict.fromkeys(shards, str(error)))
        outcome = RunOutcome(ledger=ledger)
        progress_by_shard: dict[int, _Progress] = {}
        begin = partial(self._begin, ledger, full=full, up_to=up_to or {})
        for shard, progress in await in_groups(dict.fromkeys(shards), begin):
            if isinstance(progress, str):
                outcome.failures[shard] = progress
            else:
                progress_by_shard[shard], outcome.results[shard] = progress, progress.result
        while due := self._next_chunks(progress_by_shard):
            await self._count_batch(due, progress_by_shard, outcome, publish=not full)
        return outcome

    async def _begin(
        self, ledger: CountedLedger, shard: int, *, full: bool, up_to: Mapping[int, int]
    ) -> _Progress | str:
        """Return the last result of a shard and what to count after it, or why neither is known."""
        try:
            result = Result(shard, 0, (), 0, ledger.ledger_id)
            if not full:
                result = await self._newest_result(shard, ledger)
            if not result.watermark:
                result = await self._from_compacted(result, publish=not full)
            numbers = await self._chunks.newer_than(shard, result.watermark)
        except HeadgateError as error:
            return str(error)
        return _Progress(result, range(numbers.start, min(numbers.stop, up_to.get(shard, numbers.stop) + 1)))

    async def _from_compacted(self, empty: Result, *, publish: bool) -> Result:
        """Return the result of the compacted chunks, which may be deleted; ``empty`` if there are none."""
        compacted = await read_compacted_facts(self._chunks.store, empty.shard)
        if compacted is None:
            return empty
        rows = merge_rows(merged_rows(compacted.table).get(empty.shard, ()))
        result = replace(empty, watermark=compacted.last, rows=rows, at_ms=compacted.last_at_ms)
        return await publish_result(self._chunks.store, result) if publish else result

    async def _newest_result(self, shard: int, ledger: CountedLedger) -> Result:
        """Return the newest result; the one in memory if it is still the newest, which saves reading it."""
        last = self._last.get(shard)
        if last is not None and last.watermark and last.ledger_id == ledger.ledger_id:
            newest = await watermarks(self._results, shard, after=last.watermark - 1)
            if newest == [last.watermark]:
                return last
        try:
            return await newest_of_ledger(self._results, shard, ledger)
        except ForeignResultError:
            if self._results is not self._chunks.store:
                raise
            # Results beside a ledger that was restored or copied: no other cluster uses them.
            await delete_results(self._results, shard)
            return Result(shard, 0, (), 0, ledger.ledger_id)

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
        for shard, checked in await in_groups(due, lambda shard: self._check(shard, due[shard])):
            if isinstance(checked, str):
                outcome.failures[shard] = checked
                del progress_by_shard[shard]
            else:
                made_at_ms[shard], rows_of_chunks = checked
                paths = [self._chunks.source.path(shard, number) for number in due[shard]]
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
        results: dict[int, Result] = {}
        for shard, rows in merged.items():
            next_rows = next_result(progress_by_shard[shard].result.rows, rows)
            results[shard] = replace(
                progress_by_shard[shard].result, watermark=due[shard][-1], rows=next_rows, at_ms=made_at_ms[shard]
            )
        for shard, result in await in_groups(results, lambda shard: self._publish(results[shard], publish=publish)):
            if isinstance(result, str):
                outcome.failures[shard] = result
                del progress_by_shard[shard]
                continue
            progress = progress_by_shard[shard]
            progress.result, progress.numbers = result, progress.numbers[len(due[shard]) :]
            outcome.results[shard] = result
            outcome.chunks += len(due[shard])
            if publish:
                self._last[shard] = result

    async def _check(self, shard: int, numbers: Sequence[int]) -> tuple[int, int | None] | str:
        """Return what `LedgerChunks.check` returns, or why it does not."""
        try:
            return await self._chunks.check(shard, numbers)
        except (LedgerError, StoreError) as error:
            return str(error)

    async def _publish(self, result: Result, *, publish: bool) -> Result | str:
        """Return what was published for the watermark of ``result``, or why nothing was."""
        try:
            return await publish_result(self._results, result) if publish else result
        except HeadgateError as error:
            return str(error)

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run once. 0: up to date; 1: a shard failed; 2: invalid setting."""
    parser = CommandParser(
        "headgate drain job",
        "Count the backlog of a ledger, once.",
        "--ledger s3://bucket/headgate --out s3://bucket/headgate",
        "--ledger file:///var/lib/headgate/ledger --json",
    )
    add_ledger_options(parser)
    parser.add_argument("--out", metavar="URL", help="where to publish the results (default: beside the ledger)")
    parser.add_argument("--json", action="store_true", help="print one JSON line per subscription and segment")
    add_spark_options(parser, default_master=None)
    arguments = parser.parse_args(argv)
    return run_command(_run(arguments), as_json=arguments.json)


async def _run(arguments: argparse.Namespace) -> int:
    chunks = LedgerChunks(arguments.ledger, arguments.reader)
    results = chunks.store if arguments.out in (None, arguments.ledger) else open_store(arguments.out)
    shards = arguments.shard or await chunks.shards()
    async with spark_session(arguments) as session:
        outcome = await BacklogJob(chunks, count_on(session, chunks), results=results).run(shards)
    for text in outcome.failures.values():
        print(f"error: {text}", file=sys.stderr)  # noqa: T201
    for shard, result in sorted(outcome.results.items()):
        for line in _lines(shard, result, as_json=arguments.json):
            print(line)  # noqa: T201
    return 1 if outcome.failures else 0


def _lines(shard: int, result: Result, *, as_json: bool) -> list[str]:
    rows = outstanding(result.rows)
    if as_json:
        source = {"shard": shard, "watermark": result.watermark}
        return [
            msgspec.json.encode(source | msgspec.structs.asdict(row) | {"drained": row.drained}).decode()
            for row in rows
        ]
    total = sum(row.records or 0 for row in rows)
    return [f"shard {shard}: counted to chunk {result.watermark}; {total} records outstanding in {len(rows)} backlogs"]


if __name__ == "__main__":
    sys.exit(main())
