"""Counting external topics: which queries need tables, when topics are counted, and how errors are reported."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from drain.backlog.merge import StateRow, outstanding
from drain.backlog.results import Result
from drain.external.known_files import TableError
from drain.external.topics import NOT_MAPPED, NOT_YET, ExternalTopicCounter
from drain.protocol import MAX_REASON_LENGTH, Backlog, BacklogRequest, DrainedRequest, DrainQuery, ExternalBacklogQuery
from drain.service.run_coalescer import RunCoalescer
from drain.spark.engines import JvmGoneError, RunError
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from headgate.errors import HeadgateError
from tests.drain.service.test_run_coalescer import STORED, Ledger, no_tables

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
    return ExternalView(topic=topic, labels={0: "a"}, opaque=opaque)


def drain_query(topic: str | None = "orders", topic_id: int = 1, *, opaque: bool = False) -> DrainQuery:
    view = None if topic is None else names(topic, opaque=opaque)
    return DrainQuery(0, topic_id, 2, 0, frozenset({0}), 1, view)


ORDERS, CLICKS = ExternalBacklogQuery(0, 1, names()), ExternalBacklogQuery(0, 7, names("clicks"))


class Tables:
    """A fake count, its calls, and the ledger's result."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.counts: list[tuple[float, str]] = []
        self.faults: dict[str, Exception] = {}
        self.takes_seconds = 0.0
        self.left = 10
        self.result: Result | Exception = RESULT
        self.runs = 0
        self.topics = ExternalTopicCounter(MAPPED, self.count)

    async def count(self, tables, view, rows, shard) -> tuple[Backlog, ...]:
        self.calls.append((view.topic, rows, shard))
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

    async def counted(self, query: ExternalBacklogQuery = ORDERS, as_of_ms: int = 1000, *, wait: float = 0.0):
        """Query, wait for the count, and return the reply to a second query, which is not counted."""
        self.topics.backlog(query, RESULT, as_of_ms)
        await asyncio.sleep(wait)
        await asyncio.sleep(0)
        found = self.topics.backlog(query, RESULT, as_of_ms)
        self.topics._due.clear()
        return found


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_only_a_topic_with_tables_needs_them(tables: Tables) -> None:
    assert [True, False, False] == [
        tables.topics.needs_tables(drain_query(topic)) for topic in ("orders", "other", None)
    ]


def test_of_an_opaque_topic_entries_are_not_needed_but_acknowledgements_are_rejected() -> None:
    acknowledged = AcknowledgementsTable(path="p", segment="s", subscription_id="a", end_offset="e")
    topics = ExternalTopicCounter({"orders": ExternalTables(entries=ENTRIES)}, Tables().count)
    assert not topics.needs_tables(drain_query(opaque=True))
    topics = ExternalTopicCounter({"orders": ExternalTables(acknowledgements=acknowledged)}, Tables().count)
    assert topics.needs_tables(drain_query(opaque=True))


async def test_a_topic_that_is_not_in_the_result_yet_has_no_rows(tables: Tables) -> None:
    assert () == await tables.topics.rows(drain_query(topic_id=9), RESULT)
    assert [] == tables.calls


async def test_an_error_is_reported_to_the_drain_query(tables: Tables) -> None:
    tables.faults["orders"] = TableError("external.orders.entries: rubbish")
    with pytest.raises(TableError, match="rubbish"):
        await tables.topics.rows(drain_query(), RESULT)


# Backlogs


async def test_the_first_query_does_not_wait_and_a_later_one_returns_the_count(tables: Tables) -> None:
    tables.takes_seconds = 30.0
    async with tables.working():
        first = tables.topics.backlog(ORDERS, RESULT, 1000)
        assert (first.rows, first.as_of_ms, first.reason, first.failing) == ([], None, NOT_YET, False)
        await asyncio.sleep(31)
        later = tables.topics.backlog(ORDERS, RESULT, 32_000)

    assert [(row.subscription_id, row.records) for row in later.rows] == [(2, 10), (3, 10)]
    assert (later.as_of_ms, later.reason) == (1000, "")


