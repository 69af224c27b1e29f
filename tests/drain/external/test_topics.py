"""Which queries need tables; what is told of a backlog, when it is counted, and whose fault is whose."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from drain.backlog.counting import JvmGoneError, RunError
from drain.backlog.merge import Backlog, StateRow, outstanding
from drain.backlog.results import Result
from drain.external.offset_facts import TableError
from drain.external.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from drain.external.topics import IDLE_FACTOR, NOT_MAPPED, NOT_YET, ExternalTopicCounter
from drain.protocol import MAX_REASON_LENGTH, DrainQuery, ExternalBacklogQuery

pytestmark = pytest.mark.looptime

ROWS = (
    StateRow(1, None, 0, sealed_end_offset=10),
    StateRow(1, 2, None, subscription_type="STREAM"),
    StateRow(1, 3, None, subscription_type="STREAM"),
    StateRow(7, None, 0, end_offset=4),
    StateRow(7, 8, None, subscription_type="STREAM"),
)
RESULT = Result(0, 5, ROWS)
ENTRIES = EntriesTable(path="p", segment="s", offset="o")
MAPPED = {"orders": ExternalTables(entries=ENTRIES), "clicks": ExternalTables(entries=ENTRIES)}


def names(topic: str = "orders", *, opaque: bool = False) -> ExternalView:
    return ExternalView(topic=topic, subscriptions={2: "billing"}, labels={0: "a"}, opaque=opaque)


def drain_query(topic: str | None = "orders", topic_id: int = 1, *, opaque: bool = False) -> DrainQuery:
    view = None if topic is None else names(topic, opaque=opaque)
    return DrainQuery(0, topic_id, 2, 0, frozenset({0}), 1, view)


ORDERS, CLICKS = ExternalBacklogQuery(0, 1, names()), ExternalBacklogQuery(0, 7, names("clicks"))


class Tables:
    """What a count returns, what it was asked, and the ledger that it is settled with."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.counts: list[tuple[float, str]] = []
        self.faults: dict[str, Exception] = {}
        self.takes_seconds = 0.0
        self.left = 10
        self.result: Result | Exception = RESULT
        self.runs = 0
        self.topics = ExternalTopicCounter(MAPPED, self.count)

    async def count(self, tables, view, rows, shard) -> tuple[Backlog, ...]:
        self.asked.append((view.topic, rows, shard))
        self.counts.append((asyncio.get_running_loop().time(), view.topic))
        await asyncio.sleep(self.takes_seconds)
        if view.topic in self.faults:
            raise self.faults[view.topic]
        return tuple(replace(row, end_offset=20, records=self.left) for row in outstanding(rows))

    async def newest(self, shard: int) -> Result:
        self.runs += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    @asynccontextmanager
    async def working(self):
        task = asyncio.get_running_loop().create_task(self.topics.work(self.newest))
        yield self
        task.cancel()
        await asyncio.wait({task})

    async def told(self, query: ExternalBacklogQuery = ORDERS, as_of_ms: int = 1000, *, wait: float = 0.0):
        """Ask, and ask again once that has been counted, without a second count."""
        self.topics.backlog(query, RESULT, as_of_ms)
        await asyncio.sleep(wait)
        await asyncio.sleep(0)
        found = self.topics.backlog(query, RESULT, as_of_ms)
        self.topics._due.clear()
        return found


@pytest.fixture
def tables() -> Tables:
    return Tables()


# --- what is drained --------------------------------------------------------------------------------------------------


def test_only_a_topic_with_tables_is_covered(tables: Tables) -> None:
    assert [True, False, False] == [
        tables.topics.needs_tables(drain_query(topic)) for topic in ("orders", "other", None)
    ]


def test_entries_of_an_opaque_topic_decide_nothing_but_a_table_that_cannot_be_counted_is_told() -> None:
    acknowledged = AcknowledgementsTable(path="p", segment="s", subscription="a", end_offset="e")
    topics = ExternalTopicCounter({"orders": ExternalTables(entries=ENTRIES)}, Tables().count)
    assert not topics.needs_tables(drain_query(opaque=True))
    topics = ExternalTopicCounter({"orders": ExternalTables(acknowledgements=acknowledged)}, Tables().count)
    assert topics.needs_tables(drain_query(opaque=True))


async def test_the_rows_of_one_subscription_come_from_the_topics_own_part_of_the_result(tables: Tables) -> None:
    found = await tables.topics.rows(drain_query(), RESULT)
    assert [(2, 0)] == [(row.subscription_id, row.segment) for row in found]
    assert [("orders", list(ROWS[:3]), 0)] == tables.asked


async def test_a_topic_that_the_ledger_does_not_show_yet_has_no_rows(tables: Tables) -> None:
    assert () == await tables.topics.rows(drain_query(topic_id=9), RESULT)
    assert [] == tables.asked


async def test_a_fault_is_told_to_whoever_asks_what_is_drained(tables: Tables) -> None:
    tables.faults["orders"] = TableError("external.orders.entries: rubbish")
    with pytest.raises(TableError, match="rubbish"):
        await tables.topics.rows(drain_query(), RESULT)


# --- backlogs ---------------------------------------------------------------------------------------------------------


async def test_the_first_who_asks_waits_for_nothing_and_the_next_is_told_the_count(tables: Tables) -> None:
    tables.takes_seconds = 30.0
    async with tables.working():
        first = tables.topics.backlog(ORDERS, RESULT, 1000)
        assert (first.rows, first.as_of_ms, first.reason, first.failing) == ([], None, NOT_YET, False)
        await asyncio.sleep(31)
        told = tables.topics.backlog(ORDERS, RESULT, 32_000)

    assert [(row.subscription_id, row.records, row.watermark) for row in told.rows] == [(2, 10, 5), (3, 10, 5)]
    assert (told.as_of_ms, told.reason) == (1000, "")


