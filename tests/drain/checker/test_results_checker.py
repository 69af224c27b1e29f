"""The checker that reads published results: immediate, monotonic and never too early. No Spark."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from drain.backlog.merge import StateRow
from drain.backlog.results import Result, publish_result, result_path
from drain.checker.results_checker import TABLES_NOT_READ, ResultsChecker
from drain.protocol import BacklogRequest, CountedLedger, DrainCheckError, DrainQuery, ExternalBacklogQuery
from drain.table_mapping import ExternalView
from metrics.events import DrainCheckFailed, DrainWatermarkAdvanced
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.ledgers import RandomLedger, counted_by_hand

STALE_SECONDS = 120.0


def rows(position: int, *, sealed: int | None = 4, generation: int = 0) -> tuple[StateRow, ...]:
    """One topic with one segment of four records, and one subscription at ``position``."""
    return (
        StateRow(1, None, 0, records=4, end_offset=4, sealed_end_offset=sealed),
        StateRow(1, 2, None, subscription_type="STREAM", seek_generation=generation),
        StateRow(1, 2, 0, position=position, seek_generation=generation),
    )


def query(chunk: int = 1, *, shard: int = 0, generation: int = 0) -> DrainQuery:
    return DrainQuery(shard, 1, 2, generation, frozenset({0, 7}), chunk)


class CheckerFixture:
    """A checker, its store, and the states and results that it reported."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.states: list[tuple[str, str]] = []
        self.results = 0
        self.observer = RecordingObserver()
        self.checker = ResultsChecker(
            self.store,
            stale_seconds=STALE_SECONDS,
            observer=self.observer,
            on_state=lambda *state: self.states.append(state),
            on_result=self._count,
            url="file:///results",
        )

    def _count(self) -> None:
        self.results += 1

    async def publish(self, watermark: int, position: int, *, ledger_id: str = "", **more: int) -> None:
        await publish_result(self.store, Result(0, watermark, rows(position, **more), ledger_id=ledger_id))


async def test_results_of_another_ledger_are_refused_and_the_last_own_one_stays_in_use():
    fixture = CheckerFixture()

    def require(counted: CountedLedger) -> None:
        if counted.ledger_id != "own":
            raise DrainCheckError(f"{counted.url} counts {counted.ledger_id}", "wrong_ledger")

    fixture.checker.require_ledger = require
    await fixture.publish(3, 4, ledger_id="other")
    async with fixture.checker as checker:
        with pytest.raises(DrainCheckError, match="counts other"):
            await checker.drained(query(3))
        assert fixture.states[-1] == ("degraded", "file:///results counts other")
        await fixture.publish(4, 4, ledger_id="own")
        await asyncio.sleep(6)
        assert (await checker.drained(query(3))).drained == {0: 4}
        await fixture.publish(5, 0, ledger_id="other")
        await asyncio.sleep(6)

        assert (await checker.drained(query(3))).watermark == 4
    reasons = {each.reason for each in fixture.observer.of(DrainCheckFailed)}
    assert reasons == {"wrong_ledger"}, "an alert fires"
    assert fixture.observer.of(DrainWatermarkAdvanced) == [DrainWatermarkAdvanced(shard=0, chunk=4)]


async def test_a_drained_segment_is_reported_however_far_the_ledger_has_grown():
    fixture = CheckerFixture()
    await fixture.publish(3, 4)
    async with fixture.checker as checker:
        assert (await checker.drained(query(3))).drained == {0: 4}
        assert (await checker.drained(query(5_000))).drained == {0: 4}


async def test_without_a_result_a_query_fails():
    fixture = CheckerFixture()
    async with fixture.checker as checker:
        with pytest.raises(DrainCheckError, match=r"no result of shard 3 has been published at .*headgate drain job"):
            await checker.drained(query(shard=3))