@pytest.mark.parametrize("other", [Result(0, 4, ROWS), Result(0, 5, ROWS, term_id=9)], ids=["shorter", "as long"])
async def test_a_count_does_not_outlast_its_ledger_that_was_put_back_to_an_older_state(tables, other) -> None:
    async with tables.working():
        assert (await tables.counted()).rows
        assert [] == tables.topics.backlog(ORDERS, other, 2000).rows
        await asyncio.sleep(1)
        assert tables.topics.backlog(ORDERS, other, 2000).rows


async def test_a_topic_rests_after_its_count_while_others_are_counted(tables: Tables) -> None:
    tables.takes_seconds = 10.0
    tables.faults["orders"] = TableError("rubbish")
    async with tables.working():
        for _ in range(120):
            tables.topics.backlog(ORDERS, RESULT, 0)
            tables.topics.backlog(CLICKS, RESULT, 0)
            await asyncio.sleep(1)

    assert [at for at, topic in tables.counts if topic == "clicks"] == [10.0, 60.0, 110.0]
    assert [at for at, topic in tables.counts if topic == "orders"] == [0.0, 50.0, 100.0]


async def test_a_topic_without_tables_is_reported_from_the_ledger(tables: Tables) -> None:
    async with tables.working():
        unmapped = await tables.counted(ExternalBacklogQuery(0, 7, names("other")), wait=1.0)
        unseen = await tables.counted(ExternalBacklogQuery(0, 9, names()))

    assert ([row.records for row in unmapped.rows], unmapped.reason) == ([None], NOT_MAPPED)
    assert unseen.rows == []
    assert tables.counts == []


async def test_an_error_of_the_ledger_is_not_reported_as_one_of_the_tables(tables: Tables) -> None:
    async with tables.working():
        await tables.counted()
        tables.takes_seconds = 1.0
        tables.topics.backlog(CLICKS, RESULT, 0)
        tables.topics.backlog(ORDERS, RESULT, 0)
        tables.result = RunError("a hole in the ledger")
        await asyncio.sleep(100)
        reply = tables.topics.backlog(ORDERS, RESULT, 0)

    assert (reply.failing, len(reply.rows)) == (False, 2)


async def test_an_error_is_reported_for_its_topic_only_until_a_count_succeeds(tables: Tables) -> None:
    tables.faults["orders"] = TableError("external.orders.entries (/srv/o): seq is null (1 times)")
    async with tables.working():
        broken, sound = await tables.counted(ORDERS), await tables.counted(CLICKS)
        tables.faults.clear()
        recovered = await tables.counted(ORDERS)

    assert (broken.rows, broken.failing) == ([], True)
    assert broken.reason == "external.orders.entries (/srv/o): seq is null (1 times)"
    assert ([row.records for row in sound.rows], sound.failing) == ([10], False)
    assert ([row.records for row in recovered.rows], recovered.failing, recovered.reason) == ([10, 10], False, "")


async def test_a_failed_run_names_the_topic_in_a_bounded_text(tables: Tables) -> None:
    tables.faults["orders"] = RunError("the run took longer than 60 s " + "x" * 5000)
    async with tables.working():
        reply = await tables.counted()

    assert reply.reason.startswith("external.orders: the run took longer than 60 s")
    assert len(reply.reason) == MAX_REASON_LENGTH


async def test_the_next_query_raises_if_the_jvm_is_gone(tables: Tables) -> None:
    tables.faults["orders"] = JvmGoneError("gone")
    async with tables.working():
        tables.topics.backlog(ORDERS, RESULT, 0)
        await asyncio.sleep(1)
        with pytest.raises(JvmGoneError, match="gone"):
            tables.topics.backlog(CLICKS, RESULT, 0)


# External topics, whose entries or acknowledgements are in tables: counted apart, and reported separately.


EXTERNAL_ROWS = (
    StateRow(5, None, 0, sealed_end_offset=9),
    StateRow(5, None, 1),
    StateRow(5, 6, None, subscription_type="STREAM"),
)
QUERY = ExternalBacklogQuery(0, 5, ExternalView(topic="orders", labels={0: "a", 1: "b"}))


