"""Play a schedule on a cluster: begin and end its faults while producers, consumers and an operator work.

It decides nothing about what clients saw: chaos.judge does. What it notes itself is a step that failed or took too
long, such as a topic that accepts nothing after a fault.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.cluster import ORDERS, PAYMENTS, READERS, READINGS, TOPICS, ChaosCluster
from chaos.faults.catalogue import CATALOGUE
from chaos.faults.fault import Fault, Stage
from chaos.judge import SECOND_NS, FaultWindow, Operation, RunEvidence, Timeline
from chaos.operator import Operator
from chaos.schedule import PlannedFault
from headgate import Admin, SubscriptionType
from headgate.errors import HeadgateError
from headgate.process.background import cancel_and_wait
from trials.judge import STALLED_SECONDS, Patience, TopicEvidence, Violation

TAIL_BYTES: Final = 4096
"""More than one line of a producer's file."""
COMMAND_SECONDS: Final = 60.0
"""Deadline of the operator's commands."""
RECOVERY_SECONDS: Final = 90.0
"""Longest wait until a fault has begun or ended, and after it until every topic accepts records."""
WATCH_INTERVAL_SECONDS: Final = 0.25
STANDSTILL_SECONDS: Final = 1.0
"""Without a turn for longer, this process may have stopped the topics itself: all connections pass its proxies."""
SEGMENTS: Final = 2
RATE_SHARES: Final = {ORDERS: 1.0, PAYMENTS: 0.3, READINGS: 0.1}
"""Rate of each topic's producer, relative to the first one."""
Say = Callable[[str], None]


def newest_done_ns(path: Path) -> int:
    """Return when the last record of a growing file of a producer was done; 0: none was."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    fields = lines[-1].split(b"\t") if lines else []
    return int(fields[1]) if len(fields) > 1 and fields[2] == b"committed" else 0


def timeline_of(
    run: RunEvidence, began_ns: int, ended_ns: int, operations: Sequence[Operation], children: Mapping[int, int]
) -> Timeline:
    """Return when everything happened. ``children``: segment of the orders → when it was created.

    A child without records is left out: a merge may follow while no producer is connected.
    """
    (orders,) = (topic for topic in run.topics if topic.topic == ORDERS)
    streams = [each for each in orders.subscriptions if each.kind is SubscriptionType.STREAM]
    first: dict[int, int] = {}
    for delivery in (delivery for each in streams for delivery in each.deliveries):
        first[delivery.segment] = min(delivery.at_ns, first.get(delivery.segment, delivery.at_ns))
    stored_ns = _first_stored(orders)
    return Timeline(
        began_ns=began_ns,
        ended_ns=ended_ns,
        acknowledged={
            topic.topic: sorted(record.done_ns for record in topic.sent if record.outcome == "committed")
            for topic in run.topics
        },
        delivered=sorted(
            delivery.at_ns
            for topic in run.topics
            for subscription in topic.subscriptions
            for delivery in subscription.deliveries
        ),
        operations=operations,
        children=[
            (max(made_ns, stored_ns[segment]), first.get(segment, ended_ns))
            for segment, made_ns in sorted(children.items())
            if segment in stored_ns
        ],
    )


def _first_stored(topic: TopicEvidence) -> dict[int, int]:
    segments = {(record.key, record.counter): record.segment for record in topic.stored}
    first: dict[int, int] = {}
    for record in topic.sent:
        segment = segments.get((record.key, record.counter))
        if segment is not None and record.outcome == "committed":
            first[segment] = min(record.done_ns, first.get(segment, record.done_ns))
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    minutes: float
    seed: int
    names: Sequence[str]
    """Faults to play in this order, those joined by "+" at once; none: a schedule of all."""
    at_once: int
    fault_seconds: float | None
    rest_seconds: float
    rate: int
    """Records per second to the first topic."""
    with_spark: bool
    tls: bool = False
    clients: str = sys.executable
    """The Python that runs producers and consumers."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    options: Options
    faults: Sequence[PlannedFault]
    seconds: float
    """How long to produce. Faults that were named are all played, even if that takes longer."""


