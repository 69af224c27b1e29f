"""headgate beside Redis streams, NATS JetStream and RabbitMQ streams, each with its Python client.

All servers run on this machine with files of their own, and their clients in this process. They do the same work in
turns, on random bytes. headgate is one daemon with one shard, mosquitto, and no Spark. headgate and Redis
(``appendfsync always``) sync before they acknowledge ([what can be reached](decisions/batch-encoding.md)). A server or
client that is missing is named, and left out.

* The value: records per second of one producer, ours divided by those of the best peer of each round, of 100 bytes
  (``peers_100``) and of 1000 bytes; the lesser counts.
* ``peers_read``: records of 100 bytes per second of a new consumer that reads all of them, ours divided by those of
  Redis; both look at each key and value. All sides send and receive in lists, where their clients do.
* ``peers_ack``: the median time until a single record is acknowledged, ours divided by that of Redis, and
  ``peers_ack_tail``: our 99th percentile divided by our median.
* ``peers_e2e`` and ``peers_e2e_tail``: the same for the time until a consumer has the record.
"""

import asyncio
import importlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, Work, run_alternating
from bench.harness.cluster import percentile
from bench.harness.peers.peer import PROBE_SECONDS, START_SECONDS, MissingServerError, Peer
from headgate.errors import HeadgateError

OURS, SYNCED = "headgate", "redis"
PACKAGE = "bench.harness.peers"
MODULES = {
    OURS: f"{PACKAGE}.headgate_node",
    SYNCED: f"{PACKAGE}.redis_streams",
    "nats": f"{PACKAGE}.nats_jetstream",
    "rabbitmq": f"{PACKAGE}.rabbitmq_streams",
}
"""Name of each server → the module with its `Peer`."""
SMALL, LARGE = "100", "1000"
"""Streams with records of so many bytes."""
SINGLES = "singles"
PAUSE_SECONDS = 0.002
"""Pause before a single record, so that each starts with idle processes."""

Speeds = Mapping[str, Mapping[str, Sequence[float]]]
"""Part of the result → server → records per second, by round."""
Stretches = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""Part of the result → server → seconds of each single record, by round."""


async def measure(effort: Effort) -> Measurement:
    """Return how many times as many records headgate stores as the best peer."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        peers, missing = await started(MODULES, stack, folder)
        for name, reason in missing.items():
            effort.progress(f"{name} is left out: {reason}")
        count = effort.pick(20_000, 1_000)

        async def speeds(work: Callable[[Peer], Awaitable[object]], records: int = count) -> dict[str, list[float]]:
            sides = {name: partial(work, peer) for name, peer in peers.items()}
            rounds = await run_alternating(sides, effort.pick(7, 2), effort.progress)
            return {name: [records / seconds for seconds in found] for name, found in rounds.seconds.items()}

        async def stretches(work: Callable[[Peer], Awaitable[float]]) -> dict[str, list[list[float]]]:
            found: dict[str, list[list[float]]] = {name: [] for name in peers}

            async def stretch(name: str) -> None:
                found[name].append([await work(peers[name]) for _ in range(effort.pick(100, 10))])

            sides: dict[str, Work] = {name: partial(stretch, name) for name in peers}
            await run_alternating(sides, effort.pick(11, 2), effort.progress)
            return {name: rounds[1:] for name, rounds in found.items()}

        stored = count * (effort.pick(7, 2) + 1)  # warm-up included
        small, large = ([random.randbytes(size) for _ in range(count)] for size in (100, 1000))
        sent = {
            "peers_100": await speeds(lambda peer: peer.send(SMALL, small)),
            "peers_1000": await speeds(lambda peer: peer.send(LARGE, large)),
            "peers_read": await speeds(lambda peer: read(peer, SMALL, stored), stored),
        }
        acknowledged = await stretches(lambda peer: acknowledgement(peer, small[0]))
        numbers = {peer: await follow(peer, stack) for peer in peers.values()}
        arrived = await stretches(lambda peer: arrival(peer, numbers[peer], small[0]))
    return compared(sent, {"peers_ack": acknowledged, "peers_e2e": arrived})


