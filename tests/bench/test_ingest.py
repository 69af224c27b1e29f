"""The benchmarks of ingestion: what they compute from what they saw, and the cheapest one on real servers."""

import asyncio
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import ingest_deadline, ingest_idempotence, ingest_latency, ingest_recovery
from bench.__main__ import command
from bench._cluster import percentile
from bench._delay import serve
from bench._harness import Benchmark, Measurement, run_alternating_async
from bench._load import BATCH_BYTES, batch_of_records, whole_batches
from bench._svg import line_chart
from bench.ingest_pipelining import ratio_to_best
from bench.ingest_recovery import Change
from bench.ingest_throughput import bundled
from headgate.client.record_batch import RECORD_OVERHEAD_BYTES
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)], ids=["median", "p99", "all", "least"]
)
def test_a_percentile_is_a_value_that_was_seen(share: float, expected: int) -> None:
    assert expected == percentile([float(number) for number in range(100, 0, -1)], share)


@pytest.mark.parametrize(
    ("sequential", "no_delay", "expected"), [(1.0, 100.0, 0.5), (10.0, 16.0, 0.5)], ids=["window", "no-delay"]
)
def test_the_best_possible_is_the_lesser_of_both_limits(sequential: float, no_delay: float, expected: float) -> None:
    assert expected == ratio_to_best(8.0, sequential, no_delay, window=16)


def test_batches_are_full_to_the_last_byte() -> None:
    """One byte less would leave each batch waiting for its linger."""
    sizes = [len(key) + len(value) + RECORD_OVERHEAD_BYTES for key, value in batch_of_records()]

    assert BATCH_BYTES == sum(sizes) == whole_batches(16).batch_bytes


def test_bundles_hold_every_payload_once() -> None:
    payloads = [bytes([number % 256]) * 1000 for number in range(120)]

    bundles = bundled(payloads)

    assert b"".join(payloads) == b"".join(bundles)
    assert [51_000, 51_000, 18_000] == [len(bundle) for bundle in bundles]


def test_idempotence_takes_the_worse_depth_and_tells_each_percentile() -> None:
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


def test_latency_adds_way_and_disk_of_one_turn() -> None:
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


def test_lateness_is_that_of_the_latest_outcome() -> None:
    rounds = [[(0.001, "unknown"), (0.020, "not_stored")], [(0.030, "not_stored")], [(0.010, "not_stored")]]

    measured = ingest_deadline.compared(rounds, [0.4, 0.2, 0.3])

    assert measured.value == pytest.approx(0.020 / ingest_deadline.DEADLINE_SECONDS)
    assert measured.parts["latest_of_all_rounds_ms"] == 30.0
    assert measured.parts["flow_again_ms"] == 300.0
    assert (measured.parts["committed"], measured.parts["not_stored"], measured.parts["unknown"]) == (0, 3, 1)


def test_recovery_compares_the_producer_with_its_cluster() -> None:
    kill = Change(announced_seconds=2.0, committed_seconds=2.2, resent=16, sent=160)
    handover = Change(announced_seconds=0.5, committed_seconds=0.6, resent=4, sent=160)

    measured = ingest_recovery.compared({"kill": [kill] * 3, "handover": [handover] * 3})

    assert measured.value == pytest.approx(1.1)
    assert measured.parts["kill_sent_twice_of_all"] == 0.1
    assert measured.parts["handover_commit_after_announcement_ms"] == 100.0


def _invoke(parts: dict[str, float], *arguments: str):
    benchmark = Benchmark(
        unit="times", goal=2.0, better="lower", measure=lambda _: Measurement(1.0, parts), part_goals={"p99": 1.1}
    )
    return CliRunner().invoke(
        command({"made_up": lambda: (benchmark, "What is compared.\n\nWhy.")}), ["made_up", *arguments]
    )


@pytest.mark.parametrize(
    ("parts", "holds"), [({"p99": 1.1}, True), ({"p99": 1.2}, False), ({}, False)], ids=["holds", "missed", "missing"]
)
def test_a_figure_holds_only_if_its_parts_reach_their_goals(parts: dict[str, float], holds: bool) -> None:
    """The value alone would hold in each case."""
    lenient, strict = _invoke(parts, "--json"), _invoke(parts, "--strict")

    assert holds is json.loads(lenient.stdout)["goal_met"]
    assert json.loads(lenient.stdout)["parts"]["p99_goal"] == 1.1
    assert (0 if holds else 1) == strict.exit_code
    assert holds is ("does not hold" not in strict.stdout)


def test_a_plot_of_a_figure_that_draws_nothing_is_refused(tmp_path: Path) -> None:
    result = _invoke({"p99": 1.0}, "--plot", str(tmp_path / "plot.svg"))

    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr


async def test_awaited_sides_take_turns_like_the_others() -> None:
    order = []

    async def side(name: str) -> None:
        order.append(name)

    rounds = await run_alternating_async({"a": lambda: side("a"), "b": lambda: side("b")}, 2, lambda _: None)

    assert [*"ba", *"ab", *"ba"] == order
    assert {name: len(seconds) for name, seconds in rounds.seconds.items()} == {"a": 2, "b": 2}


def test_a_chart_is_well_formed_and_has_a_line_and_a_name_for_each() -> None:
    drawn = line_chart("a < b", "delay", "MB", ["0", "1", "5"], {"window 1": [1.0, 2.0, 3.0], "window 16": [0.0] * 3})

    root = ET.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 2
    assert {"a < b", "window 1", "window 16"} <= {text.text for text in root.iter(f"{space}text")}


async def test_a_delayed_wire_adds_its_delay_each_way_and_keeps_the_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An echo behind the wire gets everything in order; no byte is back before two delays have passed."""
    never = asyncio.Event()

    async def wait_for_ever(*_: object) -> None:
        await never.wait()

    monkeypatch.setattr("bench._delay.asyncio.to_thread", wait_for_ever)

    lost = asyncio.Event()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

        def connection_lost(self, exc):
            lost.set()

    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    wire = asyncio.create_task(serve("127.0.0.1", server.sockets[0].getsockname()[1], [30.0]))
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
    wire.cancel()
    await asyncio.wait({wire})
    server.close()

    assert sent == back
    assert took >= 0.06


@pytest.mark.system
def test_the_cheapest_figure_measures_a_real_cluster() -> None:
    """Through the real command line; nothing but the result goes to standard output."""
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
