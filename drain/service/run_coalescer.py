"""Answer requests from runs, as few of them as possible.

Whoever asks while a run is under way shares the next one, so each answer rests on a listing that began after the
query came. A shard that could not be counted is told as an error to those who asked for it, and to nobody else.

Backlogs of external topics stand apart from the ledger's: what was counted last is told (drain.external.topics).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from drain.backlog.counting import JvmGoneError, RunError
from drain.backlog.job import BacklogJob, RunOutcome
from drain.backlog.merge import Backlog, drained, outstanding
from drain.backlog.rates import History, append_count, count_of, rates
from drain.backlog.results import Result
from drain.external.backlog import backlog_from_ledger
from drain.external.topics import NOT_MAPPED, ExternalTopicCounter
from drain.protocol import (
    BacklogRequest,
    BacklogResponse,
    BacklogRow,
    DrainedRequest,
    DrainedResponse,
    DrainQuery,
    DrainQueryResult,
    ExternalBacklogQuery,
    ExternalBacklogResponse,
)
from drain.spark.chunks import LedgerChunks
from headgate.errors import ChunkError, HeadgateError, StoreUnavailableError

EAGER_COUNT_INTERVAL_SECONDS = 2.0
"""How often an idle process looks whether a ledger has grown."""
EAGER_COUNT_CHUNKS = 64
"""New chunks that are counted before anybody asks: a run over so many costs little more than one over none."""


@dataclass(frozen=True, slots=True)
class _IndexedResult:
    """One shard's result, ready to be asked."""

    result: Result
    rows: tuple[Backlog, ...]
    by_subscription: dict[tuple[int, int], list[Backlog]]


