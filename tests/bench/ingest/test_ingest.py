"""The ingestion benchmarks: what they compute from measured values. Two that are cheap run as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.ingest import ingest_cpu, ingest_idempotence, ingest_latency, ingest_object_store

ROOT = Path(__file__).parents[3]


def test_idempotence_reports_the_worse_depth_and_each_percentile() -> None:
    seconds = {
        (1, True): [0.011] * 98 + [0.05] * 2,
        (1, False): [0.010] * 98 + [0.02] * 2,
        (16, True): [0.10] * 100,
        (16, False): [0.10] * 100,
    }

    measured = ingest_idempotence.compared(seconds)

    assert measured.value == pytest.approx(1.1)
    assert measured.parts["p99_ratio_depth_1"] == 2.5
    assert ["value", "p99_ratio_depth_1"] == ingest_idempotence.BENCHMARK.missed(measured)


def test_latency_adds_network_and_disk_of_the_same_turn() -> None:
    measured = ingest_latency.compared(
        {
            "ours": [0.006] * 10,
            "way": [0.001] * 5 + [0.003] * 5,
            "put": [0.003] * 5 + [0.001] * 5,
            "alone": [0.002] * 10,
        }
    )

    assert measured.value == pytest.approx(1.5)
    assert measured.parts["p50_ratio"] == 1.5


def test_processor_time_is_compared_round_by_round() -> None:
    measured = ingest_cpu.compared({"leader": [0.002, 0.004, 0.009], "client": [0.001] * 3, "bare": [0.001] * 3})

    assert measured.value == pytest.approx(4)
    assert (4000.0, 1000.0, 9.0) == tuple(measured.parts[part] for part in ("leader_us", "client_us", "highest"))


def test_a_bucket_is_compared_by_percentiles_and_its_requests_are_priced() -> None:
    busy = {"puts": 100, "gets": 50, "lists": 0, "chunks": 80, "bytes": 40_000_000}
    parts = ingest_object_store.compared([0.1] * 100, [0.08] * 98 + [0.2] * 2, busy, 2.0, 100_000_000)

    assert (parts["p50_ratio"], parts["p99_ratio"], parts["record_kb_a_chunk"]) == (1.25, 0.5, 1250)
    assert (parts["seconds_for_60_mb"], parts["puts_a_gb"], parts["dollars_a_gb"]) == (1.2, 1000, 0.0052)


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "goal"), [("ingest_cpu", 5), ("loop_stall", 15)])
def test_a_benchmark_of_a_real_cluster_and_one_of_every_message_measure(name: str, goal: float) -> None:
    """Only the result goes to standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )

    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["name"], result["goal"], result["better"]) == (name, goal, "lower")
    assert result["value"] > 0
