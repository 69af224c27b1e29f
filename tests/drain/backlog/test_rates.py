"""Rates are computed from two counts about a minute apart, by the leader's clock."""

from __future__ import annotations

import pytest

from drain.backlog.merge import StateRow, outstanding
from drain.backlog.rates import (
    MAX_SPAN_MS,
    MIN_SPACING_MS,
    WINDOW_MS,
    Count,
    Counted,
    Rates,
    append_count,
    count_of,
    rates,
)

KEY = (1, 2, 0)


def count(at_ms, stored, acknowledged, generation=0, key=KEY):
    return Count(at_ms, {key: Counted(generation, stored, acknowledged)})


def history(*counts):
    found = ()
    for each in counts:
        found = append_count(found, each)
    return found


def test_a_rate_is_the_difference_to_a_count_a_minute_ago():
    counts = [count(second * 1000, stored=10 * second, acknowledged=4 * second) for second in range(0, 200, 5)]

    assert rates(history(*counts)) == {KEY: Rates(10.0, 4.0)}


def test_a_change_shows_within_a_minute():
    before = [count(second * 1000, stored=100 * second, acknowledged=0) for second in range(0, 100, 5)]
    after = [count(second * 1000, stored=9500, acknowledged=0) for second in range(100, 160, 5)]

    assert rates(history(*before, *after))[KEY].stored_per_second == 0


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([], id="never counted"),
        pytest.param([count(0, 5, 5)], id="counted once"),
        pytest.param([count(0, 5, 5), count(1999, 9, 9)], id="counted just before"),
        pytest.param([count(0, 5, 5), count(MAX_SPAN_MS + 1, 9, 9)], id="counted too long ago"),
        pytest.param([count(0, 5, 5), count(9000, 5, 1, generation=1)], id="a seek in between"),
        pytest.param([count(0, 5, 5, key=(1, 9, 0)), count(9000, 5, 1)], id="a new subscription"),
    ],
)
def test_unknown_rates_are_left_out(counts):
    assert rates(history(*counts)) == {}


def test_a_new_segment_started_at_zero():
    counts = [count(0, 5, 5), Count(10_000, {KEY: Counted(0, 5, 5), (1, 2, 7): Counted(0, 40, 20)})]

    assert rates(history(*counts))[1, 2, 7] == Rates(4.0, 2.0)


def test_after_a_seek_rates_follow_from_later_counts():
    counts = [count(0, 5, 5), count(4000, 5, 0, generation=1), count(8000, 9, 8, generation=1)]

    assert rates(history(*counts)) == {KEY: Rates(1.0, 2.0)}


def test_the_history_is_bounded():
    counts = history(*(count(at_ms, at_ms, at_ms) for at_ms in range(0, 10 * WINDOW_MS, 90)))

    assert len(counts) <= WINDOW_MS // MIN_SPACING_MS + 3
    assert counts[-1].at_ms - counts[0].at_ms >= WINDOW_MS
    assert rates(counts)[KEY].stored_per_second == pytest.approx(1000)


def test_a_leader_with_a_slow_clock_does_not_move_time_back():
    counts = history(count(0, 0, 0), count(10_000, 10, 10), count(7000, 20, 20))

    assert [each.at_ms for each in counts] == [0, 10_000, 10_000]
    assert rates(counts) == {KEY: Rates(2.0, 2.0)}


def test_untracked_keys_have_no_rate():
    segment = StateRow(1, None, 0, records=4, end_offset=4)
    stream, checkpoint = (
        StateRow(1, at, None, subscription_type=kind) for at, kind in ((2, "STREAM"), (3, "CHECKPOINT"))
    )
    rows = outstanding((segment, stream, StateRow(1, 2, 0, position=3), checkpoint))

    assert count_of(7, rows) == Count(7, {KEY: Counted(0, 4, 3)})
