"""The drain release benchmark: what it computes from measured values."""

import pytest

from bench.consume.drain_release import BENCHMARK, compared, drains_seconds, polling_waits


def test_polling_alone_notices_a_drain_at_the_first_poll_after_it():
    # Polls at 2, 6, 14, 30, 62, 126, 254, 510, 1022, 1922, 2822, 3722 s.
    assert polling_waits([1.0, 2.0, 2.5, 100.0, 1023.0, 3600.0]) == pytest.approx([1.0, 0.0, 3.5, 26.0, 899.0, 122.0])


def test_drains_are_evenly_distributed_over_the_logarithm():
    drains = drains_seconds()

    assert (round(drains[0], 6), round(drains[-1], 6)) == (1.0, 3600.0)
    assert round(drains[len(drains) // 2], 6) == 60.0


def test_each_size_has_the_same_weight_and_a_slow_release_misses_its_part():
    measured = compared({1: [1.0], 10: [2.0] * 10, 100: [4.0] * 100}, [0.5], [0.6])

    assert measured.value == pytest.approx(float(measured.parts["polling_median_ms"]) / 1000 / 2.0, rel=1e-3)
    assert BENCHMARK.missed_parts(measured) == ["allowed_over_ours"]
