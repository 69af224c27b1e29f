"""What the benchmark of planned transfers computes from the latencies that it observed."""

from __future__ import annotations

import pytest

from bench.cluster.planned_transfer import BENCHMARK, compared

USUAL = [0.004, 0.006, 0.005]


def test_what_a_transfer_adds_to_the_usual_send_is_reported_and_the_largest_has_a_goal_too() -> None:
    graceful = compared([0.045, 0.105, 0.065], USUAL)
    one_noticed = compared([0.045, 0.205, 0.065], USUAL)

    assert graceful.value == pytest.approx(60)
    assert (graceful.parts["least_extra_ms"], graceful.parts["most_extra_ms"]) == (40, 100)
    assert BENCHMARK.meets_all_goals(graceful)
    assert one_noticed.value == graceful.value
    assert ["most_extra_ms"] == BENCHMARK.missed_parts(one_noticed)
