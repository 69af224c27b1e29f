"""Rates at which blocking segments are acknowledged; tests of shared segments have those of several consumers."""

import pytest

from shard.reporting.drain_rate import WINDOW_SECONDS, DrainRate

Sample = tuple[float, dict[int, int]]
"""Time, and segment → its acknowledged records."""
SAMPLES: dict[str, tuple[list[Sample], dict[int, float]]] = {
    "over the window": ([(float(at), {0: at * 10, 1: 7}) for at in range(0, 100, 2)], {0: 10.0, 1: 0.0}),
    "nothing before the window": (
        [(0.0, {0: 0}), *((float(at), {0: 1000 if at < 100 else 900 + at}) for at in range(2, 200, 2))],
        {0: 1.0},
    ),
    "samples too close": ([(0.0, {0: 0}), (1.75, {0: 50})], {}),
    "the later of samples too close": ([(0.0, {0: 0}), (1.75, {0: 50}), (2.0, {0: 50})], {0: 25.0}),
    "no sample too close to the last one": ([(0.0, {0: 0}), (2.0, {0: 10}), (3.0, {0: 100})], {0: 5.0}),
    "a slow one": ([(100.0, {0: 5}), (102.0, {0: 6})], {0: 0.5}),
    "a new window after a seek": ([(0.0, {0: 100, 1: 0}), (20.0, {0: 5, 1: 0}), (30.0, {0: 10})], {0: 0.5}),
    "a fall after a rise": ([(0.0, {0: 0}), (10.0, {0: 100}), (20.0, {0: 50})], {}),
    "after a long pause": ([(0.0, {0: 0}), (2 * WINDOW_SECONDS, {0: 9})], {}),
    "nothing read before": (
        [*((float(at), {0: 5}) for at in range(0, 30, 2)), (30.0, {0: 9}), (32.0, {0: 13})],
        {0: 2.0},
    ),
    "of thirty seconds": ([(100.0, {0: 0}), (130.0, {0: 60})], {0: 2.0}),
    "of no more": ([(100.0, {0: 0}), (130.0, {0: 60}), (130.5, {0: 60})], {}),
}


@pytest.mark.parametrize(("samples", "rates"), SAMPLES.values(), ids=SAMPLES.keys())
def test_a_rate_follows_from_the_samples_of_its_window(samples: list[Sample], rates: dict[int, float]):
    rate = DrainRate()
    for at, acknowledged in samples:
        rate.add_sample(at, acknowledged)

    assert rate.rates() == rates


def test_a_sample_is_due_every_two_seconds():
    rate = DrainRate()
    assert rate.is_due(0.0)
    rate.add_sample(0.0, {0: 0})

    assert not rate.is_due(1.75)
    assert rate.is_due(2.0)
