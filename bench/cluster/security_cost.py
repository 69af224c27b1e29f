"""Throughput and latency of storing records with security, divided by those without.

Two clusters on this machine take turns. One has TLS everywhere, users with passwords, and an access file; the other one
is open. A Producer with default settings sends records of 1 KB to each, then single records of 100 bytes that are
awaited one by one (as ``ingest_latency`` does). The value is the ratio of records per second, secured over open.
``latency`` and ``latency_p99`` are open over secured: a goal of 0.83 allows 1.2 times the latency.

Other load on the machine and the writes of its disk change from second to second. So the rounds are many and short, and
the two of a pair follow each other immediately; the value is the median of the ratios of pairs. Half of the ratios are
between ``lower_quartile`` and ``upper_quartile``. ``processor_time`` is open over secured as well, the sum of producer,
broker and daemon: it shows what security costs where the network or the disk is the bottleneck, and not the processor.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, Rounds, gc_disabled, run_alternating
from bench.harness.cluster import TOPIC, BenchCluster, SecuredBenchCluster, percentile
from bench.harness.workload import records
from headgate import Producer

VALUE_BYTES, SINGLE_BYTES = 1024, 100
PAUSE_SECONDS = 0.002
"""Pause between two single records, so that each starts with idle processes."""
LEAST_LATENCY_RATIO = round(1 / 1.2, 3)


@dataclass(slots=True)
class Side:
    """One cluster, and the producer that sends to it."""

    producer: Producer
    processes: Sequence[int]
    """Ids of the processes that a record passes: producer, broker, daemon."""
    processor_seconds: list[float] = field(default_factory=list)
    """What all processes used, by round; the first one warms up."""

    async def store(self, rows: list[tuple[bytes, bytes]]) -> None:
        began = self._processor_seconds()
        deliveries = [await self.producer.send(TOPIC, key, value) for key, value in rows]
        await self.producer.flush()
        for delivery in deliveries:
            await delivery
        self.processor_seconds.append(self._processor_seconds() - began)

    def _processor_seconds(self) -> float:
        return sum(map(processor_seconds, self.processes))


def processor_seconds(process: int) -> float:
    nanoseconds = (int(path.read_text().split()[0]) for path in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(nanoseconds) / 1e9


async def measure(effort: Effort) -> Measurement:
    async with AsyncExitStack() as stack:
        sides = {"open": await _side(stack, BenchCluster()), "secured": await _side(stack, SecuredBenchCluster())}
        rows = [(row.key, row.value) for row in records(effort.pick(8_000, 4_000), VALUE_BYTES)]

        def stores(name: str) -> Callable[[], Awaitable[None]]:
            return lambda: sides[name].store(rows)

        rounds = await run_alternating({name: stores(name) for name in sides}, effort.pick(60, 5), effort.progress)
        latencies = await _latencies({name: side.producer for name, side in sides.items()}, effort)
    processors = Rounds({name: side.processor_seconds[1:] for name, side in sides.items()})
    return compared(rounds, processors, latencies, count=len(rows))


async def _side(stack: AsyncExitStack, cluster: BenchCluster) -> Side:
    await stack.enter_async_context(cluster)
    producer = await stack.enter_async_context(Producer(cluster.client_config()))
    await producer.open(TOPIC)
    broker = cluster.broker.pid
    assert broker is not None, "it runs"
    return Side(producer, [os.getpid(), broker, *(daemon.process.pid for daemon in cluster.daemons.values())])


async def _latencies(producers: dict[str, Producer], effort: Effort) -> dict[str, list[float]]:
    """Return the seconds of single records by cluster; they alternate record by record."""
    loop = asyncio.get_running_loop()
    seconds: dict[str, list[float]] = {name: [] for name in producers}
    names = list(producers)
    with gc_disabled():
        for number in range(effort.pick(3000, 300)):
            for name in names if number % 2 else reversed(names):
                began = loop.time()
                await (await producers[name].send(TOPIC, b"key", bytes(SINGLE_BYTES)))
                seconds[name].append(loop.time() - began)
                await asyncio.sleep(PAUSE_SECONDS)
    return seconds


def compared(rounds: Rounds, processors: Rounds, latencies: dict[str, list[float]], *, count: int) -> Measurement:
    """Return the measurement; ``count`` records of `VALUE_BYTES` were stored in each round.

    ``processors``: the processor time of each round.
    """
    # Inverse ratios of times are ratios of rates.
    ratios = rounds.ratios("open", "secured")
    lower, _, upper = quantiles(ratios, n=4)
    parts: dict[str, Part] = {
        **{f"{side}_records_a_second": round(count / rounds.median_seconds(side)) for side in rounds.seconds},
        "lower_quartile": round(lower, 4),
        "upper_quartile": round(upper, 4),
        "rounds": len(ratios),
        "processor_time": round(median(processors.ratios("open", "secured")), 4),
    }
    for name, share in (("latency", 0.5), ("latency_p99", 0.99)):
        found = {side: percentile(values, share) for side, values in latencies.items()}
        parts[name] = round(found["open"] / found["secured"], 4)
        parts |= {f"{name}_{side}_ms": round(seconds * 1000, 3) for side, seconds in found.items()}
    return Measurement(median(ratios), parts)


BENCHMARK = Benchmark(
    unit="of an open cluster",
    goal=0.85,
    better="higher",
    measure=measure,
    part_goals={"latency": LEAST_LATENCY_RATIO, "latency_p99": LEAST_LATENCY_RATIO},
)
