"""The stages that change which daemon leads: transfers, a killed daemon, a rolling restart, a restart of all.

During each, records are sent to every shard. A record's wait is what clients notice.
"""

import asyncio
import time
from typing import Final

from headgate.errors import RequestRejectedError
from scale.building_stages import until_held
from scale.trial import Trial
from scale.watch import Probe

CALM_SECONDS: Final = 3.0
"""After each change, for records that wait."""
TRANSFERS: Final = 8


async def transfer_shards(trial: Trial) -> None:
    """Transfer some shards, one after another, to the next daemon."""
    names = trial.cluster.names
    took_ms: dict[int, float] = {}
    refused = 0
    async with trial.probe() as probe, trial.admin:
        await _calm(trial, probe)
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
                took_ms[shard] = 1000 * (time.perf_counter() - began)
        await asyncio.sleep(CALM_SECONDS)
        waits = probe.take()
        moved = set(took_ms)
    trial.add("transfers refused, as another one was under way", refused)
    trial.add_distribution("transfer of a shard", list(took_ms.values()), "ms")
    trial.add_distribution("longest wait on a shard that moved", _longest(waits, moved), "ms")
    trial.add_distribution("longest wait on another shard", _longest(waits, set(waits) - moved), "ms")
    _add_failures(trial, probe)


async def kill_daemon(trial: Trial) -> None:
    """Kill a daemon that leads a shard with a probe, wait for its successors, and start it again."""
    cluster = trial.cluster
    registrations = await _registrations(trial)
    async with trial.probe() as probe:
        await _calm(trial, probe)
        victim = trial.leaders.leader(max(probe.topics)) or cluster.names[-1]
        lost = {shard for shard in range(trial.sizes.shards) if trial.leaders.leader(shard) == victim}
        killed_ns = time.monotonic_ns()
        await cluster.kill(victim)
        await trial.leaders.until_led()
        trial.add("all shards led again", (time.monotonic_ns() - killed_ns) / 1e9, "s")
        await asyncio.sleep(CALM_SECONDS)
        waits = probe.take()
        trial.add("shards without a leader", len(lost))
        trial.add_distribution("longest wait on these", _longest(waits, lost), "ms")
        trial.add_distribution("longest wait on another shard", _longest(waits, set(waits) - lost), "ms")
        _add_failures(trial, probe)
    await until_held(trial)
    found = await trial.cluster.order("state")
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
    async with trial.probe() as probe:
        await _calm(trial, probe)
        with trial.timed("all daemons restarted"):
            for name in cluster.names:
                began = time.perf_counter()
                await cluster.stop(name)
                stops.append(time.perf_counter() - began)
                await cluster.start_daemon(name)
                await cluster.until_ready(name)
                await trial.leaders.until_led()
        await asyncio.sleep(CALM_SECONDS)
        waits = probe.take()
    trial.add_distribution("stopping a daemon", stops, "s")
    trial.add_distribution("longest wait on a shard", _longest(waits, set(waits)), "ms")
    _add_failures(trial, probe)
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


async def _calm(trial: Trial, probe: Probe) -> None:
    """Add how long records wait while nothing changes."""
    probe.take()
    await asyncio.sleep(CALM_SECONDS)
    calm = [1000 * each for waits in probe.take().values() for each in waits]
    trial.add_distribution("wait of a record before", calm, "ms")


async def _registrations(trial: Trial) -> int:
    return sum(each["registrations"] for each in await trial.cluster.order("state"))


def _longest(waits: dict[int, list[float]], shards: set[int]) -> list[float]:
    """Return the longest wait of each of ``shards``, in milliseconds."""
    return [1000 * max(waits[shard]) for shard in shards if waits.get(shard)]


def _add_failures(trial: Trial, probe: Probe) -> None:
    trial.add("records that failed", len(probe.failures))
