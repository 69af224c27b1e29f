"""Answer requests from runs, as few of them as possible.

Whoever asks while a run is under way shares the next one, so each answer rests on a listing that began after the
question came. A shard that could not be counted is told as an error to those who asked for it, and to nobody else.

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
from drain.backlog.rates import History, count_of, rates, remembered
from drain.backlog.results import Result
from drain.external.backlog import without_tables
from drain.external.topics import NOT_MAPPED, ExternalTopics
from drain.protocol import (
    AskBacklog,
    AskDrained,
    BacklogRow,
    BacklogTold,
    DrainAnswer,
    Drained,
    DrainQuestion,
    ExternalQuestion,
    ExternalTold,
)
from drain.spark.chunks import LedgerChunks
from headgate.errors import ChunkError, HeadgateError, StoreUnavailableError

LOOK_SECONDS = 2.0
"""How often an idle process looks whether a ledger has grown."""
KEEP_UP_CHUNKS = 64
"""New chunks that are counted before anybody asks: a run over so many costs little more than one over none."""


@dataclass(frozen=True, slots=True)
class _Indexed:
    """One shard's result, ready to be asked."""

    result: Result
    rows: tuple[Backlog, ...]
    by_subscription: dict[tuple[int, int], list[Backlog]]


class Answers:
    """One job's answers. An async context manager: runs happen from entering to leaving."""

    def __init__(
        self,
        job: BacklogJob,
        chunks: LedgerChunks,
        *,
        external: ExternalTopics | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """``external``: the topics whose entries or acknowledgements are tables of their own."""
        self._job = job
        self._external = external
        self._chunks = chunks
        self._look_seconds = look_seconds
        self._wanted: set[int] = set()
        self._next: asyncio.Future[RunOutcome] | None = None
        self._asked = asyncio.Event()
        self._indexed: dict[int, _Indexed] = {}
        self._counts: dict[int, History] = {}
        self._worker: asyncio.Task[None] | None = None
        self.runs = 0

    async def __aenter__(self) -> Self:
        self._worker = asyncio.get_running_loop().create_task(self._work_all(), name="backlog runs")
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
        if self._next is not None:
            self._next.cancel()

    @property
    def worker(self) -> asyncio.Task[None]:
        """The task that carries the runs out; it ends only by a bug or by closing."""
        assert self._worker is not None, "not opened"
        return self._worker

    async def reply(self, request: AskDrained | AskBacklog) -> Drained | BacklogTold:
        """Return the reply to ``request``, after a run that began after this call; raises JvmGoneError."""
        if isinstance(request, AskDrained):
            outcome = await self._outcome(question.shard for question in request.questions)
            return Drained(
                id=request.id, answers=[await self._answer(outcome, question) for question in request.questions]
            )
        shards = await self._chunks.shards() if request.shards is None else request.shards
        outcome = await self._outcome(shards)
        failures = {shard: reason for shard, reason in outcome.failures.items() if shard in shards}
        told = {shard: outcome.results[shard] for shard in sorted(outcome.results) if shard in shards}
        # The run listed the ledger after it was asked for, so what it found holds for that time too.
        as_of_ms = {shard: max(result.at_ms, request.now_ms or 0) for shard, result in told.items()}
        external = {question.place: question for question in request.external if question.shard in told}
        rows = [row for result in told.values() for row in self._rows(result, as_of_ms[result.shard])]
        return BacklogTold(
            id=request.id,
            rows=[row for row in rows if (row.shard, row.topic_id) not in external],
            failures=failures,
            watermarks={shard: result.watermark for shard, result in told.items()},
            as_of_ms=as_of_ms,
            external=[
                self._of_external(question, told[question.shard], as_of_ms[question.shard])
                for question in external.values()
            ],
        )

    def _of_external(self, question: ExternalQuestion, result: Result, as_of_ms: int) -> ExternalTold:
        if self._external is None:
            return without_tables(question, result.rows, as_of_ms, NOT_MAPPED)
        self._external.forget_gone(result)
        return self._external.backlog(question, result, as_of_ms)

    def _rows(self, result: Result, as_of_ms: int) -> list[BacklogRow]:
        rows = self._index(result).rows
        history = remembered(self._counts.get(result.shard, ()), count_of(as_of_ms, rows))
        self._counts[result.shard] = history
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

    async def _outcome(self, shards: Iterable[int]) -> RunOutcome:
        self._wanted.update(shards)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._asked.set()
        # Several wait for it: one that is cancelled must not take it from the others.
        return await asyncio.shield(self._next)

    async def _work_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work(), name="ledger runs")
            if self._external is not None:
                tasks.create_task(self._external.work(self._newest), name="counts of tables")

    async def _newest(self, shard: int) -> Result:
        """Return the result of ``shard``, counted now; raises RunError or JvmGoneError."""
        outcome = await self._outcome([shard])
        if (failure := outcome.failures.get(shard)) is not None:
            raise RunError(failure)
        return outcome.results[shard]

    async def _work(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._asked.wait()
            except TimeoutError:
                await self._keep_up()
                continue
            self._asked.clear()
            shards, self._wanted = sorted(self._wanted), set()
            waiting, self._next = self._next, None
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

    async def _keep_up(self) -> None:
        """Count shards that were asked about before and have grown a lot: the next question then finds little to do.

        A fault met here is met again, and told, by whoever asks next.
        """
        grown = []
        for shard, known in self._indexed.items():
            try:
                newer = await self._chunks.newer_than(shard, known.result.watermark)
            except (ChunkError, StoreUnavailableError):
                continue
            if len(newer) >= KEEP_UP_CHUNKS:
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

    async def _answer(self, outcome: RunOutcome, question: DrainQuestion) -> DrainAnswer:
        if (failure := outcome.failures.get(question.shard)) is not None:
            return DrainAnswer(error=failure)
        result = outcome.results[question.shard]
        if self._external is not None and self._external.covers(question):
            try:
                counted = await self._external.rows(question, result)
            except JvmGoneError:
                raise
            except HeadgateError as error:
                return DrainAnswer(error=str(error))
            return DrainAnswer(drained(counted, question.seek_generation, question.segments), result.watermark)
        rows = self._index(result).by_subscription.get((question.topic_id, question.subscription_id), [])
        return DrainAnswer(drained(rows, question.seek_generation, question.segments), result.watermark)

    def _index(self, result: Result) -> _Indexed:
        known = self._indexed.get(result.shard)
        if known is not None and known.result is result:
            return known
        rows = outstanding(result.rows)
        by_subscription: dict[tuple[int, int], list[Backlog]] = {}
        for row in rows:
            by_subscription.setdefault((row.topic_id, row.subscription_id), []).append(row)
        indexed = _Indexed(result, rows, by_subscription)
        self._indexed[result.shard] = indexed
        return indexed
