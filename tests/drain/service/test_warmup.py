"""What a fresh JVM is made to do before it is asked."""

from __future__ import annotations

from collections import Counter

import pytest

from drain.backlog.counting import aggregate_chunks, aggregation_plan
from drain.service import warmup

pytestmark = pytest.mark.spark


def test_both_ways_to_count_are_warm_when_it_is_done(spark, tmp_path, monkeypatch):
    ways = Counter()

    def noted(session, source, batches):
        plan = aggregation_plan(session, source, batches)._jdf.queryExecution().executedPlan().toString()
        ways["scan" if "FileScan" in plan else "few"] += 1
        (rows,) = aggregate_chunks(session, source, batches).values()
        assert sum(item.row.records for item in rows) == 1

    monkeypatch.setattr(warmup, "aggregate_chunks", noted)
    warmup.warm_up(spark, tmp_path)

    assert ways == {"few": warmup.RUNS, "scan": warmup.RUNS}
