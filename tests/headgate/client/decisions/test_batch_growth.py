"""Sizes of batches, from what is unanswered."""

import pytest

from headgate.client.decisions.session_batches import BatchGrowth


@pytest.mark.parametrize(
    ("accepted_bytes", "unanswered_bytes", "full_bytes", "leaves_after_bytes"),
    [
        (10_000, 0, 100, 0),
        (10_000, 403, 100, 0),
        (10_000, 404, 101, 101),
        (10_000, 1_000_000, 1600, 1600),
        (150, 1_000_000, 150, 150),
        (50, 1_000_000, 50, 0),
    ],
    ids=["idle", "little", "a quarter", "sixteen times", "as the broker accepts", "less than is wanted"],
)
def test_a_batch_gets_a_quarter_of_what_is_unanswered(accepted_bytes, unanswered_bytes, full_bytes, leaves_after_bytes):
    growth = BatchGrowth(100)
    growth.limit(accepted_bytes)
    growth.offered_bytes, growth.answered_bytes = 7000 + unanswered_bytes, 7000

    assert full_bytes == growth.full_bytes()
    assert (7000 + leaves_after_bytes if leaves_after_bytes else 0) == growth.leaves_at(full_bytes)
