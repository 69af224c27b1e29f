"""Latency of a record from send to committed, against the bare network and disk.

Ours: `Producer.send` of one record of 100 bytes, awaited, with no other load. The other side: a message of the same
size through the same broker with the same library to another process and back, then one durable put of the same chunk
with bare system calls on the same disk. They alternate record by record, so each finds idle processes, whose cold code
adds 1.2 ms where 1.3 times allows 0.3 ([where the time goes](decisions/record-latency.md)). The value is the greater of
the ratios of medians and of 99th percentiles. `alone`: a message to the broker and straight back to its sender.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.broker_peer import BACK_TOPIC, ECHO_TOPIC
from bench.harness.cluster import TOPIC, BenchCluster, percentile
from bench.harness.workload import Shard, batches
from headgate import Producer
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.protocol.requests import ProduceBatch
from trials.ordered_process import OrderedProcess

VALUE_BYTES = 100
ALONE_TOPIC = "bench/alone"
ANSWER_SECONDS = 20.0
PAUSE_SECONDS = 0.002
"""Pause between two measurements, so that each starts with idle processes."""


class _Echo:
    """Sends messages and waits for their return."""

    def __init__(self, client: Client) -> None:
        self._transport = client.transport
        self._loop = asyncio.get_running_loop()
        self._back: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Listen for what comes back."""
        for topic in (BACK_TOPIC, ALONE_TOPIC):
            await self._transport.subscribe(topic, self._on_back)

    def _on_back(self, _topic: str, _payload: bytes) -> None:
        assert self._back is not None, "nothing was sent"
        self._back.set_result(None)

    async def round_trip(self, topic: str, payload: bytes) -> None:
        """Send ``payload`` and wait for it."""
        self._back = self._loop.create_future()
        assert self._transport.publish(topic, payload), "the broker is unreachable"
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._back


async def measure(effort: Effort) -> Measurement:
    """Return the greater of the ratios at the median and at the 99th percentile."""
    batch, chunk = sample()
    payload = codec.encode(batch)
    record = batch.records[0]
    seconds: dict[str, list[float]] = {"ours": [], "way": [], "put": [], "alone": []}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        where = cluster.broker.host, str(cluster.broker.port)
        await OrderedProcess.start(stack, "bench.harness.broker_peer", *where)
        echo = _Echo(await cluster.watcher(stack))
        await echo.start()
        producer = await stack.enter_async_context(Producer(cluster.client_config()))
        await producer.open(TOPIC)
        folder = cluster.folder / "bare"
        folder.mkdir()
        rounds, loop = effort.pick(3000, 500), asyncio.get_running_loop()

        async def timed(side: str) -> None:
            began = loop.time()
            if side == "ours":
                await (await producer.send(TOPIC, record.key, record.value))
            elif side == "put":
                bare_commit(folder, f"{len(seconds['put']):012d}", chunk)
            else:
                await echo.round_trip(ECHO_TOPIC if side == "way" else ALONE_TOPIC, payload)
            seconds[side].append(loop.time() - began)

        with gc_disabled():
            for number in range(rounds):
                for side in ("ours", "way", "put", "alone") if number % 2 else ("alone", "way", "put", "ours"):
                    await timed(side)
                    await asyncio.sleep(PAUSE_SECONDS)
                if number % 500 == 499:
                    effort.progress(f"{number + 1} of {rounds}")
    return compared(seconds)


def compared(seconds: dict[str, list[float]]) -> Measurement:
    """Return the measurement from side → seconds by turn; way and put of one turn belong together."""
    floor = [way + put for way, put in zip(seconds["way"], seconds["put"], strict=True)]
    alone = [way + put for way, put in zip(seconds["alone"], seconds["put"], strict=True)]
    parts: dict[str, Part] = {}
    ratios = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, least = percentile(seconds["ours"], share), percentile(floor, share)
        ratios.append(ours / least)
        parts[f"{name}_ratio"] = round(ours / least, 4)
        parts[f"{name}_ratio_alone"] = round(ours / percentile(alone, share), 4)
        parts |= {f"{name}_{side}_ms": round(percentile(found, share) * 1000, 3) for side, found in seconds.items()}
    return Measurement(max(ratios), {**parts, "records": len(floor)})


def bare_commit(folder: Path, name: str, data: bytes) -> None:
    """Write, fsync, link, fsync the folder: the minimum that is durable, atomic and put-if-absent."""
    draft = folder / f".{name}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.link(draft, folder / name)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sample() -> tuple[ProduceBatch, bytes]:
    """Return a batch of one record, and the chunk that it becomes."""
    shard = Shard(segments=4)
    builder = shard.begin()
    (batch,) = batches(1, 1, VALUE_BYTES, Shard.PRODUCER_ID)
    shard.add_batch(builder, batch)
    return batch, shard.encode(builder)


BENCHMARK = Benchmark(unit="times way and disk", goal=1.3, better="lower", measure=measure)
