"""Schedule the counts of external topics that have tables (drain.table_mapping).

A drain query is counted at once, because a gate waits for it; an error keeps the gate closed. A backlog query returns
the last count and triggers another one in the background, so that slow tables delay no other request.

1. Only requested topics are counted, each once however often it is requested meanwhile.
2. Topics are counted one at a time. Then the topic rests for `IDLE_FACTOR` times the duration, while others are
   counted: so a slow table, or one that cannot be read, delays them by one count.
3. An error is reported for its own topic, in place of its rows, until a count succeeds.
4. The counts of topics that are no longer in the ledger are dropped, and all of a shard whose ledger was put back to an
   older state: an id may be that of another topic there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from drain.backlog.merge import StateRow
from drain.backlog.rates import Count, History, append_count, rates, topic_count, with_rates
from drain.backlog.results import Result
from drain.external.backlog import backlog_from_ledger, unknown_reason
from drain.protocol import MAX_REASON_LENGTH, Backlog, DrainQuery, ExternalBacklogQuery, ExternalBacklogResponse
from drain.spark.chunks import MustRestartError
from drain.table_mapping import ExternalTables, ExternalView
from headgate.errors import HeadgateError

MAX_RESULT_AGE_SECONDS: Final = 1.0
"""An older result is not merged with tables that are read now: rates would be wrong."""
IDLE_FACTOR: Final = 4.0
"""Rest of a topic after its count, as a multiple of the duration: it takes a fifth of the session at most."""
NOT_MAPPED: Final = "the Spark process has no table mapped for it (drain.external)"
NOT_YET: Final = "its tables are being counted for the first time: ask again"

CountExternal = Callable[[ExternalTables, ExternalView, Sequence[StateRow], int], Awaitable[tuple[Backlog, ...]]]
"""(tables, names, the topic's rows of the ledger's result, shard) → its backlog; raises TableError or RunError."""
Forget = Callable[[tuple[int, int]], None]
NewestResult = Callable[[int], Awaitable[Result]]
"""(shard) → its ledger, counted now; raises RunError."""


@dataclass(frozen=True, slots=True)
class _PendingCount:
    """A topic to count: the newest query, and the ledger's result at that time."""

    query: ExternalBacklogQuery
    tables: ExternalTables
    result: Result
    as_of_ms: int
    asked_at: float
    """When it was asked for last, by the loop's clock."""


