"""The backlog benchmarks: what they compute from measured values, and their synthetic ledger."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.backlog import backlog_growth, backlog_scan
from bench.harness.benchmark import Rounds
from bench.harness.facts_ledger import RECORD_EVERY, SEGMENTS, SUBSCRIPTIONS, FactsLedger
from drain.spark.chunks import LedgerChunks

ROWS = 1_024


def test_growth_is_the_longest_over_the_shortest_of_each_round():
    measured = backlog_growth.compared(
        {1: [1.0, 2.0, 1.0], 10: [9.0, 9.0, 9.0], 100: [1.5, 2.0, 1.2]}, {1: 2.0, 10: 20.0, 100: 200.0}
    )

    assert measured.value == 1.2
    assert measured.parts["incremental_10x_ms"] == 9000
    assert measured.parts["full_100x_ms"] == 200_000
    assert (measured.parts["lowest"], measured.parts["highest"]) == (1.0, 1.5)


def test_a_scan_is_compared_with_the_faster_peer_and_two_cores_with_one():
    rounds = Rounds({"ours": [4.0, 4.0], "spark": [3.0, 3.0], "duckdb": [2.0, 2.0], "polars": [1.0, 3.0]})
    measured = backlog_scan.compared(rounds, [8.0], rows=100)

    assert measured.value == 0.5
    assert (measured.parts["best_peer"], measured.parts["second_core"]) == ("duckdb", 2.0)
    assert measured.parts["ours_rows_per_second"] == 25
    assert (measured.parts["spark_alone"], measured.parts["ours_of_spark"]) == (0.667, 0.75)


async def test_the_job_accepts_the_synthetic_ledger(tmp_path: Path):
    ledger = FactsLedger(tmp_path / "long")
    ledger.grow(ROWS)
    ledger.grow(ROWS)
    short = FactsLedger(tmp_path / "short")
    short.copy_chunks(ledger, 2, ROWS)
    short.grow(ROWS)

    chunks = LedgerChunks(short.url)
    assert await chunks.newer_than(0, 0) == range(1, 4)
    await chunks.check(0, [1, 2, 3])
    assert short.path(3).read_bytes() == ledger.path(3).read_bytes()
    rows = [row for number in (2, 3) for row in pq.read_table(ledger.path(number), partitioning=None).to_pylist()]
    records = [row for row in rows if row["fact"] == "record"]
    assert len(records) == 2 * ROWS // RECORD_EVERY
    assert [row["fact"] for row in rows[:ROWS]] == sorted(row["fact"] for row in rows[:ROWS]), "records come last"
    for segment in range(SEGMENTS):
        offsets = [row["offset"] for row in records if row["segment"] == segment]
        assert offsets == list(range(len(offsets)))
    readers = {(row["subscription_id"], row["segment"]) for row in rows if row["fact"] == "acknowledged"}
    assert len(readers) == SEGMENTS * SUBSCRIPTIONS


@pytest.mark.parametrize("rows", [1, 500])
def test_rows_that_cannot_be_divided_evenly_are_refused(rows: int, tmp_path: Path):
    with pytest.raises(AssertionError, match="divided evenly"):
        FactsLedger(tmp_path).grow(rows)
