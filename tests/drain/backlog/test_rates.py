"""Rates come from two counts about a minute apart, by the leader's clock."""

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

PLACE = (1, 2, 0)


def count(at_ms, stored, acknowledged, generation=0, place=PLACE):
    return Count(at_ms, {place: Counted(generation, stored, acknowledged)})


def history(*counts):
    found = ()
    for each in counts:
        found = append_count(found, each)
    return found


def test_a_rate_is_the_difference_to_a_count_a_minute_ago():
    counts = [count(second * 1000, stored=10 * second, acknowledged=4 * second) for second in range(0, 200, 5)]

    assert rates(history(*counts)) == {PLACE: Rates(10.0, 4.0)}


def test_a_change_shows_within_a_minute():
    before = [count(second * 1000, stored=100 * second, acknowledged=0) for second in range(0, 100, 5)]
    after = [count(second * 1000, stored=9500, acknowledged=0) for second in range(100, 160, 5)]

    assert rates(history(*before, *after))[PLACE].stored_per_second == 0


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([], id="never counted"),
        pytest.param([count(0, 5, 5)], id="counted once"),
        pytest.param([count(0, 5, 5), count(1999, 9, 9)], id="counted just before"),
        pytest.param([count(0, 5, 5), count(MAX_SPAN_MS + 1, 9, 9)], id="counted too long ago"),
        pytest.param([count(0, 5, 5), count(9000, 5, 1, generation=1)], id="sought in between"),
        pytest.param([count(0, 5, 5, place=(1, 9, 0)), count(9000, 5, 1)], id="a subscription that is new"),
    ],
)
def test_what_cannot_be_known_is_not_told(counts):
    assert rates(history(*counts)) == {}


def test_a_segment_that_is_new_began_at_nothing():
    counts = [count(0, 5, 5), Count(10_000, {PLACE: Counted(0, 5, 5), (1, 2, 7): Counted(0, 40, 20)})]

    assert rates(history(*counts))[1, 2, 7] == Rates(4.0, 2.0)


def test_after_a_seek_the_rate_is_known_again_from_the_counts_since():
    counts = [count(0, 5, 5), count(4000, 5, 0, generation=1), count(8000, 9, 8, generation=1)]

    assert rates(history(*counts)) == {PLACE: Rates(1.0, 2.0)}


def test_what_is_kept_is_bounded_however_often_it_is_counted():
    counts = history(*(count(at_ms, at_ms, at_ms) for at_ms in range(0, 10 * WINDOW_MS, 90)))

    assert len(counts) <= WINDOW_MS // MIN_SPACING_MS + 3
    assert counts[-1].at_ms - counts[0].at_ms >= WINDOW_MS
    assert rates(counts)[PLACE].stored_per_second == pytest.approx(1000)


def test_a_leader_whose_clock_is_behind_does_not_turn_time_back():
    counts = history(count(0, 0, 0), count(10_000, 10, 10), count(7000, 20, 20))

    assert [each.at_ms for each in counts] == [0, 10_000, 10_000]
    assert rates(counts) == {PLACE: Rates(2.0, 2.0)}


def test_what_is_not_tracked_has_no_rate():
    segment = StateRow(1, None, 0, records=4, end_offset=4)
    stream, checkpoint = (
        StateRow(1, at, None, subscription_type=kind) for at, kind in ((2, "STREAM"), (3, "CHECKPOINT"))
    )
    rows = outstanding((segment, stream, StateRow(1, 2, 0, position=3), checkpoint))

    assert count_of(7, rows) == Count(7, {PLACE: Counted(0, 4, 3)})