class ExternalTopicCounter:
    """The external topics of one process. `work` counts their backlogs and has to run."""

    def __init__(
        self, tables: Mapping[str, ExternalTables], count: CountExternal, forget: Forget = lambda _: None
    ) -> None:
        """``tables``: topic → its mapped tables. ``forget``: what ``count`` remembers."""
        self._tables = tables
        self._count = count
        self._forget = forget
        self._due: dict[tuple[int, int], _PendingCount] = {}
        """Topics in the order of their turns; at most one entry per topic."""
        self._wake_up = asyncio.Event()
        self._counted: dict[tuple[int, int], ExternalBacklogResponse] = {}
        self._histories: dict[tuple[int, int], History] = {}
        """The successful counts of each topic."""
        self._newest: dict[int, tuple[int, int]] = {}
        """Shard → the watermark of its newest result, and the time of that chunk."""
        self._gone: MustRestartError | None = None

    def needs_tables(self, query: DrainQuery) -> bool:
        """Return whether ``query`` depends on tables. Opaque entries decide nothing."""
        view = query.external
        if view is None or view.topic not in self._tables:
            return False
        return not view.opaque or self._tables[view.topic].acknowledgements is not None

    def has_acknowledgements(self, query: DrainQuery) -> bool:
        """Return whether acknowledgements in a table decide ``query``."""
        tables = None if query.external is None else self._tables.get(query.external.topic)
        return tables is not None and tables.acknowledgements is not None

    async def rows(self, query: DrainQuery, result: Result) -> tuple[Backlog, ...]:
        """Return the backlog of the subscription in ``query``; raises TableError, RunError or MustRestartError."""
        view = query.external
        assert view is not None, "a query without names"
        rows = _of_topic(result, query.topic_id)
        if not rows:
            return ()
        counted = await self._count(self._tables[view.topic], view, rows, query.shard)
        return tuple(row for row in counted if row.subscription_id == query.subscription_id)

    def backlog(self, query: ExternalBacklogQuery, result: Result, as_of_ms: int) -> ExternalBacklogResponse:
        """Return the last count, and trigger another one; ``as_of_ms``: the time that ``result`` holds for.

        Raises MustRestartError: a count has found the JVM gone.
        """
        if self._gone is not None:
            raise self._gone
        self._drop_others(result)
        tables = self._tables.get(query.view.topic)
        rows = _of_topic(result, query.topic_id)
        if tables is None or not rows:
            return backlog_from_ledger(query, rows, as_of_ms, NOT_MAPPED)
        now = asyncio.get_running_loop().time()
        self._due[query.topic_key] = _PendingCount(query, tables, result, as_of_ms, now)
        self._wake_up.set()
        first = ExternalBacklogResponse(shard=query.shard, topic_id=query.topic_id, reason=NOT_YET)
        return self._counted.get(query.topic_key, first)

    def _drop_others(self, result: Result) -> None:
        """Drop what is not of the topics in the ledger of a shard (rule 4)."""
        watermark, term_id = self._newest.get(result.shard, (0, result.term_id))
        self._newest[result.shard] = result.watermark, result.term_id
        is_older = result.watermark < watermark or (result.watermark == watermark and result.term_id != term_id)
        existing = set[int]() if is_older else {row.topic_id for row in result.rows}
        for shard, topic_id in [*self._counted]:
            if shard == result.shard and topic_id not in existing:
                for known in (self._counted, self._histories, self._due):
                    known.pop((shard, topic_id), None)
                self._forget((shard, topic_id))

    async def work(self, newest: NewestResult) -> None:
        """Count requested topics until cancelled, or until this process must restart; the next query then says so."""
        loop = asyncio.get_running_loop()
        rests_until: dict[tuple[int, int], float] = {}
        while True:
            began = loop.time()
            rests_until = {key: until for key, until in rests_until.items() if until > began}
            topic = next((key for key in self._due if key not in rests_until), None)
            if topic is None:
                self._wake_up.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min((rests_until[key] for key in self._due), default=None)):
                        await self._wake_up.wait()
                continue
            try:
                await self._refresh_and_count(self._due.pop(topic), newest)
            except MustRestartError as error:
                self._gone = error
                return
            rests_until[topic] = loop.time() + IDLE_FACTOR * (loop.time() - began)

    async def _refresh_and_count(self, due: _PendingCount, newest: NewestResult) -> None:
        waited_seconds = asyncio.get_running_loop().time() - due.asked_at
        if waited_seconds > MAX_RESULT_AGE_SECONDS:
            try:
                result = await newest(due.query.shard)
            except HeadgateError:
                # Not an error of the tables: queries of the shard report it.
                return
            due = replace(due, result=result, as_of_ms=due.as_of_ms + round(waited_seconds * 1000))
        query, names = due.query, due.query.view
        response = partial(ExternalBacklogResponse, shard=query.shard, topic_id=query.topic_id)
        rows = _of_topic(due.result, query.topic_id)
        if not rows:
            return
        try:
            known = await self._count(due.tables, names, rows, query.shard)
        except HeadgateError as error:
            where = f"external.{names.topic}"
            text = str(error) if str(error).startswith(where) else f"{where}: {error}"
            self._counted[query.topic_key] = response(reason=text[:MAX_REASON_LENGTH], failing=True)
        else:
            count = Count(due.as_of_ms, {query.topic_id: topic_count(known)})
            history = append_count(self._histories.get(query.topic_key, ()), count)
            self._histories[query.topic_key] = history
            self._counted[query.topic_key] = response(
                rows=with_rates(known, rates(history, query.topic_id)),
                as_of_ms=due.as_of_ms,
                reason=unknown_reason(known, due.tables, names),
            )


def _of_topic(result: Result, topic_id: int) -> list[StateRow]:
    return [row for row in result.rows if row.topic_id == topic_id]
