"""Answers from results that somebody else publishes: at once, for ever, and never too early. No Spark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.state.shard_state import ShardState
from drain.backlog.merge import StateRow
from drain.backlog.results import Result, publish_result, result_path
from drain.checker.results_checker import TABLES_NOT_READ, ResultsChecker
from drain.external.table_mapping import ExternalView
from drain.protocol import DrainCheckError, DrainQuery, ExternalBacklogQuery
from tests.support.ledgers import RandomLedger, counted_by_hand
from tests.support.object_store import FakeStore

pytestmark = pytest.mark.looptime
STALE_SECONDS = 120.0


def rows(position: int, *, sealed: int | None = 4, generation: int = 0) -> tuple[StateRow, ...]:
    """One topic with one segment of four records, and one subscription that has come to ``position``."""
    return (
        StateRow(1, None, 0, records=4, end_offset=4, sealed_end_offset=sealed),
        StateRow(1, 2, None, subscription_type="STREAM", seek_generation=generation),
        StateRow(1, 2, 0, position=position, seek_generation=generation),
    )


def query(chunk: int = 1, *, shard: int = 0, generation: int = 0) -> DrainQuery:
    return DrainQuery(shard, 1, 2, generation, frozenset({0, 7}), chunk)


class Told:
    """What the checker told, and the store that it reads."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.states: list[tuple[str, str]] = []
        self.results = 0
        self.checker = ResultsChecker(
            self.store,
            stale_seconds=STALE_SECONDS,
            on_state=lambda *state: self.states.append(state),
            on_result=self._count,
        )

    def _count(self) -> None:
        self.results += 1

    async def publish(self, watermark: int, position: int, **more: int) -> None:
        await publish_result(self.store, Result(0, watermark, rows(position, **more)))


async def test_what_a_result_says_is_drained_is_answered_however_far_the_ledger_went_on():
    told = Told()
    await told.publish(3, 4)
    async with told.checker as checker:
        assert await checker.drained(query(3)) == frozenset({0})
        assert await checker.drained(query(5_000)) == frozenset({0})


@pytest.mark.parametrize(
    ("result", "asked"),
    [
        (rows(3), query()),
        (rows(4, sealed=None), query()),
        (rows(4), query(generation=1)),
        (rows(4, generation=1), query()),
    ],
    ids=["a record is left", "not sealed", "before a seek", "after another seek"],
)
async def test_anything_else_is_not_drained_yet(result, asked):
    told = Told()
    await publish_result(told.store, Result(0, 3, result))
    async with told.checker as checker:
        assert await checker.drained(asked) == frozenset()


async def test_whoever_waits_is_told_of_a_newer_result():
    told = Told()
    await told.publish(3, 3)
    async with told.checker as checker:
        assert await checker.drained(query(4)) == frozenset()
        await asyncio.sleep(60)
        seen = told.results
        await told.publish(4, 4)
        await asyncio.sleep(6)

        assert told.results == seen + 1
        assert await checker.drained(query(4)) == frozenset({0})
        assert [row.drained for row in (await checker.backlog([0], 0)).rows] == [True]


async def test_without_any_result_nothing_is_known_and_nothing_is_drained():
    told = Told()
    async with told.checker as checker:
        with pytest.raises(DrainCheckError, match="no result of shard 3 has been published yet"):
            await checker.drained(query(shard=3))


async def test_a_job_that_has_stopped_is_told_once_somebody_waits_for_it(looptime):
    told = Told()
    await told.publish(3, 3)
    async with told.checker as checker:
        await checker.drained(query(3))
        await asyncio.sleep(10 * STALE_SECONDS)
        assert {state for state, _ in told.states} == {"ready"}, "nobody waits for more"

        await checker.drained(query(40))
        await asyncio.sleep(STALE_SECONDS + 20)
        assert told.states[-1][0] == "degraded"
        assert "shard 0 is counted to chunk 3, chunk 40 is needed" in told.states[-1][1]

        await told.publish(10, 3)
        await asyncio.sleep(10)
        assert told.states[-1][0] == "ready", "it is behind, but it runs"


async def test_of_an_external_topic_results_tell_what_the_ledger_knows_and_that_tables_are_not_read():
    told = Told()
    elsewhere = (StateRow(7, None, 0), StateRow(7, None, 1, sealed_end_offset=4), StateRow(7, 8, None))
    named = ExternalView(topic="orders", subscriptions={8: "billing"}, labels={0: "a", 1: "b"})
    tracked = replace(elsewhere[2], subscription_type="STREAM")
    await publish_result(told.store, Result(0, 3, (*rows(3), *elsewhere[:2], tracked), at_ms=900))
    async with told.checker as checker:
        found = await checker.backlog([0], 0, [ExternalBacklogQuery(0, 7, named), ExternalBacklogQuery(5, 7, named)])

    assert {row.topic_id for row in found.rows} == {1}
    (external,) = found.external
    assert [(row.segment, row.records) for row in external.rows] == [(0, None), (1, 4)]
    assert (external.reason, external.as_of_ms, external.failing) == (TABLES_NOT_READ, 900, False)


async def test_a_result_that_cannot_be_read_changes_nothing_but_is_told():
    told = Told()
    await told.publish(3, 4)
    async with told.checker as checker:
        assert await checker.drained(query()) == frozenset({0})
        told.store.objects[result_path(0, 9)] = b"rubbish"
        await asyncio.sleep(10)

        assert told.states[-1] == ("degraded", told.states[-1][1])
        assert "backlog/shard=0000/000000000009.parquet cannot be read" in told.states[-1][1]
        assert await checker.drained(query()) == frozenset({0})
        assert (await checker.backlog([0, 5], 0)).watermarks == {0: 3}
        assert list((await checker.backlog([0, 5], 0)).failures) == [5]

        del told.store.objects[result_path(0, 9)]
        await asyncio.sleep(10)
        assert told.states[-1][0] == "ready"


async def test_an_outage_of_the_store_is_an_answer_and_not_a_wait():
    told = Told()
    told.store.outage()
    async with told.checker as checker:
        with pytest.raises(DrainCheckError, match="out of reach"):
            await checker.drained(query())


def places(state: ShardState) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return (topic, subscription, segment, generation) → (records left, whether it is sealed)."""
    return {row[:4]: row[4:6] for row in counted_by_hand(state)}


def drained_places(state: ShardState) -> set[tuple[object, ...]]:
    return {place for place, (left, sealed) in places(state).items() if sealed and left == 0}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_drained_at_a_generation_stays_drained(seed: int, tmp_path: Path):
    """The reason why an old result may be answered from."""
    ledger = RandomLedger(tmp_path, seed)
    before: set[tuple[object, ...]] = set()
    tried = 0
    for _ in range(60):
        ledger.grow(1)
        now = places(ledger.state)
        assert {now[place] for place in before if place in now} <= {(0, True)}
        before = drained_places(ledger.state)
        tried += len(before)
    assert tried > 10, "hardly anything was drained, so hardly anything was tried"