async def started(
    modules: Mapping[str, str], stack: AsyncExitStack, folder: Path
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Start the servers; return those that run, and why the others do not. Raises HeadgateError: there is no peer."""
    running: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name, module in modules.items():
        (folder / name).mkdir()
        try:
            peer: Peer = importlib.import_module(module).PEER()
            await peer.start(stack, folder / name, (SMALL, LARGE, SINGLES))
        except ModuleNotFoundError as error:
            missing[name] = f"the Python package {error.name} is not installed"
        except MissingServerError as error:
            missing[name] = str(error)
        else:
            running[name] = peer
    if running.keys() <= {OURS}:
        raise HeadgateError(f"no peer can be started: {'; '.join(map(': '.join, missing.items()))}")
    return running, missing


@asynccontextmanager
async def receiving(peer: Peer, stream: str, *, new: bool) -> AsyncIterator[asyncio.Queue[int]]:
    """Yield a queue of the numbers of records that a consumer receives."""
    numbers: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(peer.receive(stream, numbers.put_nowait, new=new))
        yield numbers
        task.cancel()


async def read(peer: Peer, stream: str, count: int) -> None:
    async with receiving(peer, stream, new=False) as numbers:
        while count > 0:
            count -= await numbers.get()


async def acknowledgement(peer: Peer, value: bytes) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    await peer.send(SINGLES, [value])
    return time.perf_counter() - began


async def arrival(peer: Peer, numbers: asyncio.Queue[int], value: bytes) -> float:
    """Return the seconds until the consumer of ``numbers`` has a single record."""
    await asyncio.sleep(PAUSE_SECONDS)
    while not numbers.empty():
        numbers.get_nowait()
    began = time.perf_counter()
    sending = asyncio.ensure_future(peer.send(SINGLES, [value]))
    await numbers.get()
    took = time.perf_counter() - began
    await sending
    return took


async def follow(peer: Peer, stack: AsyncExitStack) -> asyncio.Queue[int]:
    """Return the queue of a consumer that receives what is sent from now on, until ``stack`` is closed."""
    numbers = await stack.enter_async_context(receiving(peer, SINGLES, new=True))
    async with asyncio.timeout(START_SECONDS):
        while numbers.empty():
            await peer.send(SINGLES, [b"first"])
            await asyncio.sleep(PROBE_SECONDS)
    return numbers


def compared(speeds: Speeds, singles: Stretches) -> Measurement:
    """Return the measurement; a part that needs a server that was left out is missing."""
    parts: dict[str, Part] = {}
    for part, found in speeds.items():
        against = [SYNCED] if part == "peers_read" else [name for name in found if name != OURS]
        rounds = [[found[name][number] for name in against if name in found] for number in range(len(found[OURS]))]
        if rounds[0]:
            parts[part] = round(median(ours / max(theirs) for ours, theirs in zip(found[OURS], rounds, strict=True)), 3)
        parts |= {f"{name}_{part.removeprefix('peers_')}": round(median(each)) for name, each in found.items()}
    for part, stretches in singles.items():
        p50, p99 = (
            {n: [percentile([*s], share) for s in rounds] for n, rounds in stretches.items()} for share in (0.5, 0.99)
        )
        if SYNCED in stretches:
            parts[part] = round(median(ours / theirs for ours, theirs in zip(p50[OURS], p50[SYNCED], strict=True)), 3)
        parts[f"{part}_tail"] = round(median(p99[OURS]) / median(p50[OURS]), 3)
        for name in stretches:
            what = part.removeprefix("peers_")
            parts[f"{name}_{what}_p50_ms"] = round(median(p50[name]) * 1000, 3)
            parts[f"{name}_{what}_p99_ms"] = round(median(p99[name]) * 1000, 3)
    return Measurement(min(float(parts["peers_100"]), float(parts["peers_1000"])), parts)


BENCHMARK = Benchmark(
    unit="times the best peer",
    goal=3,
    better="higher",
    measure=measure,
    part_goals={"peers_100": 5, "peers_read": 1.5},
    part_limits={"peers_ack": 2, "peers_ack_tail": 3, "peers_e2e": 3, "peers_e2e_tail": 4},
)
