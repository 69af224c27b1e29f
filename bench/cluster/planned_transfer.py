"""Latency of a send during a planned transfer of its shard, above that of the usual one.

Two daemons, and a producer that sends a small record every five milliseconds. `headgate shard transfer` moves the shard
back and forth. Of each transfer, the largest latency of a send from the command's start until some time after its end
counts; the usual one is the median of the sends between transfers. The value is the median of the differences. Every
send must succeed. The goal is that of the promise: a transfer is graceful, and clients notice less than 150 ms.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import Final

from bench.harness.benchmark import Benchmark, Effort, Measurement, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster
from headgate import Producer
from headgate.errors import HeadgateError
from headgate.process.child_command import python_module
from headgate.process.parent_death_signal import with_parent_death_signal

TRANSFERS, QUICK_TRANSFERS = 20, 2
DAEMONS: Final = ("d1", "d2")
SEND_INTERVAL_SECONDS: Final = 0.005
SETTLE_SECONDS: Final = 6.0
"""Until the daemon that does not lead knows the whole queue."""
BETWEEN_SECONDS: Final = 1.5
COMMAND_SECONDS: Final = 30.0


class _Sends:
    """Sends all the time, and remembers the latencies since they were last asked for."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._seconds: list[float] = []

    async def run(self) -> None:
        """Send until cancelled. Raises what a delivery raised."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._send())
                await asyncio.sleep(SEND_INTERVAL_SECONDS)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await (await self._producer.send(TOPIC, b"key", b"value"))
        self._seconds.append(loop.time() - began)

    def latencies(self) -> list[float]:
        """Return the seconds that each send took, in the order of their ends."""
        taken, self._seconds = self._seconds, []
        return taken


def measure(effort: Effort) -> Measurement:
    """Return what a transfer adds to the latency of a send, in milliseconds."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    longest: list[float] = []
    usual: list[float] = []
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster(daemons=len(DAEMONS)))
        watcher = await cluster.watcher(stack)
        sends = _Sends(await stack.enter_async_context(Producer(cluster.client_config())))
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(sends.run())
            await asyncio.sleep(SETTLE_SECONDS)
            total = effort.pick(TRANSFERS, QUICK_TRANSFERS)
            for number in range(total):
                leader = watcher.leader(SHARD)
                assert leader is not None, "no leader is known"
                (successor,) = set(DAEMONS) - {leader.instance}
                with gc_disabled():
                    sends.latencies()
                    await asyncio.sleep(BETWEEN_SECONDS)
                    usual += sends.latencies()
                    await _transfer(cluster, successor)
                    await asyncio.sleep(BETWEEN_SECONDS)
                    longest.append(max(sends.latencies()))
                effort.progress(f"transfer {number + 1} of {total}")
            sending.cancel()
    return compared(longest, usual)


async def _transfer(cluster: BenchCluster, successor: str) -> None:
    """Run the command of an operator; raises HeadgateError if it fails."""
    words = ("--config", str(cluster.client_config_path), "shard", "transfer", str(SHARD), successor)
    process = await asyncio.create_subprocess_exec(
        *with_parent_death_signal(*python_module("headgate", *words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(COMMAND_SECONDS):
        _, errors = await process.communicate()
    if process.returncode != 0:
        raise HeadgateError(f"headgate shard transfer: {errors.decode().strip()}")


def compared(longest: list[float], usual: list[float]) -> Measurement:
    """Return the measured value from the longest send of each transfer and the usual ones, in seconds."""
    extra_ms = [1000 * (each - median(usual)) for each in longest]
    return Measurement(
        median(extra_ms),
        {
            "usual_ms": round(1000 * median(usual), 1),
            "longest_usual_ms": round(1000 * max(usual), 1),
            "least_extra_ms": round(min(extra_ms), 1),
            "most_extra_ms": round(max(extra_ms), 1),
            "transfers": len(longest),
        },
    )


BENCHMARK = Benchmark(
    unit="ms above the usual send", goal=150, better="lower", measure=measure, part_goals={"most_extra_ms": 150.0}
)
