"""The scenario of the demo: two splits, a merge, a new consumer, a killed consumer and a killed leader.

Runs on a `DemoCluster` and records its steps in a `Run`. Commands use the public client.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from controller.settings.sections import SubscriptionSettings
from headgate import Admin, SegmentId, SubscriptionType, TopicInfo
from headgate.errors import HeadgateError
from trials.judge import Patience
from trials.recorded_cluster import Reader, RecordedCluster

SHARDS = 2
TOPIC = "telemetry"
GRACE_SECONDS = 6.0
BILLING = [Reader(f"billing-{number}", TOPIC, "billing", SubscriptionType.STREAM) for number in range(1, 5)]
"""The last one joins later."""
ALARMS = Reader("alarms-1", TOPIC, "alarms", SubscriptionType.QUEUE)
ARCHIVE = Reader("archive-1", TOPIC, "archive", SubscriptionType.CHECKPOINT)
COMMAND_SECONDS = 120.0
"""Longest wait for one command: on a busy machine a change of leaders takes a part of it."""
WAIT_REPORT_SECONDS = 30.0
"""Interval between two lines that say what has not been delivered yet."""
SHOWN_REASONS = 3
"""Sentences of an explanation that are shown per subscription."""
ReportStep = Callable[[str], None]


class DemoCluster(RecordedCluster):
    """Everything that runs during the demo. Entering starts the servers and Spark."""

    def __init__(self, folder: Path, report_step: Callable[[str], None]) -> None:
        self._report_step = report_step
        subscriptions = SubscriptionSettings(
            grace_seconds=GRACE_SECONDS, heartbeat_interval_seconds=1.5, revoke_timeout_seconds=15
        )
        super().__init__(folder, name="demo", shards=SHARDS, subscriptions=subscriptions)

    async def begin(self) -> None:
        await self.start_servers()
        self._report_step(f"ZooKeeper and {self.broker.kind} are ready; Spark starts, which may take minutes")
        await self.start_spark()


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a subscription has not received yet, and why."""

    records: int
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f": {' '.join(self.reasons[:SHOWN_REASONS])}" if self.reasons else ""
        return f"{self.records:,} record{'s' * (self.records != 1)}{why}"


@dataclass
class Run:
    killed_leader_at_ms: int | None = None
    steps: list[str] = field(default_factory=list)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Subscription → what it had not received when nothing changed any more. Empty if everything was delivered."""


async def run_scenario(cluster: DemoCluster, run: Run, *, rate: int, seconds: float, report_step: ReportStep) -> None:
    """Run the scenario. Raises HeadgateError if a step fails, or a process ends unexpectedly."""
    await cluster.start_daemon("daemon-1")
    await cluster.start_daemon("daemon-2")
    async with Admin(cluster.client_config(), timeout_seconds=COMMAND_SECONDS) as admin:
        report_step("waiting for leaders")
        await admin.create_topic(TOPIC, segments=2)
        report_step(f"topic {TOPIC!r} created with 2 segments")
        for reader in (*BILLING[:-1], ALARMS, ARCHIVE):
            await cluster.start_consumer(reader)
        await cluster.start_producer(TOPIC, rate)
        report_step(f"three STREAM consumers, one QUEUE, one CHECKPOINT; producing {rate} records/s")
        await _steps(cluster, run, admin, seconds, report_step)
        report_step("stopping the producer")
        await _stop(cluster, f"producer-{TOPIC}")
        report_step("waiting until everything has been delivered")
        await _wait_until_delivered(cluster, run, admin, report_step)
    # Daemons last: a consumer leaves its leader.
    for name in sorted(cluster.programs, key=lambda name: name in cluster.daemons):
        await _stop(cluster, name)


async def _stop(cluster: DemoCluster, name: str) -> None:
    if await cluster.stop(name) != 0:
        raise HeadgateError(f"{name} failed; its log is {cluster.log_path(name)}")


async def _steps(cluster: DemoCluster, run: Run, admin: Admin, seconds: float, report_step: ReportStep) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def split() -> str:
        segment = _largest(await admin.describe_topic(TOPIC))
        return f"segment {segment} split into {_children(await admin.split(TOPIC, segment), segment)}"

    async def join() -> str:
        await cluster.start_consumer(BILLING[-1])
        return "consumer billing-4 joins"

    async def vanish() -> str:
        await cluster.kill(BILLING[1].name)
        return "consumer billing-2 is killed"

    async def crash() -> str:
        leader = await admin.leader_of(TOPIC)
        run.killed_leader_at_ms = time.time_ns() // 1_000_000
        await cluster.kill(leader)
        return f"the leader, {leader}, is killed with SIGKILL"

    async def merge() -> str:
        low, high = _neighbours(await admin.describe_topic(TOPIC))
        return f"segments {low} and {high} merged into {_children(await admin.merge(TOPIC, low, high), low)}"

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


async def _sleep_until(cluster: DemoCluster, at: float) -> None:
    """Wait, and raise HeadgateError as soon as a process ends unexpectedly."""
    loop = asyncio.get_running_loop()
    while (left := at - loop.time()) > 0:
        _require_running(cluster)
        await asyncio.sleep(min(left, 0.5))


def _require_running(cluster: DemoCluster) -> None:
    if ended := cluster.exited_programs():
        raise HeadgateError(f"{', '.join(ended)} ended unexpectedly; see {cluster.log_path(ended[0])}")


async def _wait_until_delivered(cluster: DemoCluster, run: Run, admin: Admin, report_step: ReportStep) -> None:
    """Wait until every record is acknowledged or received, or nothing changes any more; `trials.judge`."""
    loop = asyncio.get_running_loop()
    patience, report_at = Patience(loop.time()), loop.time() + WAIT_REPORT_SECONDS
    while True:
        _require_running(cluster)
        stored = sum(segment.next_offset for segment in (await admin.describe_topic(TOPIC)).segments)
        archived = sum(1 for _ in cluster.outputs(ARCHIVE)[0].open("rb"))
        run.waiting = {ARCHIVE.subscription: Waiting(stored - archived)} if archived < stored else {}
        observed: list[object] = [stored, archived]
        for name in (BILLING[0].subscription, ALARMS.subscription):
            segments = (await admin.explain(TOPIC, name)).segments
            observed += [(part.segment, part.status, part.consumers, part.backlog_records) for part in segments]
            behind = [part for part in segments if part.backlog_records]
            if behind:
                reasons = tuple(sentence for part in behind for sentence in part.sentences)
                run.waiting[name] = Waiting(sum(part.backlog_records or 0 for part in behind), reasons)
        if not run.waiting or patience.ended(loop.time(), observed):
            return
        if loop.time() >= report_at:
            report_at = loop.time() + WAIT_REPORT_SECONDS
            for name, waiting in run.waiting.items():
                report_step(f"not delivered to {name} yet: {waiting}")
        await asyncio.sleep(0.5)


def _largest(topic: TopicInfo) -> SegmentId:
    active = [segment for segment in topic.segments if segment.state == "active"]
    return max(active, key=lambda segment: (segment.next_offset, -segment.segment)).segment


def _neighbours(topic: TopicInfo) -> tuple[SegmentId, SegmentId]:
    active = sorted((s for s in topic.segments if s.state == "active"), key=lambda segment: segment.first_hash)
    low, high = min(pairwise(active), key=lambda pair: pair[0].next_offset + pair[1].next_offset)
    return low.segment, high.segment


def _children(topic: TopicInfo, segment: int) -> str:
    found = next(known.children for known in topic.segments if known.segment == segment)
    return " and ".join(str(child) for child in found)
