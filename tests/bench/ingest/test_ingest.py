"""The ingestion benchmarks: what they compute from measured values, and the cheapest one on real servers."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.harness.cluster import percentile
from bench.harness.delay_line import serve
from bench.harness.producer_load import BATCH_BYTES, batch_of_records, whole_batches
from bench.ingest import ingest_idempotence, ingest_latency
from bench.ingest.ingest_throughput import bundled
from headgate.client.record_batch import RECORD_OVERHEAD_BYTES
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)], ids=["median", "p99", "all", "least"]
)
def test_a_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert expected == percentile([float(number) for number in range(100, 0, -1)], share)


def test_batches_are_exactly_full() -> None:
    """One byte less would leave each batch waiting for its linger."""
    sizes = [len(key) + len(value) + RECORD_OVERHEAD_BYTES for key, value in batch_of_records()]

    assert BATCH_BYTES == sum(sizes) == whole_batches(16).batch_bytes


def test_bundles_contain_every_payload_once() -> None:
    payloads = [bytes([number % 256]) * 1000 for number in range(120)]

    bundles = bundled(payloads)

    assert b"".join(payloads) == b"".join(bundles)
    assert [51_000, 51_000, 18_000] == [len(bundle) for bundle in bundles]


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
    assert ["p99_ratio_depth_1"] == ingest_idempotence.BENCHMARK.missed_parts(measured)


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


async def test_the_proxy_adds_its_delay_in_each_direction_and_keeps_the_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An echo behind the proxy receives everything in order; no byte returns before two delays."""
    lost = asyncio.Event()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

        def connection_lost(self, exc):
            lost.set()

    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = asyncio.create_task(serve("127.0.0.1", port, [30.0], ended=asyncio.Event().wait))
    printed = ""

    def listening() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed.endswith("\n")

    await until(listening)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(printed))
    sent = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for first in range(0, len(sent), 40_000):
        writer.write(sent[first : first + 40_000])
        await asyncio.sleep(0)
    back = await reader.readexactly(4)
    took = loop.time() - began
    back += await reader.readexactly(len(sent) - 4)
    writer.close()
    await writer.wait_closed()
    await lost.wait()
    proxy.cancel()
    await asyncio.wait({proxy})
    server.close()

    assert sent == back
    assert took >= 0.06


@pytest.mark.system
def test_the_cheapest_benchmark_measures_a_real_cluster() -> None:
    """Only the result goes to standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "ingest_throughput", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["name"], result["goal"], result["better"]) == ("ingest_throughput", 0.5, "higher")
    assert result["value"] == min(result["parts"]["ratio_100"], result["parts"]["ratio_1024"]) > 0
