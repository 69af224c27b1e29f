"""Interruption of a producer with a full window during a change of leader, against that of the cluster.

Two daemons contend for one shard; a Producer keeps a full window of 50 KB batches in flight. The
leader is killed, or in every other round asked to end. The cluster's interruption lasts from the
leader's end to the announcement of the next term, seen by an idle client. Ours lasts from the
leader's end to the first commit of the new term. The value is the median of ours over the
cluster's, for the rounds with a kill; a handover is so short that its ratio means little, so only
its parts are reported.

Batches sent twice are counted and reported as a share of the window (the upper bound) and of
everything sent. Each round also checks offsets: nothing may be lost or stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster, leader_epoch
from bench.harness.producer_load import batch_of_records, whole_batches
from headgate import Delivery, Producer, ProducerSettings
from headgate.client.connection import Client

WINDOW = ProducerSettings().max_in_flight
BATCHES_BEFORE = 4 * WINDOW
"""Committed before the change, so that the window is full."""
MAX_OUTSTANDING_BATCHES = 4 * WINDOW
"""Maximum of uncommitted batches: the window, and more that wait behind it."""
CHANGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of leader; seconds count from the end of the old one."""

    announced_seconds: float
    committed_seconds: float
    resent: int
    sent: int


class _Stream:
    """Sends whole batches continuously and checks every outcome."""

    def __init__(self, producer: Producer) -> None:
        self.committed = 0
        self.new_at = 0.0
        """Time of the newest commit that was not a duplicate."""
        self.last: list[Delivery] = []
        self._producer = producer
        self._outstanding = asyncio.Semaphore(MAX_OUTSTANDING_BATCHES)
        self._progress = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self, enough: asyncio.Event) -> None:
        """Send until ``enough``, then wait for every outcome. Raises what a delivery raised."""
        records = batch_of_records()
        async with asyncio.TaskGroup() as tasks:
            while not enough.is_set():
                await self._outstanding.acquire()
                delivery = None
                for key, value in records:
                    delivery = await self._producer.send(TOPIC, key, value)
                assert delivery is not None, "an empty batch"
                tasks.create_task(self._await_outcome(delivery))

    async def _await_outcome(self, delivery: Delivery) -> None:
        stored = await delivery
        self.last.append(delivery)
        self.committed += 1
        if not stored.duplicate:
            self.new_at = self._loop.time()
        self._outstanding.release()
        self._progress.set()

    async def until(self, committed: int) -> None:
        """Wait until ``committed`` batches are committed."""
        while self.committed < committed:
            self._progress.clear()
            await self._progress.wait()

    async def until_new(self, since: float) -> float:
        """Return the time of the first commit after ``since`` that was not a duplicate."""
        while self.new_at <= since:
            self._progress.clear()
            await self._progress.wait()
        return self.new_at


def measure(effort: Effort) -> Measurement:
    """Return the median of the producer's interruption over the cluster's."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    changes: dict[str, list[Change]] = {"kill": [], "handover": []}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster(daemons=2))
        watcher = await cluster.watcher(stack)
        rounds = effort.pick(7, 2)
        for number in range(rounds):
            for how, found in changes.items():
                with gc_disabled():
                    found.append(await _change(cluster, watcher, how))
            effort.progress(f"round {number + 1} of {rounds}")
    return compared(changes)


async def _change(cluster: BenchCluster, watcher: Client, how: str) -> Change:
    """Change the leader once under load, and start a contender again."""
    loop = asyncio.get_running_loop()
    leader = (await cluster.past_leaders())[-1]
    epoch, enough = leader_epoch(watcher), asyncio.Event()
    announced: asyncio.Future[float] = loop.create_future()

    def on_leader(_: object) -> None:
        if leader_epoch(watcher) > epoch and not announced.done():
            announced.set_result(loop.time())

    async with (
        asyncio.timeout(CHANGE_SECONDS),
        Producer(cluster.client_config(), settings=whole_batches(WINDOW)) as producer,
    ):
        stream = _Stream(producer)
        async with asyncio.TaskGroup() as tasks:
            streaming = tasks.create_task(stream.run(enough))
            await stream.until(BATCHES_BEFORE)
            remove_handlers = watcher.on_leader(SHARD, on_leader)
            began = loop.time()
            ending = tasks.create_task(cluster.kill(leader) if how == "kill" else cluster.stop(leader))
            announced_at = await announced
            remove_handlers()
            # Earlier commits are the old leader's.
            committed_at = await stream.until_new(announced_at)
            await stream.until(stream.committed + BATCHES_BEFORE)
            enough.set()
            await streaming
            await ending
        await _check_offsets(stream.last)
        change = Change(announced_at - began, committed_at - began, producer.resent_batches, producer.sent_batches)
    await cluster.start_daemon(leader)
    return change


async def _check_offsets(deliveries: list[Delivery]) -> None:
    """Check that no two batches have the same segment and offset."""
    positions = {(stored.segment, stored.offset) for stored in [await delivery for delivery in deliveries]}
    unknown = sum(1 for _, offset in positions if offset is None)
    assert len(positions) == len(deliveries) or unknown, "two batches have the same offset"


def compared(changes: Mapping[str, list[Change]]) -> Measurement:
    """Return the measured value from the changes of each kind."""
    parts: dict[str, Part] = {}
    for how, found in changes.items():
        after = [each.committed_seconds - each.announced_seconds for each in found]
        parts |= {
            f"{how}_announced_ms": round(median(each.announced_seconds for each in found) * 1000, 1),
            f"{how}_first_commit_ms": round(median(each.committed_seconds for each in found) * 1000, 1),
            f"{how}_commit_after_announcement_ms": round(median(after) * 1000, 1),
            f"{how}_commit_after_announcement_slowest_ms": round(max(after) * 1000, 1),
            f"{how}_sent_twice_of_window": round(median(each.resent / WINDOW for each in found), 4),
            f"{how}_sent_twice_of_all": round(median(each.resent / each.sent for each in found), 4),
        }
    ratios = [each.committed_seconds / each.announced_seconds for each in changes["kill"]]
    parts |= {"lowest": round(min(ratios), 4), "highest": round(max(ratios), 4), "rounds": len(ratios)}
    return Measurement(median(ratios), {**parts, "window": WINDOW})


BENCHMARK = Benchmark(unit="times the cluster's own interruption", goal=1.1, better="lower", measure=measure)
