"""The warm-up of a fresh JVM."""

from __future__ import annotations

from collections import Counter

import pytest

from drain.backlog.counting import aggregate_chunks, aggregation_plan
from drain.service import warmup

pytestmark = pytest.mark.spark


def test_the_warm_up_counts_with_both_readers(spark, tmp_path, monkeypatch):
    readers = Counter()

    def recorded(session, ledger_url, batches):
        plan = aggregation_plan(session, ledger_url, batches)._jdf.queryExecution().executedPlan().toString()
        readers["workers" if "MapInArrow" in plan else "this process"] += 1
        (rows,) = aggregate_chunks(session, ledger_url, batches).values()
        assert sum(item.row.records for item in rows) == 1

    monkeypatch.setattr(warmup, "aggregate_chunks", recorded)
    reported: list[str] = []
    warmup.warm_up(spark, tmp_path, reported.append)

    assert readers == {"this process": warmup.RUNS, "workers": warmup.RUNS}
    assert len(reported) == 2 * warmup.RUNS
    assert reported[-1] == "warm-up run 6 of 6 completed"