async def test_a_stopped_job_is_reported_once_a_query_needs_a_newer_result():
    fixture = CheckerFixture()
    await fixture.publish(3, 3)
    async with fixture.checker as checker:
        await checker.drained(query(3))
        await asyncio.sleep(10 * STALE_SECONDS)
        assert {state for state, _ in fixture.states} == {"ready"}, "no query needs more"

        await checker.drained(query(40))
        await asyncio.sleep(STALE_SECONDS + 20)
        assert fixture.states[-1][0] == "degraded"
        assert "shard 0 is counted to chunk 3, chunk 40 is needed" in fixture.states[-1][1]

        await fixture.publish(10, 3)
        await asyncio.sleep(10)
        assert fixture.states[-1][0] == "ready", "the job is behind, but it runs"


async def test_results_are_polled_seldom_while_no_query_waits_for_a_newer_one():
    fixture = CheckerFixture()
    await fixture.publish(3, 3)
    async with fixture.checker as checker:
        await checker.drained(query(3))
        await asyncio.sleep(3600)
        assert fixture.store.calls["names"] < 80
        assert fixture.store.calls["read"] == 1
        assert (await checker.drained(query(4))).watermark == 3
        await asyncio.sleep(4)
        await fixture.publish(4, 4)
        await asyncio.sleep(6)

        assert (await checker.drained(query(4))).drained == {0: 4}


async def test_an_external_topic_is_reported_from_the_ledger_without_its_tables():
    fixture = CheckerFixture()
    external_rows = (StateRow(7, None, 0), StateRow(7, None, 1, sealed_end_offset=4), StateRow(7, 8, None))
    named = ExternalView(topic="orders", labels={0: "a", 1: "b"})
    tracked = replace(external_rows[2], subscription_type="STREAM")
    await publish_result(fixture.store, Result(0, 3, (*rows(3), *external_rows[:2], tracked), at_ms=900))
    async with fixture.checker as checker:
        found = await checker.backlog(BacklogRequest(shard=0, external=[ExternalBacklogQuery(0, 7, named)]))

    assert {row.topic_id for row in found.rows} == {1}
    (external,) = found.external
    assert [(row.segment, row.records) for row in external.rows] == [(0, None), (1, 4)]
    assert (external.reason, external.as_of_ms, external.failing) == (TABLES_NOT_READ, 900, False)


async def test_an_unreadable_result_is_reported_and_ignored():
    fixture = CheckerFixture()
    await fixture.publish(3, 4)
    async with fixture.checker as checker:
        assert (await checker.drained(query())).drained == {0: 4}
        fixture.store.objects[result_path(0, 9)] = b"rubbish"
        await asyncio.sleep(10)

        assert fixture.states[-1] == ("degraded", fixture.states[-1][1])
        assert "backlog/shard=0000/000000000009.parquet is not a readable Parquet object" in fixture.states[-1][1]
        assert (await checker.drained(query())).drained == {0: 4}
        assert (await checker.backlog(BacklogRequest(shard=0))).watermark == 3
        with pytest.raises(DrainCheckError, match="no result of shard 5"):
            await checker.backlog(BacklogRequest(shard=5))

        del fixture.store.objects[result_path(0, 9)]
        await asyncio.sleep(10)
        assert "no result of shard 5 has been published" in fixture.states[-1][1]


def backlogs(state: ShardState) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return (topic, subscription, segment, generation) → (records left, whether it is sealed)."""
    return {row[:4]: row[4:6] for row in counted_by_hand(state)}


@pytest.mark.parametrize("seed", range(2))
def test_a_segment_that_is_drained_at_a_generation_stays_drained(seed: int, tmp_path: Path):
    ledger = RandomLedger(tmp_path, seed)
    before: set[tuple[object, ...]] = set()
    checked = 0
    for _ in range(60):
        ledger.grow(1)
        now = backlogs(ledger.state)
        assert {now[key] for key in before if key in now} <= {(0, True)}
        before = {key for key, (left, sealed) in backlogs(ledger.state).items() if sealed and left == 0}
        checked += len(before)
    assert checked > 10, "too few drained segments to test anything"
