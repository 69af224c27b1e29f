"""The stages that change which daemon leads: transfers, a killed daemon, a rolling restart, a restart of all.

During each, records are sent to every shard. A record's wait is what clients notice.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headgate.errors import RequestRejectedError
from headgate.model.hashing import shard_of
from scale.building_stages import until_held
from scale.sizes import topic_name
from scale.trial import Trial

CALM_SECONDS: Final = 3.0
"""After each change, for records that wait."""
TRANSFERS: Final = 8


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
