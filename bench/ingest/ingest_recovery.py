"""Time from the return of the network to the first stored record, over the round trip.

A producer sends 8 records of 30 kB a second over a link with a round trip of 0.3 s. The link loses everything for 15 s,
so that each record that was sent before expires (`delivery_timeout_seconds=10`). Then the producer has to connect, to
open its identity at the next epoch, and to send: four round trips and a half until a record is stored. A consumer
beside the broker sees when. When the network is back, the proxy resets each connection that has lost data: TCP's own
repetitions, which can take seconds, are not measured.
"""

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import Final

from bench.harness.benchmark import Benchmark, Effort, Measurement
from bench.harness.cluster import TOPIC, BenchCluster
from bench.harness.tcp_proxy import Proxy
from controller.local.reserved_port import LOOPBACK
from headgate import Consumer, Producer, ProducerSettings

ROUND_TRIP_SECONDS: Final = 0.3
OUTAGE_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 6.0
"""Before each outage: a connection that lasted longer is stable."""
SEND_INTERVAL_SECONDS: Final = 1 / 8
VALUE_BYTES: Final = 30_000
SETTINGS: Final = ProducerSettings(delivery_timeout_seconds=10.0)


async def _send(producer: Producer) -> None:
    while True:
        await producer.send(TOPIC, b"key", b"v" * VALUE_BYTES)
        await asyncio.sleep(SEND_INTERVAL_SECONDS)


async def measure(effort: Effort) -> Measurement:
    seconds: list[float] = []
    loop, rounds = asyncio.get_running_loop(), effort.pick(9, 1)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        link = await stack.enter_async_context(Proxy(LOOPBACK, cluster.broker.port, ROUND_TRIP_SECONDS / 2))
        reader = Consumer(cluster.client_config(), topic=TOPIC, subscription="bench", type="CHECKPOINT")
        consumer = await stack.enter_async_context(reader)
        producer = await stack.enter_async_context(Producer(cluster.client_config(link.port), settings=SETTINGS))
        sending = (await stack.enter_async_context(asyncio.TaskGroup())).create_task(_send(producer))
        for number in range(rounds):
            await anext(consumer)
            await asyncio.sleep(SETTLE_SECONDS)
            await link.blackhole()
            await asyncio.sleep(OUTAGE_SECONDS)
            await consumer.get_many(10_000)  # What was stored before.
            began = loop.time()
            await link.heal()
            await anext(consumer)
            seconds.append(loop.time() - began)
            effort.progress(f"{number + 1} of {rounds}: {seconds[-1]:.2f} s")
        sending.cancel()
    parts = {"median_ms": round(1000 * median(seconds)), "longest_ms": round(1000 * max(seconds)), "rounds": rounds}
    return Measurement(median(seconds) / ROUND_TRIP_SECONDS, parts)


BENCHMARK = Benchmark(unit="round trips", goal=5.0, better="lower", measure=measure)
