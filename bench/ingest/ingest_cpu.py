"""Processor time of a leader for a single record, against a loop that does the same with the same bytes.

Ours: `Producer.send` of records of 100 bytes, each awaited before the next one, to a real daemon; measured is the
processor time of all threads of the daemon. The other side: a loop in this process that decodes the same request,
writes the same chunk durably with bare system calls, and encodes the same reply. They alternate in short stretches,
and both wait for the same disk, so other load slows both. ``client_us`` is the processor time of the producer.
"""

import time
from contextlib import AsyncExitStack
from statistics import median

from bench.cluster.security_cost import processor_seconds
from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster
from bench.ingest.ingest_latency import bare_commit, sample
from headgate import Producer
from headgate.protocol import codec
from headgate.protocol.replies import Committed, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import Request

STRETCH = 100
"""Records of one side in a row."""


async def measure(effort: Effort) -> Measurement:
    """Return the median of the rounds' ratios."""
    batch, chunk = sample()
    record = batch.records[0]
    request = codec.encode(
        Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="bench", leader_epoch=1, body=batch)
    )
    reply = Reply(request_id=1, leader_epoch=1, body=Committed(placements=[], topic_id=1))
    seconds: dict[str, list[float]] = {"leader": [], "client": [], "bare": []}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        producer = await stack.enter_async_context(Producer(cluster.client_config()))
        await producer.open(TOPIC)
        (daemon,) = cluster.daemons.values()
        folder = cluster.folder / "bare"
        folder.mkdir()

        async def store() -> None:
            leader, client = processor_seconds(daemon.process.pid), time.process_time()
            for _ in range(STRETCH):
                await (await producer.send(TOPIC, record.key, record.value))
            seconds["client"].append((time.process_time() - client) / STRETCH)
            seconds["leader"].append((processor_seconds(daemon.process.pid) - leader) / STRETCH)

        def loop_over() -> None:
            began = time.process_time()
            for number in range(STRETCH):
                codec.decode_request(request)
                bare_commit(folder, f"{len(seconds['bare'])}-{number}", chunk)
                codec.encode(reply)
            seconds["bare"].append((time.process_time() - began) / STRETCH)

        await store()
        seconds["client"].clear()
        seconds["leader"].clear()
        with gc_disabled():
            for number in range(effort.pick(40, 6)):
                if number % 2:
                    await store()
                loop_over()
                if not number % 2:
                    await store()
        assert producer.sessions[SHARD].session.resent_batches == 0, "a batch was sent twice"
    return compared(seconds)


def compared(seconds: dict[str, list[float]]) -> Measurement:
    """Return the measurement from side → processor seconds of a record, by round."""
    ratios = [leader / bare for leader, bare in zip(seconds["leader"], seconds["bare"], strict=True)]
    parts: dict[str, Part] = {f"{side}_us": round(median(found) * 1e6, 1) for side, found in seconds.items()}
    parts |= {"lowest": round(min(ratios), 4), "highest": round(max(ratios), 4), "rounds": len(ratios)}
    return Measurement(median(ratios), parts)


BENCHMARK = Benchmark(unit="times a loop over the same bytes", goal=5, better="lower", measure=measure)
