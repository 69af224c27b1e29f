"""Which questions need tables, and what is told when one is at fault."""

from __future__ import annotations

from typing import Any

import pytest

from drain.external_facts import TableError
from drain.external_tables import ExternalTables, ExternalView
from drain.external_topics import ExternalTopics
from drain.protocol import DrainQuestion
from drain.results import Result
from drain.settlement import StateRow, outstanding

ROWS = (
    StateRow(1, None, 0, sealed_end_offset=10),
    StateRow(1, 2, None, subscription_type="STREAM"),
    StateRow(1, 3, None, subscription_type="STREAM"),
    StateRow(7, None, 0),
)
RESULT = Result(0, 5, ROWS)


def question(topic: str | None = "orders", topic_id: int = 1) -> DrainQuestion:
    names = None if topic is None else ExternalView(topic=topic, subscriptions={2: "billing"}, labels={0: "a"})
    return DrainQuestion(0, topic_id, 2, 0, frozenset({0}), 1, names)


class Tables:
    """What a count returns, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.fault: Exception | None = None

    async def count(self, tables, view, rows, shard):
        self.asked.append((view.topic, rows, shard))
        if self.fault is not None:
            raise self.fault
        return outstanding(rows)


def test_only_a_topic_with_tables_is_covered() -> None:
    topics = ExternalTopics({"orders": ExternalTables()}, Tables().count)

    assert [True, False, False] == [topics.covers(question(topic)) for topic in ("orders", "other", None)]


async def test_the_rows_of_one_subscription_come_from_the_topics_own_part_of_the_result() -> None:
    tables = Tables()
    topics = ExternalTopics({"orders": ExternalTables()}, tables.count)

    assert [(2, 0)] == [(row.subscription_id, row.segment) for row in await topics.rows(question(), RESULT)]
    assert [("orders", list(ROWS[:3]), 0)] == tables.asked


async def test_a_topic_that_the_ledger_does_not_show_yet_has_no_rows() -> None:
    tables = Tables()

    assert () == await ExternalTopics({"orders": ExternalTables()}, tables.count).rows(question(topic_id=9), RESULT)
    assert [] == tables.asked


async def test_a_fault_is_told_and_the_last_count_stays() -> None:
    tables = Tables()
    topics = ExternalTopics({"orders": ExternalTables()}, tables.count)
    await topics.rows(question(), RESULT)
    before = dict(topics.last)
    tables.fault = TableError("external.orders.entries: rubbish")
    with pytest.raises(TableError, match="rubbish"):
        await topics.rows(question(), RESULT)

    assert before == topics.last
    assert {(0, 1)} == before.keys()
