"""What happens during the demo, and when: two splits, a merge, a join, a silent departure, a killed leader.

Runs on a `DemoCluster` and leaves `Evidence` behind. The times are seconds after the first record; each step is told to
whoever shows the run. Commands go through the public client, as a user's would.
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
READY_SECONDS = 60.0
SETTLE_SECONDS = 45.0
"""Longest wait, after the last record, until every subscription has received everything."""


@dataclass
class Run:
    """What is known of a run while it goes on, and after it."""

    consumers: dict[str, str] = field(default_factory=dict)
    """Every consumer that ever ran → its subscription."""
    killed_leader_at_ms: int | None = None
    steps: list[str] = field(default_factory=list)
    layout: TopicInfo | None = None


ReportStep = Callable[[str], None]


async def run_scenario(cluster: DemoCluster, run: Run, *, rate: int, seconds: float, report_step: ReportStep) -> None:
    """Play the whole scenario; raises HeadgateError if a step cannot be done, or a process ended by itself."""
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
            raise HeadgateError(f"{name} failed to end in good order; its log is {cluster.log_path(name)}")


async def _watch_layout(run: Run, admin: Admin) -> None:
    """Keep the picture of the segments fresh; while nobody leads it stays as it is."""
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
        return "consumer billing-2 is killed without a word"

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
    for share, step in plan:
        await _sleep_until(cluster, began + share * seconds)
        what = await step()
        run.steps.append(what)
        report_step(what)
    await _sleep_until(cluster, began + seconds)


async def _start_consumer(cluster: DemoCluster, run: Run, name: str, subscription: str) -> None:
    run.consumers[name] = subscription
    await cluster.start_consumer(name, subscription, SUBSCRIPTIONS[subscription])


async def _sleep_until(cluster: DemoCluster, at: float) -> None:
    """Wait, and notice at once if a process ends that should not."""
    loop = asyncio.get_running_loop()
    while (left := at - loop.time()) > 0:
        if ended := cluster.exited_programs():
            raise HeadgateError(f"{', '.join(ended)} ended by itself; see {cluster.log_path(ended[0])}")
        await asyncio.sleep(min(left, 0.5))


async def _wait_until_delivered(cluster: DemoCluster, run: Run, admin: Admin) -> None:
    """Wait until everything stored has been acknowledged, or for the limit: the checks judge then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS
    while loop.time() < deadline:
        if ended := cluster.exited_programs():
            raise HeadgateError(f"{', '.join(ended)} ended by itself; see {cluster.log_path(ended[0])}")
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
    """Return the two active neighbours with the fewest records."""
    active = sorted((s for s in topic.segments if s.state == "active"), key=lambda segment: segment.first_hash)
    low, high = min(pairwise(active), key=lambda pair: pair[0].next_offset + pair[1].next_offset)
    return low.segment, high.segment


def _children(topic: TopicInfo, segment: int) -> str:
    found = next(known.children for known in topic.segments if known.segment == segment)
    return " and ".join(str(child) for child in found)


def topic_shard(shards: int) -> int:
    """Return the shard whose ledger holds the demo's topic."""
    return shard_of(TOPIC, shards)
