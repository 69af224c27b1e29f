"""The benchmark of security: what it computes from measured values."""

import pytest

from bench.harness.benchmark import Rounds
from bench.security_cost import BENCHMARK, compared, digest_seconds

LATENCIES = {"open": [0.010] * 98 + [0.020] * 2, "secured": [0.011] * 98 + [0.040] * 2}


def test_the_digests_reduce_the_ratio_of_throughputs() -> None:
    """The rounds take 0.9 s and 1 s, and 100 batches of 1 ms are a tenth of the second."""
    rounds = Rounds({"open": [0.9, 0.9, 9.0], "secured": [1.0, 1.0, 1.0]})

    measured = compared(rounds, LATENCIES, count=5000, digest_seconds=0.001)

    assert measured.value == pytest.approx(0.9 * 0.9)
    assert measured.parts["open_records_a_second"] == 5556
    assert (measured.parts["transport_and_access"], measured.parts["digest_share"]) == (0.9, 0.1)


def test_latencies_are_compared_at_the_median_and_at_p99() -> None:
    rounds = Rounds({"open": [1.0], "secured": [1.0]})

    measured = compared(rounds, LATENCIES, count=5000, digest_seconds=0.0)

    assert (measured.parts["latency"], measured.parts["latency_p99"]) == (0.9091, 0.5)
    assert ["latency_p99"] == BENCHMARK.missed_parts(measured)


def test_a_digest_takes_time() -> None:
    assert 0 < digest_seconds() < 1
