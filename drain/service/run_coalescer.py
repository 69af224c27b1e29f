"""Coalesce concurrent requests into as few Spark runs as possible.

Requests that arrive during a run share the next one, and say how far it has to count: to where the leader had written.
A backlog request needs no run if just that was counted before; a drain check always does. A shard that could not be
counted fails only the requests that named it.
"""

import asyncio
import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from drain import protocol
from drain.backlog.job import BacklogJob, RunOutcome
from drain.backlog.merge import StateRow, by_topic, drained, outstanding
from drain.backlog.rates import Count, History, Rates, TopicCount, append_count, rates, topic_count, with_rates
from drain.backlog.results import Result
from drain.external.topics import ExternalTopicCounter
from drain.service.processor_share import ProcessorShare, TakeShare
from drain.spark.chunks import LedgerChunks, MustRestartError
from drain.spark.engines import RunError
from headgate.process.background import BackgroundService

BATCHING_DELAY_SECONDS: Final = 0.02
"""From the first request to the run, if no run is under way. Requests made together then share one run."""


class _Topic:
    """One topic of a shard's result, and what follows from its rows, computed when it is first asked for."""

    def __init__(self, rows: Sequence[StateRow]) -> None:
        self.rows = rows
        self._reported: tuple[Mapping[protocol.BacklogKey, Rates], list[protocol.Backlog]] = {}, []

    @cached_property
    def backlogs(self) -> tuple[protocol.Backlog, ...]:
        return outstanding(self.rows)

    @cached_property
    def count(self) -> TopicCount:
        return topic_count(self.backlogs)

    def report(self, known_rates: Mapping[protocol.BacklogKey, Rates]) -> list[protocol.Backlog]:
        """Return the backlogs with their rates: those of the last report if the rates are the same."""
        rates_before, rows = self._reported
        if rates_before != known_rates or not rows:
            rows = with_rates(self.backlogs, known_rates)
            self._reported = known_rates, rows
        return rows


def same_objects(first: Sequence[object], second: Sequence[object]) -> bool:
    """Return whether both have the same objects, which is faster to tell than whether they have equal ones. Pure."""
    return len(first) == len(second) and all(map(operator.is_, first, second))


def is_counted(request: protocol.BacklogRequest, known: Result) -> bool:
    """Return whether ``known`` includes just the chunks that exist according to ``request``. Pure.

    A result that includes more, or whose last chunk has another time or term, is of another history or leader.
    """
    counted = known.ledger_id, known.watermark, known.at_ms, known.term_id
    wanted = request.ledger_id, request.written_to, request.written_at_ms, request.term_id
    return request.written_to > 0 and counted == wanted


