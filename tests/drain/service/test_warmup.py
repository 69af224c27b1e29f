"""The warm-up of a fresh JVM."""

import pytest

from drain.backlog.counting import count_chunks
from drain.service import warmup

pytestmark = pytest.mark.spark


def test_the_warm_up_counts_a_chunk_as_a_run_does(spark, tmp_path, monkeypatch):
    records = []

    def recorded(session, ledger_url, due):
        (found,) = count_chunks(session, ledger_url, due).values()
        records.append(sum(item.row.records for item in found.rows))

    monkeypatch.setattr(warmup, "count_chunks", recorded)
    reported: list[str] = []
    warmup.warm_up(spark, tmp_path, reported.append)

    assert ([1] * warmup.RUNS, warmup.RUNS) == (records, len(reported))
    assert reported[-1] == "warm-up run 5 of 5 completed"
