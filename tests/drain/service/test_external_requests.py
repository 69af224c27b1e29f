"""External topics, whose entries or acknowledgements are in tables: counted apart, and reported separately."""

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from drain.backlog.merge import StateRow, outstanding
from drain.external.topics import NOT_MAPPED, ExternalTopicCounter
from drain.protocol import BacklogRequest, DrainedRequest, DrainQuery, ExternalBacklogQuery
from drain.service.run_coalescer import RunCoalescer
from drain.spark.engines import JvmGoneError
from drain.table_mapping import EntriesTable, ExternalTables, ExternalView
from headgate.errors import HeadgateError
from tests.drain.service.test_run_coalescer import STORED, Ledger, no_tables

pytestmark = pytest.mark.looptime

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
        ledger.rows = newer = (replace(EXTERNAL_ROWS[0], records=12), *EXTERNAL_ROWS[1:])
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
