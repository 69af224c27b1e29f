"""Throughput with several batches in flight over a slow network, against the best possible.

One Producer sends batches of 50 KB through a proxy that delays each direction by 10 ms.
`sequential` is the same producer with one batch in flight; `no_delay` is the same producer through
the same proxy without a delay. The best possible is the lesser of window x sequential throughput
(the window hides the delay) and no-delay throughput (something else is the limit); the value is the
share of it that is reached. Throughput is measured from the first outcome to the last, without the
one round trip that every side's first batch waits. The table shows throughput by delay and window;
`--plot` draws it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, Rounds, run_alternating_async
from bench.harness.cluster import TOPIC, BenchCluster
from bench.harness.producer_load import BATCH_BYTES, batch_of_records, steady_seconds, whole_batches
from bench.harness.svg import line_chart
from headgate import Producer, ProducerSettings

DELAY_MS, WINDOW = 10, ProducerSettings().max_in_flight
TABLE_DELAYS_MS, TABLE_WINDOWS = (0, 1, 5, 20, 100), (1, 4, 16, 32, 64, 128)
QUICK_TABLE_WINDOWS = (1, WINDOW)
SIDES = ("pipelined", "sequential", "no_delay")


def measure(effort: Effort) -> Measurement:
    """Return the share of the best possible throughput."""
    return asyncio.run(_measure(effort))


def ratio_to_best(pipelined: float, sequential: float, no_delay: float, window: int) -> float:
    """Return pipelined throughput ÷ the best possible, all in bytes a second."""
    return pipelined / min(window * sequential, no_delay)


async def _measure(effort: Effort) -> Measurement:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        ports = await cluster.start_delays(stack, sorted({0, DELAY_MS, *TABLE_DELAYS_MS}))

        async def opened(delay_ms: int, window: int) -> Producer:
            config = cluster.client_config(ports[delay_ms])
            producer = await stack.enter_async_context(Producer(config, settings=whole_batches(window)))
            await producer.open(TOPIC)
            return producer

        batches = {"pipelined": effort.pick(1000, 400), "sequential": effort.pick(80, 40), "no_delay": 0}
        batches["no_delay"] = batches["pipelined"]
        chosen = {"pipelined": (DELAY_MS, WINDOW), "sequential": (DELAY_MS, 1), "no_delay": (0, WINDOW)}
        sides = {name: _side(await opened(*chosen[name]), batches[name]) for name in SIDES}
        rounds = await run_alternating_async(sides, effort.pick(9, 3), effort.progress)
        table = await _table(effort, opened)
    if effort.plot is not None:
        effort.plot.write_text(_plot(table))
    return _compared(rounds, batches, table)


def _side(producer: Producer, batches: int) -> Callable[[], Awaitable[float]]:
    return partial(steady_seconds, producer, batch_of_records(), batches)


def _compared(rounds: Rounds, batches: dict[str, int], table: dict[tuple[int, int], float]) -> Measurement:
    rates = {
        side: [(batches[side] - 1) * BATCH_BYTES / seconds for seconds in rounds.seconds[side]]
        for side in rounds.seconds
    }
    shares = [
        ratio_to_best(pipelined, sequential, no_delay, WINDOW)
        for pipelined, sequential, no_delay in zip(*(rates[side] for side in SIDES), strict=True)
    ]
    middle = {side: median(found) for side, found in rates.items()}
    parts: dict[str, Part] = {f"{side}_mb_a_second": round(rate / 1e6, 3) for side, rate in middle.items()}
    return Measurement(
        median(shares),
        {
            **parts,
            "limit": "window" if WINDOW * middle["sequential"] < middle["no_delay"] else "no_delay",
            "times_sequential": round(middle["pipelined"] / middle["sequential"], 2),
            "lowest": round(min(shares), 4),
            "highest": round(max(shares), 4),
            "rounds": len(shares),
            "delay_ms": DELAY_MS,
            "window": WINDOW,
            "batch_bytes": BATCH_BYTES,
            **{f"mb_a_second_delay_{d}_window_{w}": round(rate / 1e6, 3) for (d, w), rate in table.items()},
        },
    )


async def _table(effort: Effort, opened: Callable[[int, int], Awaitable[Producer]]) -> dict[tuple[int, int], float]:
    """Return (delay in milliseconds, window) → bytes a second; the median of a few turns through the whole table."""
    windows = QUICK_TABLE_WINDOWS if effort.quick else TABLE_WINDOWS
    rates: dict[tuple[int, int], list[float]] = {}
    producers = {(delay, window): await opened(delay, window) for delay in TABLE_DELAYS_MS for window in windows}
    for turn in range(effort.pick(3, 1)):
        for (delay, window), producer in producers.items():
            # Several windows, because the last one is not refilled.
            batches = max(effort.pick(8, 4) * window, 16)
            seconds = await steady_seconds(producer, batch_of_records(), batches)
            rates.setdefault((delay, window), []).append((batches - 1) * BATCH_BYTES / seconds)
        effort.progress(f"table, turn {turn + 1}")
    return {cell: median(found) for cell, found in rates.items()}


def _plot(table: dict[tuple[int, int], float]) -> str:
    windows = sorted({window for _, window in table})
    delays = sorted({delay for delay, _ in table})
    return line_chart(
        "Throughput over delay, by batches in flight",
        "injected delay each way, ms",
        "MB a second, batches of 50 KB",
        [str(delay) for delay in delays],
        {f"window {window}": [table[delay, window] / 1e6 for delay in delays] for window in windows},
    )


BENCHMARK = Benchmark(unit="of the best possible", goal=0.9, better="higher", measure=measure, can_plot=True)
