"""The deduplication window stores the last finished batches unchanged."""

import sys

import pytest

from headgate.model import entries as e
from shard.state.dedup_window import FinishedBatch, FinishedBatches

WINDOW = 128  # docs/protocol.md


def batch(sequence: int) -> FinishedBatch:
    return FinishedBatch(sequence, 100 + sequence, 7, b"d" * 16, [e.Placement(1, 0, 65535, 7 * sequence, 2)])


def test_batches_are_returned_unchanged_and_the_oldest_is_dropped():
    finished = FinishedBatches(map(batch, range(WINDOW)))
    finished.append(FinishedBatch(WINDOW, 900, 7, b"", []))

    assert len(finished) == WINDOW
    assert finished[0] == batch(1)
    assert finished[-2] == batch(WINDOW - 1)
    assert finished[-1] == FinishedBatch(WINDOW, 900, 7, b"", [])
    assert finished.oldest_chunk == 101
    assert [known.sequence for known in finished] == list(range(1, WINDOW + 1))


def test_windows_with_equal_batches_are_equal():
    assert FinishedBatches([batch(0)]) == FinishedBatches([batch(0)])
    assert FinishedBatches([batch(0)]) != FinishedBatches([batch(1)])
    assert FinishedBatches([batch(0)]) != [batch(0)]
    assert repr(FinishedBatches([batch(0)])) == f"FinishedBatches([{batch(0)!r}])"


def test_clearing_removes_all_batches():
    finished = FinishedBatches([batch(0)])
    finished.clear()

    assert not finished
    with pytest.raises(IndexError):
        finished[0]


def test_a_batch_needs_less_than_a_hundred_bytes():
    """100,000 producers with full windows need 1.1 GB."""
    large = FinishedBatch(2**31, 2**31, 2**31, b"d" * 16, [e.Placement(300, 0, 65535, 2**31, 100)])
    finished = FinishedBatches([large])

    assert sys.getsizeof(finished._packed[0]) < 100


def test_a_restored_window_has_the_same_batches():
    finished = FinishedBatches([batch(0), batch(1)])
    restored = FinishedBatches(packed=finished.pack())
    restored.append(batch(2))

    assert [batch(0), batch(1), batch(2)] == list(restored)
    assert FinishedBatches([batch(0), batch(1), batch(2)]) == restored
    assert restored.pack() == FinishedBatches([batch(0), batch(1), batch(2)]).pack()
