"""Bring the published results up to date.

A run counts the chunks after each shard's last watermark, merges them with the last result, and
publishes the new one. A killed run leaves the previous result. Of two concurrent runs, one
publishes and the other reads that result. Damage fails only its own shard, with the object's name.

``--out`` publishes elsewhere than beside the ledger. Of external topics only the ledger's part is
counted. Under `spark-submit`, Spark's own master is used. drain.backlog.verify compares with a full count.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec
from pyspark.sql import SparkSession

from drain.backlog.counting import Counted, count_chunks, read_compacted_facts
from drain.backlog.job_size import FIRST_CHUNKS, next_chunks
from drain.backlog.merge import merge_rows, merged_rows, next_result, outstanding
from drain.backlog.results import (
    ForeignResultError,
    Result,
    delete_results,
    newest_of_ledger,
    publish_result,
    result_path,
    watermarks,
)
from drain.command_line import add_ledger_options, add_spark_options, run_command, spark_session
from drain.protocol import CountedLedger
from drain.spark.chunks import LedgerChunks, in_groups
from drain.spark.engines import RunError
from headgate.errors import HeadgateError
from headgate.ledger.ledger import if_exists
from headgate.settings.command_parser import CommandParser, error_line
from headgate.storage.object_store import Store, open_store

FoundT = TypeVar("FoundT")

MAX_CHUNKS_PER_JOB: Final = 4000
"""Most chunks counted in one Spark job (drain.backlog.job_size decides how many). This bounds the file list
and the ranges in one task. 4000 small files take about 4 s, far above a job's fixed cost."""

Count = Callable[[Mapping[int, range]], Awaitable[Mapping[int, Counted]]]
"""Counts chunks (drain.backlog.counting.count_chunks); raises RunError."""


@dataclass(slots=True)
class RunOutcome:
    results: dict[int, Result] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    """Shard → the object and the reason; its previous result remains."""
    chunks: int = 0
    """Number of new chunks that were counted."""
    ledger: CountedLedger = field(default_factory=CountedLedger)

    async def collect(self, shards: Iterable[int], work: Callable[[int], Awaitable[FoundT]]) -> dict[int, FoundT]:
        """Return what ``work`` returns for each shard; a shard whose work raises HeadgateError is added to failures."""

        async def attempt(shard: int) -> FoundT | None:
            try:
                return await work(shard)
            except HeadgateError as error:
                self.failures[shard] = str(error)
                return None

        return {shard: found for shard, found in await in_groups(shards, attempt) if found is not None}


