"""The stages that build the cluster up: daemons, topics, consumers, producers; and what it costs at rest."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headgate import SegmentId
from headgate.errors import HeadgateError
from scale.cluster import Usage
from scale.sizes import segments_of, topic_name
from scale.trial import Trial, spent

CREATING: Final = 32
"""Topics that are created at the same time."""
SPLITS: Final = 100
"""At most one of each topic."""
HOLD_SECONDS: Final = 300.0
"""Longest wait until the consumers hold all segments."""
POLL_SECONDS: Final = 0.5
REST_SECONDS: Final = 15.0
"""How long processes are looked at while nothing but heartbeats is asked of them."""


async def start_daemons(trial: Trial) -> None:
    """Start all daemons at once, until all shards are led. The spread continues during the next stages."""
    cluster = trial.cluster
    if cluster.has_spark:
        began = time.perf_counter()
        await cluster.start_spark()
        trial.add("Spark ready", time.perf_counter() - began, "s")
    began = time.perf_counter()
    await cluster.start_daemons()
    async with trial.admin:
        # The first description of the cluster is published by a daemon.
        await trial.leaders.watch()
        await trial.leaders.until_led()
    trial.add("all shards led", time.perf_counter() - began, "s")
    trial.add("shards of the busiest daemon then", max(trial.leaders.led().values()))
    trial.spreading = asyncio.get_running_loop().create_task(_until_spread(trial, began), name="spreading")
    for name in cluster.names:
        await cluster.until_ready(name)
    trial.add("all daemons ready", time.perf_counter() - began, "s")
    numbers = await cluster.zookeeper_numbers()
    trial.add("ZooKeeper nodes", numbers["nodes"])
    trial.add("ZooKeeper writes so far", numbers["writes"])
    trial.add_usage()
    await _rest(trial)


async def _until_spread(trial: Trial, began: float) -> float:
    await trial.leaders.until_spread()
    return time.perf_counter() - began


async def wait_for_spread(trial: Trial) -> None:
    """Wait until the daemons lead equally many shards, and look at what they need at rest then."""
    assert trial.spreading is not None, "after the stage that starts the daemons"
    trial.add("shards spread evenly, since the start", await trial.spreading, "s")
    await _rest(trial)


async def create_topics(trial: Trial) -> None:
    sizes = trial.sizes
    numbers = iter(range(sizes.topics))
    took_ms: list[float] = []

    async def create_some() -> None:
        for number in numbers:
            began = time.perf_counter()
            await trial.admin.create_topic(topic_name(number), segments=segments_of(sizes, number))
            took_ms.append(1000 * (time.perf_counter() - began))

    splits = range(min(SPLITS, sizes.topics))

    async def split_some() -> None:
        for number in numbers:
            await trial.admin.split(topic_name(number), SegmentId(0))

    async with trial.admin:
        with trial.timed("topics created"):
            await _at_once(create_some)
        trial.add_distribution("creating a topic", took_ms, "ms")
        numbers = iter(splits)
        with trial.timed(f"{len(splits)} segments split"):
            await _at_once(split_some)
    trial.readable_segments = sizes.segments + len(splits)
    trial.add("active segments", trial.readable_segments)
    trial.add_usage()


async def join_consumers(trial: Trial) -> None:
    cluster = trial.cluster
    await cluster.start_clients()
    with trial.timed("all consumers hold all segments"):
        with trial.timed("consumers joined"):
            answers = await cluster.order("join")
        await until_held(trial)
    trial.add_distribution("joining", [each for answer in answers for each in answer], "ms")
    trial.add_usage()


async def open_producers(trial: Trial) -> None:
    before = trial.cluster.usage()
    began = time.perf_counter()
    with trial.timed("producers opened"):
        answers = await trial.cluster.order("open")
    seconds = time.perf_counter() - began
    opened = sum(each["opened"] for each in answers)
    trial.add("openings", opened / seconds, "1/s")
    trial.add("openings that failed", sum(each["failed"] for each in answers))
    trial.add_distribution("opening", [each for answer in answers for each in answer["took_ms"]], "ms")
    grown = _memory(trial.cluster.usage()["daemon"]) - _memory(before["daemon"])
    trial.add("memory of all daemons per producer", grown / opened, "B")
    trial.add_usage()
    await _rest(trial)


async def until_held(trial: Trial) -> None:
    """Wait until every readable segment is held, and every consumer holds one. Raises HeadgateError after a time."""
    held = idle = 0
    try:
        async with asyncio.timeout(HOLD_SECONDS):
            while True:
                states = await trial.cluster.order("state")
                held, idle = (sum(each[name] for each in states) for name in ("segments", "idle"))
                if held >= trial.readable_segments and not idle:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise HeadgateError(
            f"the consumers hold {held} of {trial.readable_segments} segments after {HOLD_SECONDS:g} s, and {idle} of "
            "them hold none"
        ) from None


async def _rest(trial: Trial) -> None:
    """Add what the processes need while nothing is asked of them but heartbeats."""
    before, began = trial.cluster.usage(), time.perf_counter()
    await asyncio.sleep(REST_SECONDS)
    lasted = time.perf_counter() - began
    for kind, used in spent(before, trial.cluster.usage()).items():
        trial.add(f"processor at rest, all of {kind}", 100 * used / lasted, "%")


def _memory(usages: list[Usage]) -> int:
    return sum(each.memory_bytes for each in usages)


async def _at_once(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CREATING):
            tasks.create_task(work())
