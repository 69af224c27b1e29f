"""Comparison of incremental results with a full count, also on a real ledger with real Spark."""

import asyncio
import json
from dataclasses import replace

import pytest

from drain import command_line
from drain.backlog.job import BacklogJob, count_on
from drain.backlog.merge import StateRow
from drain.backlog.results import Result, encode_result, read_result, result_path
from drain.backlog.verify import compared, main, report, verify
from drain.spark.chunks import LedgerChunks
from tests.support.samples.ledgers import RandomLedger

ROWS = (StateRow(1, None, 0, records=4, size_bytes=40, end_offset=4, timestamp_index=((0, 10),)), StateRow(1, 2, None))
RESULT = Result(3, 9, ROWS, at_ms=7)


def test_equal_results_have_no_differences():
    verdict = compared(3, RESULT, RESULT)

    assert (verdict.watermark, verdict.rows, verdict.backlogs, verdict.differences) == (9, 2, 1, [])
    assert report([verdict], {}, as_json=False) == [
        "shard 3: to chunk 9, 2 rows and 1 backlogs (0 records outstanding): no differences"
    ]


def test_each_differing_value_is_reported_with_both_values():
    changed = Result(3, 9, (replace(ROWS[0], records=5, timestamp_index=((0, 11),)), *ROWS[1:]), at_ms=8)
    found = compared(3, RESULT, changed).differences

    assert {(each.where, each.column, each.incremental, each.full_count) for each in found} == {
        ("topic 1 segment 0", "records", "4", "5"),
        ("topic 1 segment 0", "timestamp_index", "((0, 10),)", "((0, 11),)"),
        ("chunk 9", "at_ms", "7", "8"),
    }
    lines = report([compared(3, RESULT, changed)], {}, as_json=False)
    assert lines[0].endswith("3 differences")
    assert any(line.startswith("shard 3, topic 1 segment 0: records is 4 incrementally, and 5") for line in lines)


def test_other_topics_are_left_out_if_one_is_requested():
    changed = Result(3, 9, (*ROWS, StateRow(5, None, 0, records=1)), at_ms=7)

    assert compared(3, RESULT, changed, topic_id=1).differences == []
    assert compared(3, RESULT, changed).differences != []


def test_the_json_report_is_one_document():
    document = json.loads(report([compared(3, RESULT, RESULT)], {4: "gone"}, as_json=True)[0])

    assert (document["same"], document["shards"][0]["shard"], document["failures"]) == (False, 3, {"4": "gone"})


@pytest.fixture
def counted(spark, tmp_path):
    ledger = RandomLedger(tmp_path / "ledger", seed=5)

    chunks = LedgerChunks(ledger.url)
    return ledger, BacklogJob(chunks, count_on(spark, chunks))


@pytest.mark.spark
async def test_a_real_ledger_has_no_differences(counted):
    """Even while it grows: the full count ends at the same chunk as the incremental one."""
    ledger, job = counted
    ledger.grow(20)
    await verify(job, [0])
    ledger.grow(20)

    def grow(_):
        ledger.grow(2)

    (verdict,), failures = await verify(job, [0], progress=grow)

    assert (verdict.differences, failures) == ([], {})
    assert verdict.watermark == 43
    assert verdict.backlogs > 4


@pytest.mark.spark
def test_a_changed_result_is_detected(counted, spark, monkeypatch, capsys):
    ledger, job = counted
    ledger.grow(5)
    asyncio.run(verify(job, [0]))
    watermark = ledger.state.chunk
    good = asyncio.run(read_result(LedgerChunks(ledger.url).store, 0, watermark))
    rows = (replace(good.rows[0], records=good.rows[0].records + 1), *good.rows[1:])
    (ledger.root / result_path(0, watermark)).write_bytes(encode_result(replace(good, rows=rows)))
    built = []
    monkeypatch.setattr(command_line, "build_session", lambda **settings: built.append(settings) or spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    assert main(["--ledger", ledger.url, "--conf", "spark.a=1"]) == 1
    assert built[0]["extra"] == {"spark.a": "1"}
    output = capsys.readouterr()
    assert "records" in output.out
    assert "counting" in output.err
