"""Answer for topics whose entries or acknowledgements are tables of their own (drain.external_tables).

Each question that needs tables reads them anew, one count after the other on the one session. What was counted last
stays in memory when a table is at fault; who asks what is drained is told the fault, and keeps the gate shut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from drain.external_tables import ExternalTables, ExternalView
from drain.protocol import DrainQuestion
from drain.results import Result
from drain.settlement import Backlog, StateRow

CountExternal = Callable[[ExternalTables, ExternalView, Sequence[StateRow], int], Awaitable[tuple[Backlog, ...]]]
"""(tables, names, the topic's rows of the ledger's result, shard) → its backlog; raises TableError or RunError."""


class ExternalTopics:
    """The external topics of one process."""

    def __init__(self, tables: Mapping[str, ExternalTables], count: CountExternal) -> None:
        """``tables``: topic → where its entries and acknowledgements stand."""
        self._tables = tables
        self._count = count
        self.last: dict[tuple[int, int], tuple[Backlog, ...]] = {}
        """(shard, topic) → what was counted last without a fault."""

    def covers(self, question: DrainQuestion) -> bool:
        """Return whether tables have to be read to answer."""
        return question.external is not None and question.external.topic in self._tables

    async def rows(self, question: DrainQuestion, result: Result) -> tuple[Backlog, ...]:
        """Return the backlog of the subscription that is asked about; raises TableError, RunError or JvmGoneError."""
        view = question.external
        assert view is not None, "a question without names"
        rows = [row for row in result.rows if row.topic_id == question.topic_id]
        if not rows:
            return ()
        counted = await self._count(self._tables[view.topic], view, rows, question.shard)
        self.last[question.shard, question.topic_id] = counted
        return tuple(row for row in counted if row.subscription_id == question.subscription_id)
