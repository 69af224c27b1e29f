"""The benchmark of security: what it computes from measured values."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.cluster.security_cost import BENCHMARK, compared, digest_seconds, processor_seconds
from bench.harness.benchmark import Rounds

LATENCIES = {"open": [0.010] * 98 + [0.020] * 2, "secured": [0.011] * 98 + [0.040] * 2}


def test_the_digests_reduce_the_ratio_of_throughputs() -> None:
    """The rounds take 0.9 s and 1 s, and 100 batches of 1 ms are a tenth of the second."""
    rounds = Rounds({"open": [0.9, 0.9, 9.0], "secured": [1.0, 1.0, 1.0]})

    measured = compared(rounds, rounds, LATENCIES, count=5000, digest_seconds=0.001)

    assert measured.value == pytest.approx(0.9 * 0.9)
    assert measured.parts["open_records_a_second"] == 5556
    assert (measured.parts["transport_and_access"], measured.parts["digest_share"]) == (0.9, 0.1)


def test_latencies_are_compared_at_the_median_and_at_p99() -> None:
    rounds = Rounds({"open": [1.0, 1.0], "secured": [1.0, 1.0]})

    measured = compared(rounds, rounds, LATENCIES, count=5000, digest_seconds=0.0)

    assert (measured.parts["latency"], measured.parts["latency_p99"]) == (0.9091, 0.5)
    assert ["latency_p99"] == BENCHMARK.missed_parts(measured)


def test_pairs_are_compared_in_time_and_in_processor_time() -> None:
    """A slow minute of the machine falls on both rounds of a pair, so their ratio stays the same."""
    rounds = Rounds({"open": [0.9, 9.0, 0.8, 1.0], "secured": [1.0, 10.0, 1.0, 1.0]})
    processors = Rounds({"open": [0.5, 0.5, 0.5, 0.5], "secured": [1.0, 1.0, 1.0, 2.0]})

    parts = compared(rounds, processors, LATENCIES, count=5000, digest_seconds=0.0).parts

    assert (parts["transport_and_access"], parts["rounds"], parts["processor_time"]) == (0.9, 4, 0.5)
    assert (parts["lower_quartile"], parts["upper_quartile"]) == (0.825, 0.975)


def test_the_processor_time_of_a_process_is_that_of_all_its_threads() -> None:
    def work() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    with ThreadPoolExecutor(1) as threads:
        before = processor_seconds(os.getpid())
        threads.submit(work).result()
        assert processor_seconds(os.getpid()) - before >= 0.05


def test_a_digest_takes_time() -> None:
    assert 0 < digest_seconds() < 1
