"""Rates of the segments that hold others back."""

from coordinator.reporting.drain_rate import SAMPLE_INTERVAL_SECONDS, WINDOW_SECONDS, DrainRate


def test_a_rate_is_what_was_acknowledged_over_the_window():
    progress = DrainRate()
    for second in range(0, 100, 2):
        progress.add_sample(float(second), {0: second * 10, 1: 7})

    assert progress.rates() == {0: 10.0, 1: 0.0}


def test_only_the_window_counts():
    progress = DrainRate()
    progress.add_sample(0.0, {0: 0})
    for second in range(2, 200, 2):
        progress.add_sample(float(second), {0: 1000 if second < 100 else 1000 + second - 100})

    assert progress.rates()[0] == 1.0


def test_one_moment_is_no_rate():
    progress = DrainRate()
    progress.add_sample(0.0, {0: 0})
    progress.add_sample(SAMPLE_INTERVAL_SECONDS / 2, {0: 50})

    assert progress.rates() == {}


def test_a_seek_begins_a_new_window_and_what_blocks_no_more_is_forgotten():
    progress = DrainRate()
    for second in (0.0, 10.0):
        progress.add_sample(second, {0: 100, 1: 0})
    progress.add_sample(20.0, {0: 5, 1: 0})

    assert 0 not in progress.rates()

    progress.add_sample(30.0, {0: 10})
    assert progress.rates() == {0: 0.5}


def test_after_a_long_pause_the_old_samples_are_gone():
    progress = DrainRate()
    progress.add_sample(0.0, {0: 0})
    progress.add_sample(2 * WINDOW_SECONDS, {0: 9})

    assert progress.rates() == {}