class RunCoalescer(BackgroundService):
    """Answers requests from the runs of one job, while entered as a context manager."""

    task_name = "backlog runs"

    def __init__(
        self,
        job: BacklogJob,
        chunks: LedgerChunks,
        *,
        external: ExternalTopicCounter,
        take_share: TakeShare | None = None,
    ) -> None:
        """``external``: counts the topics whose entries or acknowledgements are in tables."""
        self._share = ProcessorShare(take_share)
        self._job = job
        self._external = external
        self._chunks = chunks
        self._pending: dict[int, int] = {}
        """Shard → the chunk to which the next run counts; 0: it lists the chunks."""
        self._next_run: asyncio.Future[RunOutcome] | None = None
        self._wake_up = asyncio.Event()
        self.results: dict[int, Result] = {}
        """The newest ones of the shards that were requested."""
        self._topics: dict[int, Mapping[int, _Topic]] = {}
        self._count_history: dict[int, History] = {}
        self.runs = 0

    async def __aexit__(self, *_: object) -> None:
        self._share.hurry()
        with contextlib.suppress(MustRestartError):
            await super().__aexit__()
        if self._next_run is not None:
            self._next_run.cancel()

    @property
    def worker(self) -> asyncio.Task[None]:
        """The task that does the runs; only a bug or closing ends it."""
        assert self._task is not None, "not opened"
        return self._task

    async def reply(
        self, request: protocol.DrainedRequest | protocol.BacklogRequest
    ) -> protocol.DrainedResponse | protocol.BacklogResponse:
        """Return the reply to ``request``: from a run that began after this call, or from a count of the same chunks.

        Raises:
            HeadgateError: the shard, or a table, was not counted.
            MustRestartError: this process is of no use any more.
        """
        if isinstance(request, protocol.DrainedRequest):
            with self._share.hurried():
                return await self._drained(request)
        known = self.results.get(request.shard)
        if known is not None and is_counted(request, known):
            result, ledger = known, protocol.CountedLedger(known.ledger_id, self._chunks.url)
        else:
            result, ledger = await self._counted(request.shard, request.written_to)
        # Nothing newer was durable when the request was made, so the result holds for that time too.
        as_of_ms = max(result.at_ms, request.now_ms)
        external = {query.topic_id: query for query in request.external}
        return protocol.BacklogResponse(
            id=request.id,
            rows=[row for row in self._rows(result, as_of_ms) if row.topic_id not in external],
            as_of_ms=as_of_ms,
            external=[self._external.backlog(query, result, as_of_ms) for query in external.values()],
            watermark=result.watermark,
            ledger=ledger,
        )

    def _rows(self, result: Result, as_of_ms: int) -> list[protocol.Backlog]:
        topics = self._index(result)
        count = Count(as_of_ms, {topic_id: topic.count for topic_id, topic in topics.items()})
        history = self._count_history[result.shard] = append_count(self._count_history.get(result.shard, ()), count)
        return [row for topic_id, topic in topics.items() for row in topic.report(rates(history, topic_id))]

    async def _drained(self, request: protocol.DrainedRequest) -> protocol.DrainedResponse:
        query = request.query
        result, ledger = await self._counted(query.shard, query.at_least_chunk)
        backlogs: Iterable[protocol.Backlog]
        if self._external.needs_tables(query):
            backlogs = await self._external.rows(query, result)
        else:
            topic = self._index(result).get(query.topic_id)
            counted = () if topic is None else topic.backlogs
            backlogs = [each for each in counted if each.subscription_id == query.subscription_id]
        segments = drained(backlogs, query.seek_generation, query.segments)
        return protocol.DrainedResponse(
            id=request.id,
            drained=segments,
            from_tables=self._external.has_acknowledgements(query),
            watermark=result.watermark,
            ledger=ledger,
        )

    async def _counted(self, shard: int, head: int = 0) -> tuple[Result, protocol.CountedLedger]:
        """Return what ``shard`` has, counted to ``head``; 0: to its end. Raises HeadgateError, MustRestartError."""
        if not head and (known := self.results.get(shard)):
            head = await self._chunks.end_after(shard, known.watermark)
        pending = self._pending.get(shard, head)
        self._pending[shard] = max(pending, head) if pending and head else 0
        if self._next_run is None:
            self._next_run = asyncio.get_running_loop().create_future()
        self._wake_up.set()
        # Several requests wait for the future: cancelling one must not cancel it for the others.
        outcome = await asyncio.shield(self._next_run)
        if (failure := outcome.failures.get(shard)) is not None:
            raise RunError(failure)
        return outcome.results[shard], outcome.ledger

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_loop(), name="ledger runs")
            tasks.create_task(self._external.work(self._newest_result), name="table counts")

    async def _newest_result(self, shard: int) -> Result:
        result, _ = await self._counted(shard)
        return result

    async def _run_loop(self) -> None:
        while True:
            if not self._wake_up.is_set():
                await self._wake_up.wait()
                await asyncio.sleep(BATCHING_DELAY_SECONDS)
            self._wake_up.clear()
            heads, self._pending = self._pending, {}
            waiting, self._next_run = self._next_run, None
            assert waiting is not None, "woken up without a request"
            try:
                outcome = await self._count(heads)
            except MustRestartError as error:
                waiting.set_exception(error)
                continue
            except asyncio.CancelledError:
                waiting.cancel()
                raise
            waiting.set_result(outcome)

    async def _count(self, heads: Mapping[int, int]) -> RunOutcome:
        """Run the job; raises MustRestartError."""
        with self._share.patient():
            outcome = await self._job.run(sorted(heads), up_to=heads)
        self.runs += 1
        for result in outcome.results.values():
            self._index(result)
        return outcome

    def _index(self, result: Result) -> Mapping[int, _Topic]:
        """Return the topics of ``result``; those that have not changed are those of the result before it."""
        known = self._topics.get(result.shard, {})
        if self.results.get(result.shard) is not result:
            self.results[result.shard] = result
            known = self._topics[result.shard] = {
                topic_id: known[topic_id]
                if topic_id in known and same_objects(known[topic_id].rows, rows)
                else _Topic(rows)
                for topic_id, rows in by_topic(result.rows).items()
            }
        return known
