"""Lateness of a producer's outcomes while there is no leader.

A Producer has 10 000 batches pending, each with a deadline of 5 s, when the only daemon is killed.
Each outcome is awaited by its own task and timed against the deadline that its `send` started. The
value is the lateness of the latest outcome over the deadline, the median of the rounds. After each
round a daemon is started again while records are sent continuously; `flow_again_ms` is the time
from the announcement of the new leader to the first commit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster, leader_epoch
from headgate import Delivery, Producer, ProducerSettings
from headgate.client.connection import Client
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, HeadgateError

BATCHES, QUICK_BATCHES = 10_000, 10_000
DEADLINE_SECONDS = 5.0
VALUE = b"v" * 100
LEADER_SECONDS = 60.0

Outcomes = list[tuple[float, str]]
"""(seconds after its deadline, kind of outcome) of each batch."""


def measure(effort: Effort) -> Measurement:
    """Return the lateness of the latest outcome over the deadline."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    rounds: list[Outcomes] = []
    flows: list[float] = []
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        watcher = await cluster.watcher(stack)
        settings = ProducerSettings(
            batch_bytes=1,  # each record is a batch
            request_timeout_seconds=2.0,
            delivery_timeout_seconds=DEADLINE_SECONDS,
        )
        producer = await stack.enter_async_context(Producer(cluster.client_config(), settings=settings))
        count, total = effort.pick(BATCHES, QUICK_BATCHES), effort.pick(5, 2)
        for number in range(total):
            await (await producer.send(TOPIC, b"before", VALUE))
            name = f"d{number + 1}"
            await cluster.kill(name)
            with gc_disabled():
                rounds.append(await _expire(producer, count))
            flows.append(await _flow_again(cluster, watcher, producer, f"d{number + 2}"))
            effort.progress(f"round {number + 1} of {total}")
    return compared(rounds, flows)


async def _expire(producer: Producer, count: int) -> Outcomes:
    """Send ``count`` batches that no leader accepts, and wait for all outcomes."""
    loop = asyncio.get_running_loop()
    outcomes: Outcomes = []

    async def outcome(delivery: Delivery, deadline: float) -> None:
        try:
            await delivery
        except DeliveryFailedError:
            what = "not_stored"
        except DeliveryUnknownError:
            what = "unknown"
        else:
            what = "committed"
        outcomes.append((loop.time() - deadline, what))

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            deadline = loop.time() + DEADLINE_SECONDS
            delivery = await producer.send(TOPIC, f"sensor-{number % 5000:05d}".encode(), VALUE)
            tasks.create_task(outcome(delivery, deadline))
    return outcomes


async def _flow_again(cluster: BenchCluster, watcher: Client, producer: Producer, daemon: str) -> float:
    """Start a daemon; return the seconds from the announcement of its term to the first commit."""
    loop = asyncio.get_running_loop()
    epoch, heard = leader_epoch(watcher), asyncio.Event()
    heard_at = 0.0

    def on_leader(_: object) -> None:
        nonlocal heard_at
        if leader_epoch(watcher) > epoch and not heard.is_set():
            heard_at = loop.time()
            heard.set()

    remove_handlers = watcher.on_leader(SHARD, on_leader)
    await cluster.start_daemon(daemon)
    committed_at = 0.0
    async with asyncio.timeout(LEADER_SECONDS):
        while not committed_at:
            try:
                await (await producer.send(TOPIC, b"after", VALUE))
            except HeadgateError:
                continue  # its deadline passed before there was a leader
            committed_at = loop.time()
        await heard.wait()
    remove_handlers()
    return committed_at - heard_at


def compared(rounds: list[Outcomes], flows: list[float]) -> Measurement:
    """Return the measurement from the outcomes of each round, and the seconds until the first commit."""
    latest = [max(late for late, _ in outcomes) for outcomes in rounds]
    kinds = Counter(what for outcomes in rounds for _, what in outcomes)
    early = min(late for outcomes in rounds for late, _ in outcomes)
    return Measurement(
        median(latest) / DEADLINE_SECONDS,
        {
            "latest_ms": round(median(latest) * 1000, 3),
            "latest_of_all_rounds_ms": round(max(latest) * 1000, 3),
            "earliest_ms": round(early * 1000, 3),
            "median_ms": round(median([late for outcomes in rounds for late, _ in outcomes]) * 1000, 3),
            "flow_again_ms": round(median(flows) * 1000, 3),
            "flow_again_slowest_ms": round(max(flows) * 1000, 3),
            "deadline_ms": DEADLINE_SECONDS * 1000,
            "batches": len(rounds[0]),
            "rounds": len(rounds),
            **{what: kinds[what] for what in ("committed", "not_stored", "unknown")},
        },
    )


BENCHMARK = Benchmark(unit="of the deadline", goal=0.01, better="lower", measure=measure)
