"""Interruption of a producer by a change of leader against that of the cluster, and its recovery from an outage.

Two daemons contend for one shard; a Producer keeps a full window of 50 KB batches in flight. The
leader is killed, or in every other round asked to end. The cluster's interruption lasts from the
leader's end to the announcement of the next term, seen by an idle client. Ours lasts from the
leader's end to the first commit of the new term. The value is the median of ours over the
cluster's, for the rounds with a kill; a handover is so short that its ratio means little, so only
its parts are reported.

Batches sent twice are counted and reported as a share of the window (the upper bound) and of
everything sent. Each round also checks offsets: nothing may be lost or stored twice.

Another part is an outage of the network that lasts longer than the delivery timeout. A Producer at a round trip of
0.3 s sends 8 records of 30 kB per second, and loses the network for 15 s with a delivery timeout of 10 s. Then each
queued record has less time left than the one behind it. `outage_round_trips` is the time from the network's
return to the first commit over the round trip: it includes reconnecting, subscribing and opening the identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import SHARD, TOPIC, BenchCluster, leader_epoch
from bench.harness.producer_load import batch_of_records, whole_batches
from bench.harness.tcp_proxy import Proxy
from controller.local.reserved_port import LOOPBACK
from headgate import Delivery, Producer, ProducerSettings
from headgate.client.connection import Client
from headgate.errors import HeadgateError

WINDOW = ProducerSettings().max_in_flight
BATCHES_BEFORE = 4 * WINDOW
"""Committed before the change, so that the window is full."""
MAX_OUTSTANDING_BATCHES = 4 * WINDOW
"""Maximum of uncommitted batches: the window, and more that wait behind it."""
CHANGE_SECONDS = 60.0
DELAY_MS = 150
"""In each direction."""
RECORD, RECORDS_PER_SECOND = b"v" * 30_000, 8
HEALTHY_SECONDS, OUTAGE_SECONDS, DELIVERY_TIMEOUT_SECONDS = 3.0, 15.0, 10.0


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
        outages = [await _outage(cluster) for _ in range(effort.pick(3, 1))]
    return compared(changes, outages)


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


async def _outage(cluster: BenchCluster) -> float:
    """Return the seconds from the end of an outage of the network to the first commit."""
    loop = asyncio.get_running_loop()
    healed_at: asyncio.Future[float] = loop.create_future()
    committed: asyncio.Future[float] = loop.create_future()

    async def outcome(delivery: Delivery) -> None:
        with suppress(HeadgateError):
            await delivery
            if healed_at.done() and not committed.done():
                committed.set_result(loop.time() - healed_at.result())

    async def send(producer: Producer, tasks: asyncio.TaskGroup) -> None:
        while not committed.done():
            tasks.create_task(outcome(await producer.send(TOPIC, b"key", RECORD)))
            await asyncio.sleep(1 / RECORDS_PER_SECOND)

    async with AsyncExitStack() as stack:
        ports = await cluster.start_delays(stack, [DELAY_MS])
        proxy = await stack.enter_async_context(Proxy(LOOPBACK, ports[DELAY_MS]))
        settings = ProducerSettings(delivery_timeout_seconds=DELIVERY_TIMEOUT_SECONDS)
        producer = await stack.enter_async_context(Producer(cluster.client_config(proxy.port), settings=settings))
        async with asyncio.timeout(CHANGE_SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(send(producer, tasks))
            await asyncio.sleep(HEALTHY_SECONDS)
            await proxy.blackhole()
            await asyncio.sleep(OUTAGE_SECONDS)
            await proxy.heal()
            healed_at.set_result(loop.time())
    return committed.result()


def compared(changes: Mapping[str, list[Change]], outages: list[float]) -> Measurement:
    """Return the measured value from the changes of each kind, and the seconds until producers recovered."""
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
    parts["outage_round_trips"] = round(median(outages) * 1000 / (2 * DELAY_MS), 2)
    return Measurement(median(ratios), {**parts, "window": WINDOW})


BENCHMARK = Benchmark(
    unit="times the cluster's own interruption",
    goal=1.1,
    better="lower",
    measure=measure,
    part_goals={"outage_round_trips": 5.0},
)
