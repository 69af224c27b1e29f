"""The rebalance benchmark: what it computes from a trace."""

import pytest

from bench.consume.rebalance import RebalanceTrace, compared, is_balanced, unread_seconds


@pytest.mark.parametrize(
    ("steps", "unread"),
    [
        ([], 0),
        ([(1.0, -1), (3.5, 1)], 2.5),
        ([(3.5, 1), (1.0, -1)], 2.5),
        ([(1.0, -1), (2.0, 1), (4.0, -1), (7.0, 1)], 4.0),
        ([(1.0, 1), (2.0, -1)], 0),
        ([(1.0, 1), (2.0, -1), (3.0, -1), (5.0, 1)], 2.0),
    ],
    ids=["untouched", "once", "out of order", "twice", "two holders", "two holders, then none"],
)
def test_unread_is_the_time_without_a_holder(steps: list[tuple[float, int]], unread: float) -> None:
    assert unread == unread_seconds(steps)


def test_a_segment_without_a_holder_at_the_end_is_refused() -> None:
    with pytest.raises(AssertionError, match="0 holders at the end"):
        unread_seconds([(1.0, -1)])


@pytest.mark.parametrize(
    ("held", "balanced"),
    [
        ([[0, 1], [2]], True),
        ([[0, 1], [2, 2]], False),
        ([[0, 1, 2], []], False),
        ([[0, 1], []], False),
    ],
    ids=["yes", "one twice", "uneven", "one missing"],
)
def test_balanced_means_every_segment_once_and_counts_within_one(held: list[list[int]], balanced: bool) -> None:
    assert balanced == is_balanced(held, 3)


def test_the_value_is_the_summed_unread_time_over_ours() -> None:
    def seen(*gaps: float) -> RebalanceTrace:
        found = RebalanceTrace(ended=19.0)
        for segment, gap in enumerate(gaps):
            found.record_released([segment], 1.0)
            found.record_acquired([segment], 1.0 + gap)
        found.record_released([0, 7], 19.5)
        return found

    measured = compared({"ours": [seen(0.5)], "stop": [seen(1.0, 1.0, 0.5)], "kazoo": [seen(10.0)]}, 3)

    assert 5.0 == measured.value
    assert (20.0, 1, 3) == tuple(measured.parts[p] for p in ("kazoo_over_ours", "ours_given_up", "stop_given_up"))
    assert 1000.0 == measured.parts["stop_unread_longest_ms"]
    assert 19000.0 == measured.parts["ours_balanced_after_ms"]
