"""What storing on a bucket costs: time to an acknowledgement, throughput of one shard, requests and dollars.

A daemon keeps its ledger in a bucket that is as slow as those of S3 (bench.harness.slow_bucket): writes of S3 Express
One Zone take 8 ms (median; 99th percentile 25 ms), those of S3 Standard 60 and 250 ms, and one of a hundred fails.
Single records of 100 bytes arrive at random times, one per two writes. One that arrives during a write waits for its
end, and then for its own. Beside them, this process writes a chunk of the same size to the bucket, again and again. The
value is the ratio of the median acknowledgement to the median of these writes, the greater of both buckets, and
``p99_ratio`` that of the 99th percentiles. A leader that takes no time would have 1.30 and 1.38. A consumer that has
caught up and stores nothing receives the records: ``delivery_ms`` from their sending. Then three producers
send records of 1 KB, half of them compressible, as fast as they can, for long enough that the small chunks at the
beginning hardly count: ``seconds_for_60_mb`` of these records, and what their requests cost.
"""

import asyncio
import os
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Final

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import TOPIC, BenchCluster, percentile
from bench.harness.slow_bucket import BUCKET
from bench.harness.workload import records
from bench.ingest.ingest_latency import sample
from headgate import Consumer, Producer
from headgate.errors import ObjectExistsError
from headgate.process.background import cancel_and_wait
from headgate.storage.object_store import Store, open_store
from trials.ordered_process import OrderedProcess

BUCKETS: Final = {"express": (8, 25), "standard": (60, 250)}
"""Name → median and 99th percentile of a write in milliseconds.

Express: single-digit milliseconds according to AWS. Standard: AWS states 100 to 200 ms for small objects.
"""
WRITES_PER_RECORD = 2
FOLLOWS_SECONDS = 12
"""Two heartbeats: a leader knows then that a consumer is at the end, and sends it small chunks."""
PRODUCERS = 3
"""Each has at most 16 batches of 50 to 800 kB in flight."""
DOLLARS: Final = {"put": 0.005 / 1000, "get": 0.0004 / 1000}
"""The price of one request to S3 Standard in us-east-1, 2026; a listing costs as much as a write."""


def measure(effort: Effort) -> Measurement:
    """Return the greater ratio of the medians."""
    parts: dict[str, Part] = {}
    for name in BUCKETS:
        effort.progress(name)
        parts |= {f"{name}_{part}": value for part, value in asyncio.run(_measure(effort, name)).items()}
    return Measurement(max(float(parts[f"{name}_p50_ratio"]) for name in BUCKETS), parts)


async def _measure(effort: Effort, name: str) -> dict[str, Part]:
    median_ms, p99_ms = BUCKETS[name]
    async with AsyncExitStack() as stack:
        words = str(median_ms), str(p99_ms), "1"
        bucket, url = await OrderedProcess.start(stack, "bench.harness.slow_bucket", *words)
        environ = {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        os.environ.update(environ)
        cluster = await stack.enter_async_context(BenchCluster(ledger_url=f"s3://{BUCKET}/ledger", environ=environ))
        producers = [await stack.enter_async_context(Producer(cluster.client_config())) for _ in range(PRODUCERS)]
        for each in producers:
            await each.open(TOPIC)
        interval_seconds = WRITES_PER_RECORD * median_ms / 1000
        with gc_disabled():
            count = effort.pick(2000, 250)
            follower = Consumer(cluster.client_config(), topic=TOPIC, subscription="f", type="CHECKPOINT")
            async with follower as consumer:
                delivering = asyncio.create_task(_delivered(consumer, count))
                await asyncio.sleep(FOLLOWS_SECONDS)
                waits, writes = await _waits(producers[0], open_store(cluster.ledger_url), count, interval_seconds)
                delivered = await delivering
            await bucket.order("served")
            rows = 4 * [(row.key, row.value) for row in records(effort.pick(40_000, 10_000), 1024)]
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*(_pump(each, rows) for each in producers))
            seconds = asyncio.get_running_loop().time() - began
        size_bytes = PRODUCERS * sum(len(key) + len(value) for key, value in rows)
        parts = compared(waits, writes, await bucket.order("served"), seconds, size_bytes)
        return parts | {f"p{n}_delivery_ms": round(percentile(delivered, n / 100) * 1000, 1) for n in (50, 99)}


async def _waits(
    producer: Producer, store: Store, count: int, interval_seconds: float
) -> tuple[list[float], list[float]]:
    """Send single records at random times; return how long each took to be committed, and writes beside them took."""
    rng, loop = random.Random(1), asyncio.get_running_loop()
    waits: list[float] = []
    writes: list[float] = []
    _, chunk = sample()

    async def send(number: int) -> None:
        began = loop.time()
        await (await producer.send(TOPIC, f"sensor-{number % 100}".encode(), str(began).encode().ljust(100)))
        waits.append(loop.time() - began)

    async def write() -> None:
        while True:
            began = loop.time()
            with suppress(ObjectExistsError):  # Its own, which was stored with an error.
                await store.create(f"bare/{began}", chunk)
            writes.append(loop.time() - began)

    writing = asyncio.create_task(write())
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(send(number))
            await asyncio.sleep(rng.expovariate(1 / interval_seconds))
    await cancel_and_wait(writing)
    return waits, writes


async def _delivered(consumer: Consumer, count: int) -> list[float]:
    """Return how long each of ``count`` records took from its sending to its delivery."""
    found: list[float] = []
    while len(found) < count:
        sent_at = float((await anext(consumer)).value)
        found.append(asyncio.get_running_loop().time() - sent_at)
    return found


async def _pump(producer: Producer, rows: list[tuple[bytes, bytes]]) -> None:
    keys, values = zip(*rows, strict=True)
    await (await producer.send_many(TOPIC, keys, values))


def compared(
    waits: list[float], writes: list[float], busy: Mapping[str, float], busy_seconds: float, busy_bytes: int
) -> dict[str, Part]:
    """Return the parts of one bucket. ``busy``: what it has served while ``busy_bytes`` of records were sent."""
    parts: dict[str, Part] = {}
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        wait, write = percentile(waits, share), percentile(writes, share)
        parts |= {f"{name}_ratio": round(wait / write, 3)}
        parts |= {f"{name}_wait_ms": round(wait * 1000, 1), f"{name}_write_ms": round(write * 1000, 1)}
    gigabytes = busy_bytes / 1e9
    dollars = DOLLARS["put"] * (busy["puts"] + busy.get("lists", 0)) + DOLLARS["get"] * busy.get("gets", 0)
    return parts | {
        "seconds_for_60_mb": round(busy_seconds * 60e6 / busy_bytes, 3),
        "mb_a_second": round(busy_bytes / 1e6 / busy_seconds, 1),
        "record_kb_a_chunk": round(busy_bytes / 1000 / busy["chunks"]),
        "stored_kb_a_chunk": round(busy["bytes"] / 1000 / busy["chunks"]),
        "puts_a_gb": round(busy["puts"] / gigabytes),
        "dollars_a_gb": round(dollars / gigabytes, 5),
    }


BENCHMARK = Benchmark(
    unit="times a write",
    goal=1.6,
    better="lower",
    measure=measure,
    part_goals={"express_p99_ratio": 2.0, "standard_p99_ratio": 2.0, "standard_seconds_for_60_mb": 1.0},
)