def count_on(session: SparkSession, chunks: LedgerChunks) -> Count:
    """Return a `Count` on ``session``, in a thread."""
    return lambda due: asyncio.to_thread(count_chunks, session, chunks.url, due)


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
        self, shards: Sequence[int], *, full: bool = False, up_to: Mapping[int, int] | None = None
    ) -> RunOutcome:
        """Count the new chunks of ``shards`` and publish; with ``full`` count every chunk and publish nothing.

        ``up_to``: shard → the last chunk to count; other shards are listed, and counted to their end.

        Raises:
            MustRestartError: the JVM is gone, or the ledger was replaced. Every other error is in the outcome, under
                its shard.
        """
        try:
            ledger = await self._chunks.identify()
        except HeadgateError as error:
            return RunOutcome(failures=dict.fromkeys(shards, str(error)))
        outcome = RunOutcome(ledger=ledger)
        begin = partial(self._begin, ledger, full=full, up_to=up_to or {})
        begun = await outcome.collect(dict.fromkeys(shards), begin)
        outcome.results = {shard: result for shard, (result, _) in begun.items()}
        remaining = {shard: numbers for shard, (_, numbers) in begun.items()}
        while due := self._next_chunks(remaining):
            await self._count_batch(due, outcome, publish=not full)
            remaining = {
                shard: numbers[len(due.get(shard, ())) :]
                for shard, numbers in remaining.items()
                if shard not in outcome.failures
            }
        return outcome

    async def _begin(
        self, ledger: CountedLedger, shard: int, *, full: bool, up_to: Mapping[int, int]
    ) -> tuple[Result, range]:
        """Return the last result of a shard and the chunks to count after it; raises HeadgateError."""
        result = Result(shard, 0, (), 0, ledger.ledger_id) if full else await self._newest_result(shard, ledger)
        if not result.watermark:
            result = await self._from_compacted(result, publish=not full)
        return result, await self._chunks.newer_than(shard, result.watermark, up_to.get(shard, 0))

    async def _from_compacted(self, empty: Result, *, publish: bool) -> Result:
        """Return the result of the compacted chunks, which may be deleted; ``empty`` if there are none."""
        compacted = await read_compacted_facts(self._chunks.store, empty.shard)
        if compacted is None:
            return empty
        last, table = compacted
        rows = merge_rows(merged_rows(table).get(empty.shard, ()))
        result = replace(empty, watermark=last.last, rows=rows, at_ms=last.last_at_ms, term_id=last.last_term_id)
        return await publish_result(self._chunks.store, result) if publish else result

    async def _newest_result(self, shard: int, ledger: CountedLedger) -> Result:
        """Return the newest result; the one in memory if it is still the newest, which saves reading it."""
        last = self._last.get(shard)
        try:
            if last is not None and last.watermark and last.ledger_id == ledger.ledger_id:
                newest = await watermarks(self._results, shard, after=last.watermark - 1)
                if newest == [last.watermark]:
                    return await self._of_this_history(last)
            return await self._of_this_history(await newest_of_ledger(self._results, shard, ledger))
        except ForeignResultError:
            if self._results is not self._chunks.store:
                raise
            # Results beside a ledger that was restored or copied: no other cluster uses them.
            await delete_results(self._results, shard)
            return Result(shard, 0, (), 0, ledger.ledger_id)

    async def _of_this_history(self, found: Result) -> Result:
        header_of = partial(self._chunks.header, found.shard)
        header = await if_exists(header_of, found.watermark) if found.watermark else None
        if header is not None and not header.is_of(found.at_ms, found.term_id):
            raise ForeignResultError(
                f"{result_path(found.shard, found.watermark)} counts a chunk of another time or term than the ledger "
                "has: an older ledger was put back; publish elsewhere (--out), or move the results away"
            )
        return found

    def _next_chunks(self, remaining: Mapping[int, range]) -> dict[int, range]:
        """Return the chunks of the next Spark job by shard; capacity that one shard leaves goes to the next one."""
        due: dict[int, range] = {}
        capacity = self._chunks_per_job
        for shard, numbers in remaining.items():
            if numbers and capacity:
                due[shard] = numbers[:capacity]
                capacity -= len(due[shard])
        return due

    async def _count_batch(self, due: Mapping[int, range], outcome: RunOutcome, *, publish: bool) -> None:
        began = asyncio.get_running_loop().time()
        # Of the last chunks, as the count begins: an older ledger that is put back during the count has others.
        headers, counted = await asyncio.gather(
            outcome.collect(due, lambda shard: self._chunks.header(shard, due[shard][-1])),
            self._count_shards(due, outcome),
        )
        self._chunks_per_job = next_chunks(
            self._chunks_per_job,
            counted=sum(map(len, due.values())),
            seconds=asyncio.get_running_loop().time() - began,
            failed=len(counted) < len(due),
            most_chunks=self._max_chunks_per_job,
        )

        async def merge(shard: int) -> Result:
            before = outcome.results[shard]
            rows = next_result(before.rows, counted[shard].rows)
            at_ms, term_id = counted[shard].at_ms, headers[shard].term_id
            result = replace(before, watermark=due[shard][-1], rows=rows, at_ms=at_ms, term_id=term_id)
            return await publish_result(self._results, result) if publish else result

        merged = await outcome.collect(headers.keys() & counted.keys(), merge)
        outcome.results |= merged
        outcome.chunks += sum(len(due[shard]) for shard in merged)
        if publish:
            self._last |= merged

    async def _count_shards(self, due: Mapping[int, range], outcome: RunOutcome) -> Mapping[int, Counted]:
        """Return the counts by shard, and add failures to ``outcome``. Each half of a failed job is retried."""
        try:
            return await self._count(due)
        except RunError as error:
            if len(due) == 1:
                outcome.failures |= dict.fromkeys(due, str(error))
                return {}
        half = dict(islice(due.items(), len(due) // 2))
        rest = {shard: numbers for shard, numbers in due.items() if shard not in half}
        return {**await self._count_shards(half, outcome), **await self._count_shards(rest, outcome)}


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
    chunks = LedgerChunks(arguments.ledger)
    results = chunks.store if arguments.out in (None, arguments.ledger) else open_store(arguments.out)
    shards = arguments.shard or await chunks.shards()
    async with spark_session(arguments) as session:
        outcome = await BacklogJob(chunks, count_on(session, chunks), results=results).run(shards)
    for text in outcome.failures.values():
        print(error_line(text, 1, as_json=False), file=sys.stderr)  # noqa: T201
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
