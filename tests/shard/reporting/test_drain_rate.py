"""Rates at which blocking segments are acknowledged."""

from shard.reporting.drain_rate import WINDOW_SECONDS, DrainRate


def test_a_rate_covers_the_window():
    rate = DrainRate()
    for second in range(0, 100, 2):
        rate.add_sample(float(second), {0: second * 10, 1: 7})

    assert rate.rates() == {0: 10.0, 1: 0.0}


def test_samples_before_the_window_do_not_count():
    rate = DrainRate()
    rate.add_sample(0.0, {0: 0})
    for second in range(2, 200, 2):
        rate.add_sample(float(second), {0: 1000 if second < 100 else 1000 + second - 100})

    assert rate.rates()[0] == 1.0


def test_samples_too_close_together_give_no_rate():
    rate = DrainRate()
    rate.add_sample(0.0, {0: 0})
    rate.add_sample(1.75, {0: 50})

    assert rate.rates() == {}

    rate.add_sample(2.0, {0: 50})
    assert rate.rates() == {0: 25.0}


def test_a_seek_starts_a_new_window_and_unblocked_segments_are_dropped():
    rate = DrainRate()
    for second in (0.0, 10.0):
        rate.add_sample(second, {0: 100, 1: 0})
    rate.add_sample(20.0, {0: 5, 1: 0})

    assert 0 not in rate.rates()

    rate.add_sample(30.0, {0: 10})
    assert rate.rates() == {0: 0.5}


def test_old_samples_are_dropped_after_a_long_pause():
    rate = DrainRate()
    rate.add_sample(0.0, {0: 0})
    rate.add_sample(2 * WINDOW_SECONDS, {0: 9})

    assert rate.rates() == {}


def test_a_sample_is_due_every_two_seconds():
    rate = DrainRate()
    assert rate.is_due(0.0)
    rate.add_sample(0.0, {0: 0})

    assert not rate.is_due(1.75)
    assert rate.is_due(2.0)


def test_the_window_is_thirty_seconds_long():
    rate = DrainRate()
    rate.add_sample(100.0, {0: 0})
    rate.add_sample(130.0, {0: 60})
    assert rate.rates() == {0: 2.0}

    rate.add_sample(130.5, {0: 60})
    assert rate.rates() == {}


def test_a_count_that_falls_below_the_last_one_starts_a_new_window_although_it_has_risen_before():
    rate = DrainRate()
    for second, records in ((0.0, 0), (10.0, 100), (20.0, 50)):
        rate.add_sample(second, {0: records})

    assert rate.rates() == {}


def test_a_slow_rate_is_measured_too():
    rate = DrainRate()
    rate.add_sample(100.0, {0: 5})
    rate.add_sample(101.75, {0: 6})
    assert rate.rates() == {}

    rate.add_sample(102.0, {0: 6})
    assert rate.rates() == {0: 0.5}


def test_a_sample_too_close_to_the_last_one_does_not_count():
    rate = DrainRate()
    for second, records in ((0.0, 0), (2.0, 10), (3.0, 100)):
        rate.add_sample(second, {0: records})

    assert rate.rates() == {0: 5.0}