async def test_a_bug_while_counting_tables_ends_the_worker() -> None:
    count = AsyncMock(side_effect=ZeroDivisionError)
    ledger = Ledger()
    ledger.rows = EXTERNAL_ROWS
    coalescer = RunCoalescer(ledger, ledger, external=ExternalTopicCounter({"orders": ExternalTables()}, count))
    await coalescer.__aenter__()
    await coalescer.reply(BacklogRequest(id=1, shard=0, now_ms=7000, external=[QUERY]))
    await asyncio.sleep(1)

    assert coalescer.worker.done()
    assert isinstance(coalescer.worker.exception().exceptions[0], ZeroDivisionError)


async def test_whether_a_topic_with_tables_is_drained_follows_from_its_tables() -> None:
    """Rows of the ledger alone would not say so: no acknowledgement is there."""
    drained_rows = outstanding(
        (*EXTERNAL_ROWS[:1], StateRow(5, 6, None, subscription_type="STREAM"), StateRow(5, 6, 0, position=9))
    )
    count = AsyncMock(return_value=drained_rows)
    ledger = Ledger()
    ledger.rows = EXTERNAL_ROWS
    tables = ExternalTables(entries=EntriesTable(path="p", segment="s", offset="o"))
    counter = ExternalTopicCounter({"orders": tables}, count)
    asked = DrainedRequest(id=1, query=DrainQuery(0, 5, 6, 0, frozenset({0}), 1, external=QUERY.view))
    async with RunCoalescer(ledger, ledger, external=counter) as coalescer:
        assert (await coalescer.reply(asked)).drained == {0: 9}


@pytest.mark.parametrize("fault", [HeadgateError("no such column"), JvmGoneError("gone")], ids=["tables", "JVM"])
async def test_a_topic_whose_tables_cannot_be_read_is_not_drained(fault: Exception) -> None:
    """The request gets the reason. Without the JVM there is no reply, so the service ends."""
    count = AsyncMock(side_effect=fault)
    ledger = Ledger()
    ledger.rows = EXTERNAL_ROWS
    tables = ExternalTables(entries=EntriesTable(path="p", segment="s", offset="o"))
    asked = DrainedRequest(id=1, query=DrainQuery(0, 5, 6, 0, frozenset({0}), 1, external=QUERY.view))
    async with RunCoalescer(ledger, ledger, external=ExternalTopicCounter({"orders": tables}, count)) as coalescer:
        with pytest.raises(type(fault), match=str(fault)):
            await coalescer.reply(asked)


async def test_tables_of_a_shard_that_cannot_be_counted_are_tried_again() -> None:
    """A topic that had to wait for its turn is counted from a new result."""
    counted = []

    async def count(tables, view, rows, shard):
        counted.append(rows)
        await asyncio.sleep(2)
        return outstanding(rows)

    ledger = Ledger()
    ledger.rows = EXTERNAL_ROWS
    tables = ExternalTables(entries=EntriesTable(path="p", segment="s", offset="o"))
    request = BacklogRequest(id=1, shard=0, now_ms=7000, external=[QUERY])
    async with RunCoalescer(ledger, ledger, external=ExternalTopicCounter({"orders": tables}, count)) as coalescer:

        async def request_during_a_count() -> None:
            await coalescer.reply(request)
            await asyncio.sleep(0.1)
            await coalescer.reply(request)

        await request_during_a_count()
        ledger.failures = {0: "a hole"}
        await asyncio.sleep(600)
        assert not coalescer.worker.done()
        assert len(counted) == 1
        ledger.failures = {}
        await request_during_a_count()
        ledger.rows = newer = (changed(EXTERNAL_ROWS[0], records=12), *EXTERNAL_ROWS[1:])
        await asyncio.sleep(600)
        assert counted[1:] == [list(EXTERNAL_ROWS), list(newer)]


async def test_without_tables_an_external_topic_is_reported_from_the_ledger() -> None:
    ledger = Ledger()
    ledger.rows = STORED + EXTERNAL_ROWS
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        response = await coalescer.reply(BacklogRequest(id=1, shard=0, now_ms=7000, external=[QUERY]))

    assert [(row.topic_id, row.records) for row in response.rows] == [(1, 4)]
    (external,) = response.external
    assert [(row.segment, row.records) for row in external.rows] == [(0, 9), (1, None)]
    assert (external.reason, external.as_of_ms) == (NOT_MAPPED, 7000)