async def test_nothing_is_counted_that_nobody_asks_for(tables: Tables) -> None:
    async with tables.working():
        await asyncio.sleep(3600)
    assert tables.counts == []


async def test_a_topic_without_tables_is_told_from_the_ledger_and_never_counted(tables: Tables) -> None:
    async with tables.working():
        told = await tables.told(ExternalBacklogQuery(0, 7, names("other")), wait=1.0)
        unseen = await tables.told(ExternalBacklogQuery(0, 9, names()))

    assert ([row.records for row in told.rows], told.reason) == ([None], NOT_MAPPED)
    assert unseen.rows == []
    assert tables.counts == []


async def test_tables_take_a_fifth_of_the_session_however_often_one_asks(tables: Tables) -> None:
    tables.takes_seconds = 2.0
    async with tables.working():
        for _ in range(49):
            tables.topics.backlog(ORDERS, RESULT, 0)
            tables.topics.backlog(CLICKS, RESULT, 0)
            await asyncio.sleep(1)

    turns = [0, *((IDLE_FACTOR + 1) * 2 * at for at in range(1, 5))]
    assert tables.counts == list(zip(turns, ["orders", "clicks"] * 2 + ["orders"], strict=True)), "each in its turn"


async def test_a_count_that_had_to_wait_is_settled_with_the_ledger_as_it_is_by_then(tables: Tables) -> None:
    """Else what was stored since the query would count, and what was acknowledged since would not."""
    tables.takes_seconds = 2.0
    tables.result = Result(0, 6, ROWS[:2])
    async with tables.working():
        tables.topics.backlog(ORDERS, RESULT, 1000)
        tables.topics.backlog(CLICKS, RESULT, 1000)
        await asyncio.sleep(8)
        assert tables.runs == 0, "the first did not wait"
        tables.topics.backlog(ORDERS, RESULT, 9_000)
        await asyncio.sleep(5)
        told = tables.topics.backlog(ORDERS, RESULT, 14_000)

    assert tables.runs == 2
    assert [topic for _, topic in tables.counts] == ["orders", "orders"], "clicks is gone from the newer result"
    assert tables.asked[-1] == ("orders", list(ROWS[:2]), 0)
    assert (told.as_of_ms, told.rows[0].watermark) == (11_000, 6)


async def test_a_ledger_that_cannot_be_counted_is_no_fault_of_the_tables(tables: Tables) -> None:
    async with tables.working():
        await tables.told()
        tables.takes_seconds = 1.0
        tables.topics.backlog(CLICKS, RESULT, 0)
        tables.topics.backlog(ORDERS, RESULT, 0)
        tables.result = RunError("a hole in the ledger")
        await asyncio.sleep(100)
        told = tables.topics.backlog(ORDERS, RESULT, 0)

    assert (told.failing, len(told.rows)) == (False, 2)


async def test_a_fault_is_told_for_its_topic_alone_and_is_forgotten_once_mended(tables: Tables) -> None:
    tables.faults["orders"] = TableError("external.orders.entries (/srv/o): seq is null (1 times)")
    async with tables.working():
        broken, sound = await tables.told(ORDERS), await tables.told(CLICKS)
        tables.faults.clear()
        recovered = await tables.told(ORDERS)

    assert (broken.rows, broken.failing) == ([], True)
    assert broken.reason == "external.orders.entries (/srv/o): seq is null (1 times)"
    assert ([row.records for row in sound.rows], sound.failing) == ([10], False)
    assert ([row.records for row in recovered.rows], recovered.failing, recovered.reason) == ([10, 10], False, "")


async def test_a_run_that_fails_names_the_topic_and_its_text_is_bounded(tables: Tables) -> None:
    tables.faults["orders"] = RunError("the run took longer than 60 s " + "x" * 5000)
    async with tables.working():
        told = await tables.told()

    assert told.reason.startswith("external.orders: the run took longer than 60 s")
    assert len(told.reason) == MAX_REASON_LENGTH


async def test_rates_are_between_counts_of_the_tables_and_outlive_a_fault(tables: Tables) -> None:
    async with tables.working():
        await tables.told(as_of_ms=0)
        tables.faults["orders"] = TableError("broken for a moment")
        await tables.told(as_of_ms=5_000)
        tables.faults.clear()
        tables.left = 5
        told = await tables.told(as_of_ms=10_000)

    assert [(row.stored_per_second, row.acknowledged_per_second) for row in told.rows] == [(0.0, 0.5), (0.0, 0.5)]


async def test_a_jvm_that_is_gone_is_told_to_whoever_asks_next(tables: Tables) -> None:
    tables.faults["orders"] = JvmGoneError("gone")
    async with tables.working():
        tables.topics.backlog(ORDERS, RESULT, 0)
        await asyncio.sleep(1)
        with pytest.raises(JvmGoneError, match="gone"):
            tables.topics.backlog(CLICKS, RESULT, 0)


async def test_a_topic_that_is_gone_from_the_ledger_is_forgotten(tables: Tables) -> None:
    other_shard = ExternalBacklogQuery(4, 7, names("clicks"))
    async with tables.working():
        for query in (ORDERS, CLICKS, other_shard):
            await tables.told(query)
        tables.topics.remove_deleted_topics(Result(0, 6, ROWS[:3]))

    assert tables.topics._counted.keys() == {(0, 1), (4, 7)}
