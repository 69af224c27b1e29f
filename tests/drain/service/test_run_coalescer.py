"""Coalescing of requests, and reports that repeat what has not changed."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from drain.backlog.counting import Counted
from drain.backlog.job import BacklogJob, RunOutcome
from drain.backlog.merge import StateRow
from drain.backlog.rates import with_rates
from drain.backlog.results import Result
from drain.external.topics import ExternalTopicCounter
from drain.protocol import Backlog, BacklogRequest, DrainedRequest, DrainQuery
from drain.service import run_coalescer
from drain.service.processor_share import PATIENCE_SECONDS
from drain.service.run_coalescer import RunCoalescer, is_counted
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import JvmGoneError, RunError
from headgate.ledger.objects import chunk_folder
from tests.support.fakes.memory_ledger import LedgerInMemory

STORED = (StateRow(1, None, 0, end_offset=4), StateRow(1, 2, None, subscription_type="STREAM"))


class Ledger:
    """A ledger of a certain length, and a job that counts it."""

    def __init__(self) -> None:
        self.length = 10
        self.runs: list[list[int]] = []
        self.run_seconds = 0.0
        self.fault: Exception | None = None
        self.rows: tuple[StateRow, ...] = ()
        self.failures: dict[int, str] = {}

    async def run(self, shards: Sequence[int], *, up_to: Mapping[int, int]) -> RunOutcome:
        assert list(up_to) == list(shards)
        self.runs.append(list(shards))
        await asyncio.sleep(self.run_seconds)
        if isinstance(self.fault, JvmGoneError):
            raise self.fault
        results = {shard: Result(shard, self.length, self.rows) for shard in shards if shard not in self.failures}
        return RunOutcome(results=results, failures=self.failures)

    async def end_after(self, shard: int, number: int) -> int:
        return self.length


def no_tables() -> ExternalTopicCounter:
    """Counts no topic, because none has tables."""
    count: Any = None
    return ExternalTopicCounter({}, count)


def query(shard: int = 0) -> DrainedRequest:
    return DrainedRequest(id=1, query=DrainQuery(shard, 1, 2, 0, frozenset({0}), 1))


async def test_requests_that_arrive_during_a_run_share_the_next_one() -> None:
    ledger = Ledger()
    ledger.run_seconds = 1
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer, asyncio.TaskGroup() as tasks:
        for shard in range(5):
            tasks.create_task(coalescer.reply(query(shard)))
            await asyncio.sleep(0.1)

    assert ledger.runs == [[0], [1, 2, 3, 4]]


async def test_a_shard_that_cannot_be_counted_fails_only_the_requests_that_named_it() -> None:
    ledger = Ledger()
    ledger.failures = {1: "a hole"}
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        replies = (coalescer.reply(query(shard)) for shard in (0, 1))
        counted, failed = await asyncio.gather(*replies, return_exceptions=True)

    assert counted.watermark == ledger.length
    assert (type(failed), str(failed)) == (RunError, "a hole")


async def test_a_cancelled_request_does_not_cancel_the_run_for_the_others() -> None:
    ledger = Ledger()
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        cancelled, other = (asyncio.ensure_future(coalescer.reply(query(shard))) for shard in (0, 1))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await other).watermark == ledger.length


async def test_an_idle_process_counts_nothing() -> None:
    ledger = Ledger()
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        await coalescer.reply(query())
        ledger.length += 1000
        await asyncio.sleep(3600)

    assert coalescer.runs == len(ledger.runs) == 1, "the answer to a ping contains their number"


@asynccontextmanager
async def counting(kept: LedgerInMemory) -> AsyncIterator[RunCoalescer]:
    """A coalescer that counts a ledger without Spark."""
    chunks = LedgerChunks("memory:///")
    chunks.store = kept.store

    async def count(due: Mapping[int, range]) -> dict[int, Counted]:
        return {shard: Counted((), numbers[-1]) for shard, numbers in due.items()}

    async with RunCoalescer(BacklogJob(chunks, count), chunks, external=no_tables()) as coalescer:
        yield coalescer


async def test_a_process_that_learns_the_head_counts_to_it_and_lists_no_chunks() -> None:
    kept = LedgerInMemory(137)
    listed = kept.store.names = AsyncMock(side_effect=kept.store.names)  # type: ignore[method-assign]
    async with counting(kept) as coalescer:
        counted = await asyncio.gather(*map(coalescer.reply, (query(), BacklogRequest(shard=0, written_to=7))))
        kept.grow()
        to_the_end = await coalescer.reply(BacklogRequest(shard=0))
    assert ([7, 7], 138) == ([each.watermark for each in counted], to_the_end.watermark)
    assert not [each for each in listed.await_args_list if each.args[0] == chunk_folder(0)]


async def test_a_run_for_two_questions_counts_to_the_chunk_of_the_one_that_asks_for_more() -> None:
    kept = LedgerInMemory(137)
    for heads, end in {(0, 7): 137, (7, 0): 137, (7, 3): 7, (3, 7): 7}.items():
        async with counting(kept) as coalescer:
            questions = (BacklogRequest(shard=0, written_to=head) for head in heads)
            counted = await asyncio.gather(*map(coalescer.reply, questions))
        kept.store.objects = {path: data for path, data in kept.store.objects.items() if "backlog" not in path}
        assert [end, end] == [each.watermark for each in counted]


async def test_an_hour_of_backlog_requests_to_an_idle_ledger_costs_no_request_to_the_store() -> None:
    kept = LedgerInMemory(5)
    async with counting(kept) as coalescer:

        async def ask(now_ms: int) -> tuple[int, int]:
            chunk, at_ms, term = kept.state.chunk, kept.state.at_ms, kept.state.terms.newest_id
            request = BacklogRequest(shard=0, now_ms=now_ms, written_to=chunk, written_at_ms=at_ms, term_id=term)
            reply = await coalescer.reply(request)
            return reply.watermark, reply.as_of_ms

        assert await ask(1) == (5, 5)
        await asyncio.sleep(150)
        counted = dict(kept.store.calls)
        for round_ in range(240):
            assert await ask(15_000 * (round_ + 1)) == (5, 15_000 * (round_ + 1))
            await asyncio.sleep(15)
        assert kept.store.calls == counted
        kept.grow()

        assert await ask(15_000) == (6, 15_000)


@pytest.mark.parametrize(
    ("ledger_id", "written_to", "at_ms", "term", "expected"),
    [
        ("a", 7, 9, 3, True),
        ("a", 8, 9, 3, 0),
        ("a", 6, 9, 3, 0),
        ("b", 7, 9, 3, 0),
        ("a", 7, 8, 3, 0),
        ("a", 7, 9, 4, 0),
    ],
    ids=["the same", "a later chunk", "an earlier chunk", "another ledger", "another history", "while its clock waits"],
)
def test_only_a_count_of_just_the_chunks_of_the_leader_is_used_again(
    ledger_id: str, written_to: int, at_ms: int, term: int, expected: bool
) -> None:
    request = BacklogRequest(shard=0, ledger_id=ledger_id, written_to=written_to, written_at_ms=at_ms, term_id=term)

    assert is_counted(request, Result(0, 7, (), at_ms=9, ledger_id="a", term_id=3)) == expected
    assert not is_counted(BacklogRequest(shard=0), Result(0, 0, ()))


async def test_rows_are_made_again_only_for_topics_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[set[int]] = []

    def recorded(backlogs: Sequence[Backlog], known: Any) -> list[Backlog]:
        made.append({each.topic_id for each in backlogs})
        return with_rates(backlogs, known)

    monkeypatch.setattr(run_coalescer, "with_rates", recorded)
    ledger = Ledger()
    resting = tuple(replace(row, topic_id=7) for row in STORED)
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        for round_ in range(4):
            ledger.rows = (replace(STORED[0], end_offset=4 + round_), STORED[1], *resting)
            response = await coalescer.reply(BacklogRequest(id=1, shard=0, now_ms=round_ * 15_000))
            assert [(row.topic_id, row.records) for row in response.rows] == [(1, 4 + round_), (7, 4)]

    # Once more for the one that rests: its rates are unknown at first, and then 0.
    assert made == [{1}, {7}, {1}, {7}, {1}, {1}]


async def test_a_dead_jvm_fails_the_requests_that_wait_for_it_and_a_later_one_may_succeed() -> None:
    ledger = Ledger()
    ledger.fault = JvmGoneError("gone")
    async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
        for _ in range(2):
            with pytest.raises(JvmGoneError, match="gone"):
                await coalescer.reply(query())
        ledger.fault = None
        assert (await coalescer.reply(query())).watermark == ledger.length


async def test_closing_during_a_run_ends_the_run_and_the_requests_that_wait() -> None:
    ledger = Ledger()
    ledger.run_seconds = 3600
    async with asyncio.timeout(60):
        async with RunCoalescer(ledger, ledger, external=no_tables()) as coalescer:
            waiting = [asyncio.ensure_future(coalescer.reply(query(0)))]
            await asyncio.sleep(1)
            waiting.append(asyncio.ensure_future(coalescer.reply(query(1))))
            await asyncio.sleep(1)
        ended = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
    assert ledger.runs == [[0]]


async def test_little_of_the_processor_is_taken_while_no_drain_check_waits() -> None:
    """From the first run on; a count that takes long gets everything, and so do one that a check waits for, and the end."""
    ledger, taken = Ledger(), list[tuple[float, bool]]()
    now = asyncio.get_running_loop().time

    def take(everything: bool) -> None:
        taken.append((round(now()), everything))

    async with RunCoalescer(ledger, ledger, external=no_tables(), take_share=take) as coalescer:
        await coalescer.reply(BacklogRequest(shard=0))
        await asyncio.sleep(9)
        await asyncio.gather(coalescer.reply(query()), coalescer.reply(query(1)))
        await asyncio.sleep(5)
        assert taken == [(1, False), (9, True), (10, False)]

        taken.clear()
        ledger.run_seconds = PATIENCE_SECONDS + 4
        asked_at, _ = round(now()), await coalescer.reply(BacklogRequest(shard=0))
        await asyncio.sleep(2)
    assert [(at - asked_at, everything) for at, everything in taken] == [(3, True), (8, False), (9, True)]
