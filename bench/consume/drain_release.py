"""Wait of a child segment after the last acknowledgement, against a policy that only polls.

Ours: on real servers, from sending the last acknowledgement of a sealed segment to the push that grants its children,
for 1, 10 and 100 subscriptions that reach the end together. The other side: the same drains under the polling policy
alone (first pause 2 s after the split, doubling to 15 min), calculated: a drain that takes from 1 s to 1 h, evenly
distributed over the logarithm, is noticed by the first poll after its end. The value is the median wait under polling
over the median of ours, for the middle one of the three sizes.

After each round one backlog run over a new chunk is measured in the same session. A release may
take one run and 100 ms; the allowed time over the measured time is a part with its own goal.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part
from bench.harness.cluster import SHARD, BenchCluster, percentile
from drain.checker.checker import SparkDrainChecker
from drain.protocol import BacklogRequest
from headgate import Admin, SegmentId, SubscriptionType
from headgate.client.connection import Client
from headgate.protocol.replies import AnyReplyBody, AssignmentChanged, Push, Registered
from headgate.protocol.requests import (
    AcknowledgeBatch,
    Acknowledgement,
    AnyRequestBody,
    ProduceBatch,
    Record,
    RegisterConsumer,
)

SUBSCRIPTIONS = (1, 10, 100)
RECORDS = 20
ANSWER_SECONDS = 60.0
RUN_TIMEOUT_SECONDS = 60.0
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 2.0, 900.0
LONGEST_DRAIN_SECONDS = 3600.0
"""The shortest one takes a second."""
ALLOWED_SECONDS = 0.1
"""Allowed in addition to one backlog run, for messages and commits."""


async def measure(effort: Effort) -> Measurement:
    """Return how many times longer a child waits under polling alone."""
    waits: dict[int, list[float]] = {count: [] for count in SUBSCRIPTIONS}
    runs: list[float] = []
    allowed: list[float] = []
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster(drain=True))
        client = await cluster.watcher(stack)
        admin = await stack.enter_async_context(Admin(client))
        checker = SparkDrainChecker(cluster.spark.socket, timeout_seconds=RUN_TIMEOUT_SECONDS)
        await stack.enter_async_context(checker)
        rounds = effort.pick(7, 2)
        # Round 0 warms up.
        for number in range(rounds + 1):
            for count in SUBSCRIPTIONS:
                drain = _Drain(client, admin, f"t{number}-{count}", count)
                found = await drain.run_once()
                run = await _run_seconds(drain, checker)
                if number:
                    waits[count] += found
                    runs.append(run)
                    allowed.append((run + ALLOWED_SECONDS) / median(found))
            effort.progress(f"round {number} of {rounds}")
    return compared(waits, runs, allowed)


async def _run_seconds(drain: _Drain, checker: SparkDrainChecker) -> float:
    """Return the seconds of one run over what has just been stored."""
    await drain.store(1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await checker.backlog(BacklogRequest(shard=0))
    return loop.time() - began


class _Drain:
    def __init__(self, client: Client, admin: Admin, topic: str, subscriptions: int) -> None:
        self._client = client
        self._admin = admin
        self._topic = topic
        self._names = [f"s{number}" for number in range(subscriptions)]
        self._loop = asyncio.get_running_loop()

    async def run_once(self) -> list[float]:
        """Return the seconds that each subscription waited for both children."""
        await self._admin.create_topic(self._topic)
        await self.store(RECORDS)
        generations = [await self._join(name) for name in self._names]
        await self._admin.split(self._topic, SegmentId(0))
        released = [self._released(name) for name in self._names]
        began = self._loop.time()
        asks = [self._acknowledge(name, held) for name, held in zip(self._names, generations, strict=True)]
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*asks)
            ends = await asyncio.gather(*released)
        return [end - began for end in ends]

    async def store(self, count: int) -> None:
        records = [Record(b"key-%d" % number, b"value", 0) for number in range(count)]

        await self._ask(ProduceBatch(topic=self._topic, records=records))

    async def _join(self, name: str) -> int:
        """Register the one consumer of a subscription; return the generation of its grant."""
        reply = await self._ask(
            RegisterConsumer(
                topic=self._topic,
                subscription=name,
                consumer="c",
                incarnation=1,
                subscription_type=SubscriptionType.STREAM,
                start="earliest",
            )
        )
        assert isinstance(reply, Registered), reply
        (grant,) = reply.grants
        return grant.generation

    def _released(self, name: str) -> asyncio.Future[float]:
        """Return when the subscription has been granted both children."""
        granted: set[int] = set()
        released: asyncio.Future[float] = self._loop.create_future()

        def on_push(push: Push) -> None:
            if isinstance(push, AssignmentChanged):
                granted.update(grant.segment for grant in push.granted)
            if {1, 2} <= granted and not released.done():
                released.set_result(self._loop.time())

        self._client.replies.expect_pushes((self._topic, name, "c", 1), on_push)
        return released

    async def _acknowledge(self, name: str, generation: int) -> None:
        await self._ask(
            AcknowledgeBatch(
                topic=self._topic,
                subscription=name,
                consumer="c",
                incarnation=1,
                acknowledgements=[Acknowledgement(0, generation, 0, RECORDS)],
            )
        )

    async def _ask(self, body: AnyRequestBody) -> AnyReplyBody:
        return (await self._client.request(SHARD, body, ANSWER_SECONDS)).body


def polling_median_seconds() -> float:
    """Return how long the children of a drain wait if only the clock triggers polls, the median of all drains."""
    polls = list(itertools.accumulate(min(FIRST_POLL_SECONDS * 2.0**number, LAST_POLL_SECONDS) for number in range(20)))
    drains = [float(LONGEST_DRAIN_SECONDS ** (number / 1000)) for number in range(1001)]
    return median(next(poll for poll in polls if poll >= drain) - drain for drain in drains)


def compared(waits: dict[int, list[float]], runs: list[float], allowed: list[float]) -> Measurement:
    polling = polling_median_seconds()
    everyone = [wait for found in waits.values() for wait in found]
    parts: dict[str, Part] = {
        "polling_median_ms": round(polling * 1000, 1),
        "median_ms": round(median(everyone) * 1000, 1),
        "p95_ms": round(percentile(everyone, 0.95) * 1000, 1),
        "run_ms": round(median(runs) * 1000, 1),
        "allowed_over_ours": round(median(allowed), 4),
    }
    for count, found in waits.items():
        parts[f"median_of_{count}_ms"] = round(median(found) * 1000, 1)
    # Each size has the same weight: a hundred subscriptions must not outweigh one.
    return Measurement(median(polling / median(found) for found in waits.values()), parts)


BENCHMARK = Benchmark(
    unit="times shorter than polling alone",
    goal=10.0,
    better="higher",
    measure=measure,
    part_goals={"allowed_over_ours": 1.0},
)
