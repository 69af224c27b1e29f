"""The scenario of the demo: two splits, a merge, a new consumer, a killed consumer and a killed leader.

Runs on a `DemoCluster` and records its steps in a `Run`. Commands use the public client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

from demo.cluster import TOPIC, DemoCluster
from headgate import Admin, SegmentId, SubscriptionType, TopicInfo
from headgate.errors import HeadgateError, NoLeaderError
from headgate.model.hashing import shard_of

STREAM, QUEUE, CHECKPOINT = "billing", "alarms", "archive"
SUBSCRIPTIONS = {
    STREAM: SubscriptionType.STREAM,
    QUEUE: SubscriptionType.QUEUE,
    CHECKPOINT: SubscriptionType.CHECKPOINT,
}
DELIVERY_SECONDS = 45.0
"""Longest wait, after the last record, until every subscription has received everything."""


@dataclass
class Run:
    """State and record of a run."""

    consumers: dict[str, str] = field(default_factory=dict)
    """Every consumer that was started → its subscription."""
    killed_leader_at_ms: int | None = None
    steps: list[str] = field(default_factory=list)
    layout: TopicInfo | None = None


ReportStep = Callable[[str], None]


async def run_scenario(cluster: DemoCluster, run: Run, *, rate: int, seconds: float, report_step: ReportStep) -> None:
    """Run the scenario. Raises HeadgateError if a step fails, or a process ends unexpectedly."""
    await cluster.start_daemon("daemon-1")
    await cluster.start_daemon("daemon-2")
    async with Admin(cluster.client_config()) as admin:
        report_step("waiting for leaders")
        run.layout = await admin.create_topic(TOPIC, segments=2)
        report_step(f"topic {TOPIC!r} created with 2 segments")
        for name, subscription in (
            ("billing-1", STREAM),
            ("billing-2", STREAM),
            ("billing-3", STREAM),
            ("alarms-1", QUEUE),
            ("archive-1", CHECKPOINT),
        ):
            await _start_consumer(cluster, run, name, subscription)
        await cluster.start_producer(rate)
        report_step(f"three STREAM consumers, one QUEUE, one CHECKPOINT; producing {rate} records/s")
        watching = asyncio.create_task(_watch_layout(run, admin), name="watch-layout")
        try:
            await _steps(cluster, run, admin, seconds, report_step)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        report_step("stopping the producer")
        if await cluster.stop("producer") != 0:
            raise HeadgateError(f"the producer failed; its log is {cluster.log_path('producer')}")
        report_step("waiting until everything has been delivered")
        await _wait_until_delivered(cluster, run, admin)
    for name in [name for name in cluster.programs if name in run.consumers]:
        if await cluster.stop(name) != 0:
            raise HeadgateError(f"consumer {name} failed; its log is {cluster.log_path(name)}")
    for name in [name for name in cluster.programs if name.startswith("daemon")]:
        if await cluster.stop(name) != 0:
            raise HeadgateError(f"{name} failed to stop; its log is {cluster.log_path(name)}")


async def _watch_layout(run: Run, admin: Admin) -> None:
    """Update the layout once a second; without a leader it stays unchanged."""
    while True:
        await asyncio.sleep(1)
        try:
            run.layout = await admin.describe_topic(TOPIC)
        except NoLeaderError:
            continue


async def _steps(cluster: DemoCluster, run: Run, admin: Admin, seconds: float, report_step: ReportStep) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def split() -> str:
        segment = _largest(await admin.describe_topic(TOPIC))
        run.layout = await admin.split(TOPIC, segment)
        return f"segment {segment} split into {_children(run.layout, segment)}"

    async def join() -> str:
        await _start_consumer(cluster, run, "billing-4", STREAM)
        return "consumer billing-4 joins"

    async def vanish() -> str:
        await cluster.kill("billing-2")
        return "consumer billing-2 is killed"

    async def crash() -> str:
        leader = await admin.leader_of(TOPIC)
        run.killed_leader_at_ms = time.time_ns() // 1_000_000
        await cluster.kill(leader)
        return f"the leader, {leader}, is killed with SIGKILL"

    async def merge() -> str:
        low, high = _neighbours(await admin.describe_topic(TOPIC))
        run.layout = await admin.merge(TOPIC, low, high)
        return f"segments {low} and {high} merged into {_children(run.layout, low)}"

    plan: list[tuple[float, Callable[[], Awaitable[str]]]] = [
        (0.10, split),
        (0.25, join),
        (0.38, split),
        (0.50, vanish),
        (0.62, crash),
        (0.85, merge),
    ]
    for fraction, step in plan:
        await _sleep_until(cluster, began + fraction * seconds)
        done = await step()
        run.steps.append(done)
        report_step(done)
    await _sleep_until(cluster, began + seconds)


async def _start_consumer(cluster: DemoCluster, run: Run, name: str, subscription: str) -> None:
    run.consumers[name] = subscription
    await cluster.start_consumer(name, subscription, SUBSCRIPTIONS[subscription])


async def _sleep_until(cluster: DemoCluster, at: float) -> None:
    """Wait, and raise HeadgateError as soon as a process ends unexpectedly."""
    loop = asyncio.get_running_loop()
    while (left := at - loop.time()) > 0:
        if ended := cluster.exited_programs():
            raise HeadgateError(f"{', '.join(ended)} ended unexpectedly; see {cluster.log_path(ended[0])}")
        await asyncio.sleep(min(left, 0.5))


async def _wait_until_delivered(cluster: DemoCluster, run: Run, admin: Admin) -> None:
    """Wait until every record is acknowledged or received; after the time limit the checks report the rest."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DELIVERY_SECONDS
    while loop.time() < deadline:
        if ended := cluster.exited_programs():
            raise HeadgateError(f"{', '.join(ended)} ended unexpectedly; see {cluster.log_path(ended[0])}")
        waiting = 0
        for name in (STREAM, QUEUE):
            description = await admin.describe_subscription(TOPIC, name)
            waiting += sum(part.next_offset - part.acknowledged_offset for part in description.segments)
        run.layout = await admin.describe_topic(TOPIC)
        stored = sum(segment.next_offset for segment in run.layout.segments)
        archived = sum(1 for _ in cluster.output_path("archive-1").open("rb"))
        if waiting == 0 and archived >= stored:
            return
        await asyncio.sleep(0.5)


def _largest(topic: TopicInfo) -> SegmentId:
    active = [segment for segment in topic.segments if segment.state == "active"]
    return max(active, key=lambda segment: (segment.next_offset, -segment.segment)).segment


def _neighbours(topic: TopicInfo) -> tuple[SegmentId, SegmentId]:
    """Return the two adjacent active segments with the fewest records."""
    active = sorted((s for s in topic.segments if s.state == "active"), key=lambda segment: segment.first_hash)
    low, high = min(pairwise(active), key=lambda pair: pair[0].next_offset + pair[1].next_offset)
    return low.segment, high.segment


def _children(topic: TopicInfo, segment: int) -> str:
    found = next(known.children for known in topic.segments if known.segment == segment)
    return " and ".join(str(child) for child in found)


def topic_shard(shards: int) -> int:
    """Return the shard whose ledger holds the demo's topic."""
    return shard_of(TOPIC, shards)
