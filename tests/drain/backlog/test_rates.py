"""Rates are computed from two counts about a minute apart, by the leader's clock."""

import pytest

from drain.backlog.rates import MIN_SPACING_MS, WINDOW_MS, Count, Counted, Rates, TopicCount, append_count
from drain.backlog.rates import rates as rates_of_topic

KEY = (1, 2, 0)


def rates(counts):
    return rates_of_topic(counts, topic_id=1)


def count_of(at_ms, by_key):
    return Count(at_ms, {1: TopicCount(by_key, {key[1]: counted.seek_generation for key, counted in by_key.items()})})


def count(at_ms, stored, acknowledged, generation=0, key=KEY):
    return count_of(at_ms, {key: Counted(generation, stored, acknowledged)})


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


def test_the_newest_count_that_is_a_minute_old_is_compared():
    counts = history(count(0, 0, 0), count(1000, 61, 0), count(30_000, 61, 0), count(60_999, 61, 0))
    assert rates(counts) == {KEY: Rates(pytest.approx(1000 * 61 / 60_999), 0.0)}

    counts = append_count(counts, count(61_000, 121, 0))
    assert rates(counts) == {KEY: Rates(1.0, 0.0)}


def test_a_topic_that_has_changed_within_the_minute_has_rates():
    rests = count(30_000, 60, 0).by_topic[1]
    assert rates((count(0, 0, 0), Count(30_000, {1: rests}), Count(60_000, {1: rests}))) == {KEY: Rates(1.0, 0.0)}


def test_counts_that_fell_have_a_rate_of_zero():
    """A leader may count less than the one before it: what was pruned is gone."""
    assert rates(history(count(0, 7, 7), count(5000, 4, 3))) == {KEY: Rates(0.0, 0.0)}


def test_a_new_segment_started_at_zero():
    counts = [count(0, 5, 5), count_of(10_000, {KEY: Counted(0, 5, 5), (1, 2, 7): Counted(0, 40, 20)})]

    assert rates(history(*counts))[1, 2, 7] == Rates(4.0, 2.0)


def test_after_a_seek_rates_follow_from_later_counts():
    counts = [count(0, 5, 5), count(4000, 5, 0, generation=1), count(8000, 9, 8, generation=1)]

    assert rates(history(*counts)) == {KEY: Rates(1.0, 2.0)}


def test_the_history_is_bounded():
    counts = history(*(count(at_ms, at_ms, at_ms) for at_ms in range(0, 10 * WINDOW_MS, 90)))

    assert len(counts) <= WINDOW_MS // MIN_SPACING_MS + 3
    assert counts[-1].at_ms - counts[0].at_ms >= WINDOW_MS
    assert rates(counts)[KEY].stored_per_second == pytest.approx(1000)


def test_counts_less_than_a_second_apart_replace_each_other():
    assert [each.at_ms for each in history(count(0, 0, 0), count(999, 1, 1), count(2000, 2, 2))] == [0, 2000]
    assert [each.at_ms for each in history(count(0, 0, 0), count(1000, 1, 1), count(2000, 2, 2))] == [0, 1000, 2000]


def test_a_leader_with_a_slow_clock_does_not_move_time_back():
    counts = history(count(0, 0, 0), count(10_000, 10, 10), count(7000, 20, 20))

    assert [each.at_ms for each in counts] == [0, 10_000, 10_000]
    assert rates(counts) == {KEY: Rates(2.0, 2.0)}


def test_the_rates_of_a_topic_that_has_not_changed_are_zero_for_all_its_keys():
    unchanged = TopicCount({KEY: Counted(0, 4, 3), (1, 2, 7): Counted(0, 1, 1)}, {2: 0})

    assert rates((Count(0, {1: unchanged}), Count(5000, {1: unchanged}))) == dict.fromkeys(
        unchanged.by_key, Rates(0.0, 0.0)
    )
    assert rates((Count(0, {1: unchanged}), Count(1999, {1: unchanged}))) == {}
