"""Latency of honest producers beside a hostile client with valid credentials, against that without one.

Two producers, a device and a consumer work at a steady pace on a cluster with access control. In turns, the hostile
client (``bench.harness.attacker``) rests and does everything bad that its credentials, or none, let it try: the largest
valid message of each kind, messages that are not valid, lies in the name of others, floods of connections. The value is
the ratio of the 99th percentiles of both kinds of turns. ``lost``, ``repeated``, ``reordered`` and ``forged`` count
records in the ledger and at the consumer, and must be zero.

It takes ten minutes; ``--seconds 3600`` is the hour after which the promise counts as kept. Each large message is
played once at least, so a much shorter attack is denser, and its value means little.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from bench.harness.benchmark import Benchmark, Effort, Measurement
from bench.harness.cluster import SecuredBenchCluster, percentile
from bench.harness.honest_load import FAULTS, HonestLoad

SECONDS, QUICK_SECONDS = 600, 12
LONGEST_TURN_SECONDS = 15.0
WARM_UP_SECONDS = 1.0


def measure(effort: Effort) -> Measurement:
    """Return the ratio of 99th percentiles, disturbed over undisturbed."""
    return asyncio.run(_measure(effort, effort.seconds or effort.pick(SECONDS, QUICK_SECONDS)))


async def _measure(effort: Effort, seconds: int) -> Measurement:
    turns = max(2, round(seconds / 2 / LONGEST_TURN_SECONDS))
    turn_seconds = seconds / 2 / turns
    latencies: dict[str, list[float]] = {"disturbed": [], "undisturbed": []}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(SecuredBenchCluster())
        honest = HonestLoad(cluster)
        await honest.start(stack)
        hostile = await cluster.start_hostile(stack, seconds / 2)
        await honest.run(WARM_UP_SECONDS)
        for turn in range(turns):
            for kind in ("disturbed", "undisturbed") if turn % 2 else ("undisturbed", "disturbed"):
                await hostile.order("go" if kind == "disturbed" else "rest")
                latencies[kind] += await honest.run(turn_seconds)
            effort.progress(f"turn {turn + 1} of {turns}")
        acts: dict[str, int] = await hostile.order("acts")
        found = await honest.settled()
        records = honest.records
    return compared(latencies, found, records=records, acts=sum(acts.values()), kinds=len(acts))


def compared(latencies: dict[str, list[float]], found: Mapping[str, int], **counts: int) -> Measurement:
    parts: dict[str, float | int | str] = {**found, **counts}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
        for kind, values in latencies.items():
            parts[f"{name}_{kind}_ms"] = round(percentile(values, share) * 1000, 2)
    ratio = percentile(latencies["disturbed"], 0.99) / percentile(latencies["undisturbed"], 0.99)
    return Measurement(ratio, parts)


BENCHMARK = Benchmark(
    unit="times undisturbed p99",
    goal=2,
    better="lower",
    measure=measure,
    part_goals=dict.fromkeys(FAULTS, 0),
    takes_seconds=True,
)