@dataclass(slots=True)
class Played:
    began_ns: int = 0
    ended_ns: int = 0
    faults: list[FaultWindow] = field(default_factory=list)
    ended_programs: list[str] = field(default_factory=list)
    notes: list[Violation] = field(default_factory=list)
    standstill_seconds: float = 0.0
    """The longest time without a turn of this process, and of its proxies, during the present fault."""

    def note(self, problem: str) -> None:
        self.notes.append(Violation("not finished", problem))


async def play(folder: Path, plan: RunPlan, say: Say) -> tuple[RunEvidence, Timeline, list[str]]:
    """Play ``plan`` in ``folder``; return the evidence, the timeline, and the daemons that ended on their own.

    Raises HeadgateError if the cluster cannot be started, or a ledger cannot be read.
    """
    played, options = Played(), plan.options
    spark = ", and Spark" if options.with_spark else ""
    say(f"starting three ZooKeeper servers, mosquitto and three daemons{spark}")
    async with ChaosCluster(folder, tls=options.tls) as cluster:
        cluster.program_python = options.clients
        await cluster.start_servers()
        await cluster.start_daemons()
        if options.with_spark:
            await cluster.start_spark()
        async with Admin(cluster.client_config(), timeout_seconds=COMMAND_SECONDS) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, segments=SEGMENTS)
            stage = Stage(cluster, Operator(admin, changes_layout=options.with_spark), random.Random(options.seed))
            for topic, share in RATE_SHARES.items():
                await cluster.start_producer(topic, max(1, round(options.rate * share)))
            for reader in READERS:
                await cluster.start_consumer(reader)
            async with _background(stage, played):
                await _play_faults(stage, plan, played, say)
            await _finish(stage, played, say)
        for name in [*cluster.programs]:
            if (code := await cluster.stop(name)) != 0:
                played.ended_programs.append(f"{name} ended with code {code} when it was stopped")
        say("reading the ledger and the files of producers and consumers")
        topics = [await cluster.evidence(topic) for topic in TOPICS]
        run = RunEvidence(topics, played.faults, played.ended_programs, played.notes)
        timeline = timeline_of(
            run, played.began_ns, played.ended_ns, stage.operator.operations, stage.operator.children
        )
        return run, timeline, cluster.restarts


@asynccontextmanager
async def _background(stage: Stage, played: Played) -> AsyncIterator[None]:
    """Start daemons again that end on their own, and let the operator work; until leaving."""
    watching = asyncio.create_task(_watch(stage.cluster, played), name="watch programs")
    tasks = [watching, asyncio.create_task(stage.operator.run(), name="operator")]
    try:
        yield
    finally:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                played.note(f"{task.get_name()}: {error}")
            await cancel_and_wait(task)


async def _watch(cluster: ChaosCluster, played: Played) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + WATCH_INTERVAL_SECONDS
        await asyncio.sleep(WATCH_INTERVAL_SECONDS)
        played.standstill_seconds = max(played.standstill_seconds, loop.time() - due)
        played.ended_programs += await cluster.restart_ended_daemons()


async def _play_faults(stage: Stage, plan: RunPlan, played: Played, say: Say) -> None:
    loop = asyncio.get_running_loop()
    await _until_accepting(stage.cluster, 0, "the start", played)
    began, played.began_ns = loop.time(), time.monotonic_ns()
    for number, planned in enumerate(plan.faults, 1):
        await asyncio.sleep(max(0.0, planned.begins_seconds - (loop.time() - began)))
        if not plan.options.names and loop.time() - began + planned.seconds > plan.seconds:
            say(f"{len(plan.faults) - number + 1} faults are left out: the earlier ones took longer than planned")
            break
        say(f"{loop.time() - began:6.1f} s  {number:2}  {planned.name}")
        await _play_fault(stage, planned, played)
        say(f"{loop.time() - began:6.1f} s      over. {played.faults[-1].note}")
        await _until_accepting(stage.cluster, played.faults[-1].ended_ns, planned.name, played)
        await asyncio.sleep(plan.options.rest_seconds)
    await asyncio.sleep(max(0.0, plan.seconds - (loop.time() - began)))


