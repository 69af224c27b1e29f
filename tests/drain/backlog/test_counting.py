"""Counting real chunks on real Spark: every chunk is counted, or the run fails."""

from operator import attrgetter

import pytest

from drain.backlog import counting
from drain.backlog.aggregates import UnknownTypeError
from drain.backlog.counting import count_chunks
from drain.backlog.job import BacklogJob, count_on
from drain.backlog.merge import outstanding
from drain.spark.chunks import LedgerChunks
from drain.spark.engines import RunError
from tests.support.samples.ledgers import RandomLedger, WrittenLedger, counted_by_hand

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", range(3))
async def test_incremental_counts_a_full_count_and_the_state_agree(spark, tmp_path, seed):
    ledger = RandomLedger(tmp_path, seed)
    chunks = LedgerChunks(ledger.url)
    job = BacklogJob(chunks, count_on(spark, chunks))
    for size in (1, 9, 25):
        ledger.grow(size)
        outcome = await job.run([0])

        assert outcome.failures == {}
        fields = attrgetter(
            "topic_id", "subscription_id", "segment", "seek_generation", "records", "sealed", "oldest_ms"
        )
        assert counted_by_hand(ledger.state) == set(map(fields, outstanding(outcome.results[0].rows)))
    full = await BacklogJob(chunks, count_on(spark, chunks), max_chunks_per_job=16).run([0], full=True)

    assert outcome.results == full.results
    assert outcome.results[0].at_ms == ledger.state.chunk * 1000


@pytest.mark.parametrize("empty_chunks", [0, 1, 3])
def test_an_empty_chunk_does_not_hide_later_ones(spark, tmp_path, empty_chunks):
    ledger = WrittenLedger(tmp_path)
    for _ in range(empty_chunks):
        ledger.barrier()
    topic_id = ledger.topic()
    ledger.commit()
    ledger.barrier()
    ledger.store(topic_id, 0, 5)
    ledger.commit()
    ledger.barrier()
    last = ledger.state.chunk

    found = count_chunks(spark, ledger.url, {0: range(1, last + 1)})
    assert sum(item.row.records for item in found[0].rows) == 5
    found = count_chunks(spark, ledger.url, {0: range(last, last + 1)})
    assert ([], last * 1000) == (found[0].rows, found[0].at_ms)


def test_a_count_without_every_chunk_is_rejected(spark, tmp_path, monkeypatch):
    """The watermark would skip the missing ones permanently."""
    ledger = RandomLedger(tmp_path, seed=1)
    ledger.grow(5)
    count = counting.aggregate_chunks
    monkeypatch.setattr(counting, "aggregate_chunks", lambda *given: count(*given[:2], {0: range(1, 3)}))

    with pytest.raises(RunError, match="counted 2 of the 6 chunks of shard 0: the count is discarded"):
        count_chunks(spark, ledger.url, {0: range(1, 7)})


def test_an_error_of_a_task_is_one_line(spark, tmp_path, monkeypatch):
    ledger = RandomLedger(tmp_path, seed=1)

    def contributions(facts):
        raise UnknownTypeError("this version does not know the subscription type SHARED")

    monkeypatch.setattr(counting, "contributions", contributions)
    with pytest.raises(RunError, match=r"^Spark could not count: this version does not know .* type SHARED$"):
        count_chunks(spark, ledger.url, {0: range(1, 2)})
