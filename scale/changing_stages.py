"""The stages that change what clients read: transfers, a killed daemon, restarts, and splits of segments.

While leaders change, records are sent to every shard. A record's wait is what clients notice.

`drain_segments` measures how long the children of split segments wait, while Spark counts all shards. Its topics are
its own, one on most of the shards, and its consumers read and acknowledge, as those of the other topics do not. Each
has read its only segment to the last record, which it does not acknowledge; the segment is split, and records are sent
to its children. Then all consumers acknowledge at the same moment, and wait for one of a child. In the first round
Spark has never counted most of the shards; in the second one it adds what is new.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headgate import Consumer, Producer, SegmentId
from headgate.errors import HeadgateError, RequestRejectedError
from headgate.model.layout import shard_of
from scale.building_stages import until_held
from scale.sizes import topic_name
from scale.trial import Trial

CALM_SECONDS: Final = 3.0
"""After each change, for records that wait."""
TRANSFERS: Final = 8
TOPICS: Final = 64
RECORDS: Final = 20
"""Before the split of each topic, and after it."""
SUBSCRIPTION: Final = "drained"
DRAIN_SECONDS: Final = 300.0
"""Longest wait for all children."""
ROUNDS: Final = ("first", "second")


@asynccontextmanager
async def _watched(trial: Trial) -> AsyncIterator[set[int]]:
    """Send records to every shard in the block; add how long they wait on the shards that it adds, and on others."""
    changed: set[int] = set()
    async with trial.probe() as probe:
        await asyncio.sleep(CALM_SECONDS)
        calm = [1000 * each for waits in probe.take().values() for each in waits]
        trial.add_distribution("wait of a record before", calm, "ms")
        yield changed
        await asyncio.sleep(CALM_SECONDS)
        longest_ms = {shard: 1000 * max(waits) for shard, waits in probe.take().items()}
    for name, shards in (("a shard that changed its leader", changed), ("another shard", set(longest_ms) - changed)):
        found = [longest_ms[shard] for shard in shards if shard in longest_ms]
        trial.add_distribution(f"longest wait on {name}", found, "ms")
    trial.add("records that failed", len(probe.failures))


async def transfer_shards(trial: Trial) -> None:
    names = trial.cluster.names
    took_ms: list[float] = []
    refused = 0
    async with _watched(trial) as changed, trial.admin:
        for shard in range(trial.sizes.shards):
            if len(took_ms) == TRANSFERS:
                break
            leader = trial.leaders.leader(shard)
            successor = names[(names.index(leader) + 1) % len(names)] if leader in names else names[0]
            began = time.perf_counter()
            try:
                await trial.admin.transfer_shard(shard, successor)
            except RequestRejectedError:
                refused += 1  # The spread transfers this shard at present.
            else:
                took_ms.append(1000 * (time.perf_counter() - began))
                changed.add(shard)
    trial.add("transfers refused, as another one was under way", refused)
    trial.add_distribution("transfer of a shard", took_ms, "ms")


async def kill_daemon(trial: Trial) -> None:
    """Kill the daemon that leads the shard of the first topic, wait for its successors, and start it again."""
    cluster, shards = trial.cluster, range(trial.sizes.shards)
    registrations = sum(each["registrations"] for each in await cluster.order("state"))
    async with _watched(trial) as changed:
        victim = trial.leaders.leader(shard_of(topic_name(0), len(shards))) or cluster.names[0]
        changed |= {shard for shard in shards if trial.leaders.leader(shard) == victim}
        trial.add("shards without a leader", len(changed))
        killed_ns = time.monotonic_ns()
        await cluster.kill(victim)
        await trial.leaders.until_led()
        trial.add("all shards led again", (time.monotonic_ns() - killed_ns) / 1e9, "s")
    await until_held(trial)
    found = await cluster.order("state")
    trial.add("registrations that followed", sum(each["registrations"] for each in found) - registrations)
    last_ns = max((each["registered_at_ns"] for each in found), default=0)
    trial.add("last of these after", max(0, last_ns - killed_ns) / 1e9, "s")
    began = time.perf_counter()
    await cluster.start_daemon(victim)
    await cluster.until_ready(victim)
    trial.add("it is ready again", time.perf_counter() - began, "s")
    await trial.leaders.until_spread()
    trial.add("shards spread evenly again", time.perf_counter() - began, "s")


async def restart_in_turn(trial: Trial) -> None:
    """Stop each daemon with SIGTERM and start it again, as an upgrade does it."""
    cluster = trial.cluster
    stops: list[float] = []
    async with _watched(trial) as changed:
        changed |= set(range(trial.sizes.shards))
        with trial.timed("all daemons restarted"):
            for name in cluster.names:
                began = time.perf_counter()
                await cluster.stop(name)
                stops.append(time.perf_counter() - began)
                await cluster.start_daemon(name)
                await cluster.until_ready(name)
                await trial.leaders.until_led()
    trial.add_distribution("stopping a daemon", stops, "s")
    began = time.perf_counter()
    await trial.leaders.until_spread()
    trial.add("shards spread evenly after", time.perf_counter() - began, "s")
    trial.add_usage()


async def restart_all(trial: Trial) -> None:
    """Stop all daemons and start them again: every state is read from the object store."""
    cluster, epochs = trial.cluster, trial.leaders.epochs()
    began = time.perf_counter()
    codes = await asyncio.gather(*(cluster.stop(name) for name in cluster.names))
    trial.add("all daemons stopped", time.perf_counter() - began, "s")
    trial.add("of these, with an exit code other than 0", sum(code != 0 for code in codes))
    began = time.perf_counter()
    await cluster.start_daemons()
    for name in cluster.names:
        await cluster.until_ready(name)
    await trial.leaders.until_led(later_than=epochs)  # The daemons have the same names as before.
    trial.add("all shards led from the object store", time.perf_counter() - began, "s")
    await until_held(trial)
    trial.add("consumers hold all segments", time.perf_counter() - began, "s")
    trial.add_usage()
    numbers = await cluster.zookeeper_numbers()
    trial.add("ZooKeeper nodes", numbers["nodes"])
    trial.add("ZooKeeper writes since it started", numbers["writes"])


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
