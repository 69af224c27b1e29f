"""How much longer a producer stands still than its cluster, when the leader changes under a full window.

Two daemons contend for one shard; a Producer keeps a full window of 50 KB batches in flight. The leader is killed, or
in every other round asked to end. The other side, in the same change, is the cluster: from the leader's end to the
announcement of the next reign, seen by a client that does nothing else. Ours: from the leader's end to the first commit
of the new reign. The value is the median of ours over the other, of the rounds with a kill; a handover takes so short a
time that its ratio says little, and only its parts are told.

What was sent twice is counted in batches, and told as a share of the window (what was in flight is all that may be)
and of everything that was sent. Nothing may be lost or stored twice on the way: offsets are looked at in each round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from bench._cluster import SHARD, TOPIC, BenchCluster, leader_epoch
from bench._harness import Benchmark, Effort, Measurement, Part, gc_disabled
from bench._load import batch_of_records, whole_batches
from headgate import Delivery, Producer, ProducerSettings
from headgate.client.connection import Client

WINDOW = ProducerSettings().max_in_flight
BATCHES_BEFORE = 4 * WINDOW
"""Committed before the change, so that it meets a window in full swing."""
MAX_OUTSTANDING_BATCHES = 4 * WINDOW
"""Most batches handed to the producer and not committed: the window is full, and more waits behind it."""
CHANGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """What one change of leader looked like; seconds count from the end of the old one."""

    announced_seconds: float
    committed_seconds: float
    resent: int
    sent: int


class _Stream:
    """Whole batches without a break, each outcome looked at."""

    def __init__(self, producer: Producer) -> None:
        self.committed = 0
        self.new_at = 0.0
        """When the newest commit came that was not the answer to a repetition."""
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
                tasks.create_task(self._settle(delivery))

    async def _settle(self, delivery: Delivery) -> None:
        stored = await delivery
        self.last.append(delivery)
        self.committed += 1
        if not stored.duplicate:
            self.new_at = self._loop.time()
        self._outstanding.release()
        self._progress.set()

    async def until(self, committed: int) -> None:
        """Wait until so many batches are committed."""
        while self.committed < committed:
            self._progress.clear()
            await self._progress.wait()

    async def until_new(self, since: float) -> float:
        """Return when the first batch after ``since`` was committed that had not been stored before."""
        while self.new_at <= since:
            self._progress.clear()
            await self._progress.wait()
        return self.new_at


def measure(effort: Effort) -> Measurement:
    """Return the median of the producer's standstill over the cluster's."""
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
    """Change the leader once under load, and bring a contender back."""
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
            # What was committed before was the old leader's.
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
    """Check that no two batches stand at one place: only one of two equal ones may have been stored."""
    places = {(stored.segment, stored.offset) for stored in [await delivery for delivery in deliveries]}
    unknown = sum(1 for _, offset in places if offset is None)
    assert len(places) == len(deliveries) or unknown, "two batches stand at one place"


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


BENCHMARK = Benchmark(unit="times the cluster's own standstill", goal=1.1, better="lower", measure=measure)
