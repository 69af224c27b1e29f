"""Time until the first record of a new child is delivered, in shards whose ledgers are 1, 10 and 100 times as long.

A consumer must not read the history from before its segments existed. On real servers, in each round and shard: a new
topic's segment is split, a record is stored in a child, and a consumer joins. Measured is the time from its grant to
the record. The value is the largest of the three medians over the smallest.
"""

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement
from bench.harness.cluster import BenchCluster
from headgate import Admin, Consumer, Producer, SegmentId
from headgate.client.connection import Client
from headgate.model.layout import shard_of

CHUNKS, QUICK_CHUNKS = 100, 5
LENGTHS = (1, 10, 100)
ANSWER_SECONDS = 60.0


async def measure(effort: Effort) -> Measurement:
    """Return the time in one of the ledgers over that in another, at most."""
    seconds: dict[int, list[float]] = {length: [] for length in LENGTHS}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster(shards=len(LENGTHS)))
        client = await stack.enter_async_context(Client.from_config(cluster.client_config(), "first-record"))
        admin = await stack.enter_async_context(Admin(client))
        producer = await stack.enter_async_context(Producer(client))
        names = count()
        for shard, length in enumerate(LENGTHS):
            topic = await _new_topic(admin, names, shard)
            for _ in range(length * effort.pick(CHUNKS, QUICK_CHUNKS)):
                await producer.send_and_wait(topic, b"key", b"value")
            effort.progress(f"shard {shard} is {length} times as long as the first")
        for number in range(effort.pick(30, 2) + 1):
            for turn in range(len(LENGTHS)):  # Each shard is the first one as often: a pause costs more.
                length = LENGTHS[shard := (number + turn) % len(LENGTHS)]
                topic = await _new_topic(admin, names, shard)
                await admin.split(topic, SegmentId(0))
                await producer.send_and_wait(topic, b"key", b"value")
                found = await _first_record(cluster, topic)
                if number:  # Round 0 warms up.
                    seconds[length].append(found)
    medians = {length: median(found) for length, found in seconds.items()}
    parts = {f"ms_{length}": round(found * 1e3, 2) for length, found in medians.items()}
    return Measurement(max(medians.values()) / min(medians.values()), parts)


async def _new_topic(admin: Admin, names: "count[int]", shard: int) -> str:
    topic = next(name for number in names if shard_of(name := f"t{number}", len(LENGTHS)) == shard)
    await admin.create_topic(topic)
    return topic


async def _first_record(cluster: BenchCluster, topic: str) -> float:
    """Return the seconds from the grant of a new consumer, which has read nothing yet, to its first record."""
    loop = asyncio.get_running_loop()
    granted: list[float] = []

    async def on_granted(_: object) -> None:
        granted.append(loop.time())

    consumer = Consumer(
        cluster.client_config(), topic=topic, subscription="s", start="earliest", order="none", on_granted=on_granted
    )
    async with asyncio.timeout(ANSWER_SECONDS), consumer:
        await anext(aiter(consumer))
        return loop.time() - granted[0]


BENCHMARK = Benchmark(unit="times the fastest", goal=1.1, better="lower", measure=measure)
