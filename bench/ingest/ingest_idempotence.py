"""Latency of exactly-once, against batches without an identity.

Batches of one record of 100 bytes go to a real daemon, some with a producer id and a sequence, some with neither,
which the leader accepts without looking for duplicates. Client, connection and encoder are the same. The two kinds
alternate in short stretches of one run, with one batch in flight and with 16. The value is the greater of the two
ratios of medians; the ratios of the 99th percentiles have their own goal.
"""

import asyncio
import itertools
from contextlib import AsyncExitStack
from functools import partial

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster, leader_epoch, percentile
from headgate.client.connection import Client
from headgate.protocol.replies import Committed, ProducerIdentity, Reply
from headgate.protocol.requests import OpenProducer, ProduceBatch, Record

DEPTHS = (1, 16)
STRETCH = 16
"""Batches of one kind in a row per batch in flight: short, so that other load affects both kinds."""
VALUE_BYTES = 100
AT_MS = 1_700_000_000_000
REPLY_SECONDS = 20.0


class _Sender:
    """Sends batches with or without an identity over a Client: a Producer always has one."""

    def __init__(self, client: Client, identity: ProducerIdentity) -> None:
        self._client = client
        self._identity = identity
        self._sequences = itertools.count()
        self._keys = itertools.count()
        self._loop = asyncio.get_running_loop()

    async def stretch(self, with_id: bool, depth: int, count: int) -> list[float]:
        """Send ``count`` batches with ``depth`` in flight; return the seconds from each send to its commit."""
        seconds: list[float] = []
        done: asyncio.Future[None] = self._loop.create_future()
        sent = 0

        def send() -> None:
            nonlocal sent
            sent += 1
            request_id = next(self._client.request_ids)
            began = self._loop.time()
            self._client.replies.expect(request_id, partial(on_reply, request_id, began))
            assert self._client.send(SHARD, request_id, leader_epoch(self._client), self._batch(with_id)), (
                "the broker is unreachable"
            )

        def on_reply(request_id: int, began: float, reply: Reply) -> None:
            seconds.append(self._loop.time() - began)
            self._client.replies.forget(request_id)
            if not isinstance(reply.body, Committed) or reply.body.duplicate:
                if not done.done():
                    done.set_exception(AssertionError(f"not committed at once: {reply}"))
            elif sent < count:
                send()
            elif len(seconds) == count:
                done.set_result(None)

        for _ in range(min(depth, count)):
            send()
        async with asyncio.timeout(REPLY_SECONDS):
            await done
        return seconds

    def _batch(self, with_id: bool) -> ProduceBatch:
        record = Record(f"sensor-{next(self._keys) % 5000:05d}".encode(), b"v" * VALUE_BYTES, AT_MS)
        return ProduceBatch(
            topic=TOPIC,
            records=[record],
            producer_id=self._identity.producer_id if with_id else None,
            producer_epoch=self._identity.producer_epoch if with_id else 0,
            sequence=next(self._sequences) if with_id else None,
        )


async def measure(effort: Effort) -> Measurement:
    """Return the greater ratio of medians."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        client = await cluster.watcher(stack)
        token = client.new_token()
        reply = await client.request(SHARD, OpenProducer(token=token))
        identity = reply.body
        assert isinstance(identity, ProducerIdentity), identity
        sender = _Sender(client, identity)
        seconds: dict[tuple[int, bool], list[float]] = {}
        for depth in DEPTHS:
            count = STRETCH * depth
            pairs = effort.pick(12_000, 1_200) // count * (1 if depth == 1 else 4)
            await sender.stretch(True, depth, count)
            with gc_disabled():
                for number in range(pairs):
                    for with_id in (True, False) if number % 2 else (False, True):
                        seconds.setdefault((depth, with_id), []).extend(await sender.stretch(with_id, depth, count))
            effort.progress(f"depth {depth}: {pairs} pairs of {count} batches")
    return compared(seconds)


def compared(seconds: dict[tuple[int, bool], list[float]]) -> Measurement:
    """Return the measured value from (depth, with an id) → seconds of each batch."""
    parts: dict[str, Part] = {}
    medians = []
    for depth in sorted({depth for depth, _ in seconds}):
        having, lacking = seconds[depth, True], seconds[depth, False]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            ours, theirs = percentile(having, share), percentile(lacking, share)
            parts[f"{name}_ratio_depth_{depth}"] = round(ours / theirs, 4)
            parts[f"{name}_with_id_ms_depth_{depth}"] = round(ours * 1000, 3)
            parts[f"{name}_without_ms_depth_{depth}"] = round(theirs * 1000, 3)
            if name == "p50":
                medians.append(ours / theirs)
        parts[f"batches_depth_{depth}"] = len(having)
    return Measurement(max(medians), parts)


BENCHMARK = Benchmark(
    unit="times the latency without an id",
    goal=1.03,
    better="lower",
    measure=measure,
    part_goals={f"p99_ratio_depth_{depth}": 1.10 for depth in DEPTHS},
)
