"""The stage that splits segments under their readers: how long their children wait, while Spark counts all shards.

Its topics are its own, one on most of the shards, and its consumers read and acknowledge, as those of the other topics
do not. Each has read its only segment to the last record, which it does not acknowledge; the segment is split, and
records are sent to its children. Then all consumers acknowledge at the same moment, and wait for one of a child. In
the first round Spark has never counted most of the shards; in the second one it adds what is new.
"""

import asyncio
import time
from typing import Final

from headgate import Consumer, Producer, SegmentId
from headgate.errors import HeadgateError
from scale.trial import Trial

TOPICS: Final = 64
RECORDS: Final = 20
"""Before the split of each topic, and after it."""
SUBSCRIPTION: Final = "drained"
DRAIN_SECONDS: Final = 300.0
"""Longest wait for all children."""


ROUNDS: Final = ("first", "second")


async def drain_segments(trial: Trial) -> None:
    """Split a segment of each topic of this stage, and measure how long its children wait for their ancestor."""
    if not trial.cluster.has_spark:
        return  # No program would say what is drained.
    for name in ROUNDS:
        await _split_all(trial, name)
    trial.add_usage()


async def _split_all(trial: Trial, name: str) -> None:
    topics = [f"drained-{name}-{number:02d}" for number in range(min(TOPICS, trial.sizes.topics))]
    read = asyncio.Barrier(len(topics))
    waits_ms: list[float] = []
    async with trial.admin, Producer(trial.cluster.client_config()) as producer:
        try:
            async with asyncio.timeout(DRAIN_SECONDS), asyncio.TaskGroup() as tasks:
                for topic in topics:
                    tasks.create_task(_follow_split(trial, producer, topic, read, waits_ms))
        except TimeoutError:
            raise HeadgateError(
                f"{len(waits_ms)} of {len(topics)} split segments have readable children after {DRAIN_SECONDS:g} s"
            ) from None
    trial.add(f"{name} round, segments split while they were read", len(topics))
    trial.add_distribution(f"{name} round, from the last acknowledgement to a record of a child", waits_ms, "ms")


async def _follow_split(
    trial: Trial, producer: Producer, topic: str, read: asyncio.Barrier, waits_ms: list[float]
) -> None:
    await trial.admin.create_topic(topic)
    await _send(producer, topic)
    async with Consumer(
        trial.cluster.client_config(), topic=topic, subscription=SUBSCRIPTION, start="earliest"
    ) as consumer:
        for _ in range(RECORDS - 1):
            await consumer.acknowledge(await anext(consumer))
        last = await anext(consumer)
        await trial.admin.split(topic, SegmentId(0))
        await _send(producer, topic)
        await read.wait()
        began = time.perf_counter()
        await consumer.acknowledge(last)
        child = await anext(consumer)
        waits_ms.append(1000 * (time.perf_counter() - began))
        if child.segment == last.segment:
            raise HeadgateError(f"{topic}: a record of segment {child.segment} was delivered after its last one")


async def _send(producer: Producer, topic: str) -> None:
    for number in range(RECORDS):
        await producer.send_and_wait(topic, b"key %d" % number, b"value")