class RunCoalescer:
    """One job's answers. An async context manager: runs happen from entering to leaving."""

    def __init__(
        self,
        job: BacklogJob,
        chunks: LedgerChunks,
        *,
        external: ExternalTopicCounter | None = None,
        eager_count_interval_seconds: float = EAGER_COUNT_INTERVAL_SECONDS,
    ) -> None:
        """``external``: the topics whose entries or acknowledgements are tables of their own."""
        self._job = job
        self._external = external
        self._chunks = chunks
        self._eager_count_interval_seconds = eager_count_interval_seconds
        self._pending_shards: set[int] = set()
        self._next_run: asyncio.Future[RunOutcome] | None = None
        self._wake_up = asyncio.Event()
        self._indexed: dict[int, _IndexedResult] = {}
        self._count_history: dict[int, History] = {}
        self._worker: asyncio.Task[None] | None = None
        self.runs = 0

    async def __aenter__(self) -> Self:
        self._worker = asyncio.get_running_loop().create_task(self._run_workers(), name="backlog runs")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        worker, self._worker = self._worker, None
        assert worker is not None, "closed twice"
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError, JvmGoneError):
            await worker
        if self._next_run is not None:
            self._next_run.cancel()

    @property
    def worker(self) -> asyncio.Task[None]:
        """The task that carries the runs out; it ends only by a bug or by closing."""
        assert self._worker is not None, "not opened"
        return self._worker

    async def reply(self, request: DrainedRequest | BacklogRequest) -> DrainedResponse | BacklogResponse:
        """Return the reply to ``request``, after a run that began after this call; raises JvmGoneError."""
        if isinstance(request, DrainedRequest):
            outcome = await self._await_run(query.shard for query in request.queries)
            return DrainedResponse(
                id=request.id, answers=[await self._query_result(outcome, query) for query in request.queries]
            )
        shards = await self._chunks.shards() if request.shards is None else request.shards
        outcome = await self._await_run(shards)
        failures = {shard: reason for shard, reason in outcome.failures.items() if shard in shards}
        results = {shard: outcome.results[shard] for shard in sorted(outcome.results) if shard in shards}
        # The run listed the ledger after it was asked for, so what it found holds for that time too.
        as_of_ms = {shard: max(result.at_ms, request.now_ms or 0) for shard, result in results.items()}
        external = {query.topic_key: query for query in request.external if query.shard in results}
        rows = [row for result in results.values() for row in self._rows(result, as_of_ms[result.shard])]
        return BacklogResponse(
            id=request.id,
            rows=[row for row in rows if (row.shard, row.topic_id) not in external],
            failures=failures,
            watermarks={shard: result.watermark for shard, result in results.items()},
            as_of_ms=as_of_ms,
            external=[
                self._external_backlog(query, results[query.shard], as_of_ms[query.shard])
                for query in external.values()
            ],
        )

    def _external_backlog(self, query: ExternalBacklogQuery, result: Result, as_of_ms: int) -> ExternalBacklogResponse:
        if self._external is None:
            return backlog_from_ledger(query, result.rows, as_of_ms, NOT_MAPPED)
        self._external.remove_deleted_topics(result)
        return self._external.backlog(query, result, as_of_ms)

    def _rows(self, result: Result, as_of_ms: int) -> list[BacklogRow]:
        rows = self._index(result).rows
        history = append_count(self._count_history.get(result.shard, ()), count_of(as_of_ms, rows))
        self._count_history[result.shard] = history
        known = rates(history)
        found = []
        for row in rows:
            rate = known.get((row.topic_id, row.subscription_id, row.segment))
            found.append(
                BacklogRow(
                    shard=result.shard,
                    watermark=result.watermark,
                    drained=row.drained,
                    stored_per_second=None if rate is None else rate.stored_per_second,
                    acknowledged_per_second=None if rate is None else rate.acknowledged_per_second,
                    **asdict(row),
                )
            )
        return found

    async def _await_run(self, shards: Iterable[int]) -> RunOutcome:
        self._pending_shards.update(shards)
        if self._next_run is None:
            self._next_run = asyncio.get_running_loop().create_future()
        self._wake_up.set()
        # Several wait for it: one that is cancelled must not take it from the others.
        return await asyncio.shield(self._next_run)

    async def _run_workers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_loop(), name="ledger runs")
            if self._external is not None:
                tasks.create_task(self._external.work(self._newest_result), name="counts of tables")

    async def _newest_result(self, shard: int) -> Result:
        """Return the result of ``shard``, counted now; raises RunError or JvmGoneError."""
        outcome = await self._await_run([shard])
        if (failure := outcome.failures.get(shard)) is not None:
            raise RunError(failure)
        return outcome.results[shard]

    async def _run_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._eager_count_interval_seconds):
                    await self._wake_up.wait()
            except TimeoutError:
                await self._count_eagerly()
                continue
            self._wake_up.clear()
            shards, self._pending_shards = sorted(self._pending_shards), set()
            waiting, self._next_run = self._next_run, None
            assert waiting is not None, "asked without anybody waiting"
            try:
                outcome = await self._job.run(shards)
            except JvmGoneError as error:
                waiting.set_exception(error)
                continue
            except asyncio.CancelledError:
                waiting.cancel()
                raise
            self.runs += 1
            waiting.set_result(outcome)

    async def _count_eagerly(self) -> None:
        """Count shards that were asked about before and have grown a lot: the next query then finds little to do.

        A fault met here is met again, and told, by whoever asks next.
        """
        grown = []
        for shard, known in self._indexed.items():
            try:
                newer = await self._chunks.newer_than(shard, known.result.watermark)
            except (ChunkError, StoreUnavailableError):
                continue
            if len(newer) >= EAGER_COUNT_CHUNKS:
                grown.append(shard)
        if grown:
            try:
                outcome = await self._job.run(grown)
            except JvmGoneError:
                return
            self.runs += 1
            for shard in grown:
                if shard in outcome.results:
                    self._index(outcome.results[shard])

    async def _query_result(self, outcome: RunOutcome, query: DrainQuery) -> DrainQueryResult:
        if (failure := outcome.failures.get(query.shard)) is not None:
            return DrainQueryResult(error=failure)
        result = outcome.results[query.shard]
        if self._external is not None and self._external.needs_tables(query):
            try:
                counted = await self._external.rows(query, result)
            except JvmGoneError:
                raise
            except HeadgateError as error:
                return DrainQueryResult(error=str(error))
            return DrainQueryResult(drained(counted, query.seek_generation, query.segments), result.watermark)
        rows = self._index(result).by_subscription.get((query.topic_id, query.subscription_id), [])
        return DrainQueryResult(drained(rows, query.seek_generation, query.segments), result.watermark)

    def _index(self, result: Result) -> _IndexedResult:
        known = self._indexed.get(result.shard)
        if known is not None and known.result is result:
            return known
        rows = outstanding(result.rows)
        by_subscription: dict[tuple[int, int], list[Backlog]] = {}
        for row in rows:
            by_subscription.setdefault((row.topic_id, row.subscription_id), []).append(row)
        indexed = _IndexedResult(result, rows, by_subscription)
        self._indexed[result.shard] = indexed
        return indexed