async def _play_fault(stage: Stage, planned: PlannedFault, played: Played) -> None:
    """Begin one fault, or several, wait, and end them. One that fails is noted, and what it may have left is restored.

    Several may concern one process. One that can therefore not begin or end is no problem of the run.
    """
    faults = [CATALOGUE[name](stage) for name in planned.name.split("+")]
    began_ns, played.standstill_seconds = time.monotonic_ns(), 0.0
    begun = [fault for fault in faults if await _done(fault, fault.begin, played, alone=len(faults) == 1)]
    await asyncio.sleep(planned.seconds)
    for fault in begun:
        await _done(fault, fault.end, played, alone=len(faults) == 1)
    continuing = frozenset.intersection(*(fault.continuing for fault in faults))
    summary, note = (" ".join(words) for words in zip(*((each.summary(), each.note) for each in faults), strict=True))
    if (standstill := played.standstill_seconds) > STANDSTILL_SECONDS:
        note, continuing = f"{note} The proxies got no processor for {standstill:.1f} s.", frozenset()
    played.faults.append(FaultWindow(planned.name, summary, began_ns, time.monotonic_ns(), note, continuing))


async def _done(fault: Fault, act: Callable[[], Awaitable[None]], played: Played, *, alone: bool) -> bool:
    """Begin or end ``fault``; return False if it cannot, or waits for what another one prevents or has ended."""
    try:
        async with asyncio.timeout(RECOVERY_SECONDS):
            await act()
    except (HeadgateError, TimeoutError, ProcessLookupError) as error:
        problem = str(error) or f"not done after {RECOVERY_SECONDS:g} s"
        if alone:
            played.note(f"{fault.name}: {problem}")
        fault.note += f" {problem}"
        await fault.cluster.restore()
        return False
    return True


async def _until_accepting(cluster: ChaosCluster, since_ns: int, after: str, played: Played) -> None:
    """Wait until every topic has accepted a record that was acknowledged after ``since_ns``."""
    waiting = list(TOPICS)
    deadline = asyncio.get_running_loop().time() + RECOVERY_SECONDS
    while True:
        waiting = [topic for topic in waiting if newest_done_ns(cluster.output_path(f"producer-{topic}")) <= since_ns]
        if not waiting:
            return
        if asyncio.get_running_loop().time() > deadline:
            played.note(f"{', '.join(waiting)} accepted nothing for {RECOVERY_SECONDS:g} s after {after}")
            return
        await asyncio.sleep(WATCH_INTERVAL_SECONDS)


async def _finish(stage: Stage, played: Played, say: Say) -> None:
    """Stop the producers, and wait until every subscription has acknowledged everything."""
    cluster, loop = stage.cluster, asyncio.get_running_loop()
    say(f"{(time.monotonic_ns() - played.began_ns) / SECOND_NS:6.1f} s  stopping the producers")
    for topic in TOPICS:
        name = f"producer-{topic}"
        if name in cluster.programs and (code := await cluster.stop(name)) != 0:
            played.ended_programs.append(f"{name} ended with code {code} when it was stopped")
    played.ended_ns = time.monotonic_ns()
    say("waiting until everything is delivered")
    patience = Patience(loop.time())
    waiting = dict.fromkeys(sorted({(reader.topic, reader.subscription) for reader in READERS}), -1)
    while any(waiting.values()):
        try:
            for topic, subscription in waiting:
                waiting[topic, subscription] = await stage.operator.unacknowledged(topic, subscription)
        except HeadgateError as error:
            played.note(f"the end: {error}")
            return
        if patience.ended(loop.time(), dict(waiting)):
            names = ", ".join(f"{topic}/{name}: {count}" for (topic, name), count in waiting.items() if count)
            played.note(f"not acknowledged, and nothing changed for {STALLED_SECONDS:g} s: {names}")
            return
        await asyncio.sleep(WATCH_INTERVAL_SECONDS)
