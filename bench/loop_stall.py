"""The longest stall of the event loop by one valid message, against a plain batch of 64 KB.

A leader serves all its clients on one loop. While it handles a message nothing else happens: no
heartbeat, no commit, no other shard. So the cost of every message needs a bound, also of those that
no client library sends. The benchmark sends the largest valid message of every kind, in the state
in which it costs most: 4094 segments in one topic, 43 subscriptions, 1000 consumers in one of them,
a chain of 4095 ancestors, shared segments with gaps in every bucket. It also reads the pages of the
HTTP server, and lets the timers run.

A stall is the processor time of the longest turn of the loop, so work that is spread over several
turns or left to a thread counts only in parts. The value is the longest stall of all over the
longest turn of a batch of 64 records of 1 KB. The aim is 20 ms for every message. ``program_ms`` is
the longest stall by what producers and consumers send, which reaches it; its goal allows for
other load. Commands and questions of operators about thousands of segments still exceed it, so the
goal of the value only keeps them from growing.
"""

from __future__ import annotations

import asyncio
import time
import typing
import urllib.request
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

from bench import _worst_cases as worst
from bench._harness import Benchmark, Effort, Measurement, Part, gc_disabled
from bench._one_leader import CLIENT, CLUSTER, SETTLE_SECONDS, OneLeader, TurnClock, run_timed
from controller.state.shard_state import ShardState
from controller.status import current_backlogs, daemon_status, described_status
from headgate.protocol import messages as m
from metrics import events
from metrics.health import HealthFacts, judge_health
from metrics.http import HttpServer
from metrics.instruments import Instruments

PAGES: Final = ("/", "/status", "/backlog", "/metrics", "/readyz", "/livez")
PROGRAM: Final = ("produce", "acknowledge", "open_producer", "register", "heartbeat", "leave", "confirm_revoked")
"""Kinds of requests that producers and consumers send by themselves."""
TIMER_SECONDS: Final = 10.6
"""Longer than the slowest timer of a leader."""


def check_cases() -> None:
    """Fail if a kind of request has no case, or no request has a case's kind."""
    kinds = set(typing.get_args(m.AnyRequestBody))
    missing = sorted(kind.__name__ for kind in kinds ^ worst.CASES.keys())
    assert not missing, f"bench/_worst_cases.py: add or remove cases: {', '.join(missing)}"


def measure(effort: Effort) -> Measurement:
    """Return the longest stall over that of a plain batch."""
    check_cases()
    stalls: dict[str, list[float]] = {}
    batches: list[float] = []
    with gc_disabled():
        for number in range(effort.pick(3, 1)):
            effort.progress(f"round {number + 1}")
            for name, case in _cases().items():
                stalls.setdefault(name, []).append(_run(case.world, _sent(case)))
                effort.progress(f"{name}: {stalls[name][-1] * 1000:.1f} ms")
            for name, (world, drive) in _other().items():
                stalls.setdefault(name, []).append(_run(world, drive))
                effort.progress(f"{name}: {stalls[name][-1] * 1000:.1f} ms")
            batches += [_run(worst.plain, _sent(worst.PLAIN_BATCH)) for _ in range(3)]
    return summarized({name: median(found) for name, found in stalls.items()}, median(batches))


def summarized(stalls: dict[str, float], batch: float) -> Measurement:
    """Return the measurement of ``stalls`` in seconds, and of one plain ``batch``."""
    largest = max(stalls, key=stalls.__getitem__)
    parts: dict[str, Part] = {
        "batch_ms": round(batch * 1000, 3),
        "largest": largest,
        "largest_ms": round(stalls[largest] * 1000, 2),
        "cases": len(stalls),
    }
    parts["program_ms"] = round(max((stalls[name] for name in stalls if name.startswith(PROGRAM)), default=0) * 1000, 2)
    for name, stall in sorted(stalls.items(), key=lambda each: -each[1]):
        parts[f"{name}_ms"] = round(stall * 1000, 2)
    return Measurement(stalls[largest] / batch, parts)


Drive = Callable[[OneLeader, TurnClock], Any]


def _cases() -> dict[str, worst.Case]:
    return {
        f"{kind.__struct_config__.tag}_{name}": case
        for kind, cases in worst.CASES.items()
        for name, case in cases.items()
    }


def _other() -> dict[str, tuple[Callable[[], ShardState], Drive]]:
    others: dict[str, tuple[Callable[[], ShardState], Drive]] = {
        "disconnected_wide": (worst.wide, _disconnect),
        "disconnected_many": (worst.many, _disconnect),
        "timers_wide": (worst.wide, _wait),
        "timers_deep": (worst.deep, _wait),
        "timers_many": (worst.many, _wait),
        "gauges_wide": (worst.wide, _set_gauges),
    }
    for page in PAGES:
        others[f"http{page.replace('/', '_')}_wide"] = (worst.wide, _read_page(page))
    return others


def _run(world: Callable[[], ShardState], drive: Drive) -> float:
    clock = TurnClock()

    async def main() -> float:
        one = OneLeader(world(), Instruments(CollectorRegistry()))
        clock.restart()
        async with one.serving():
            await drive(one, clock)
            await one.leader.commit.flush()
            await asyncio.sleep(SETTLE_SECONDS)
            return clock.longest_seconds

    return run_timed(main(), clock)


def _sent(case: worst.Case) -> Drive:
    async def drive(one: OneLeader, clock: TurnClock) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        prepared = one.prepared(case.body(one.leader.state))
        clock.restart()
        reply = await one.call(prepared)
        assert isinstance(reply, m.Rejected) == case.refused, f"unexpected reply: {str(reply)[:500]}"

    return drive


async def _wait(*_: object) -> None:
    await asyncio.sleep(TIMER_SECONDS)


async def _disconnect(one: OneLeader, clock: TurnClock) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    clock.restart()
    presence = m.Presence(client_id=CLIENT, online=False)
    asyncio.get_running_loop().call_soon(one.leader.on_presence, presence)


def _controllers(one: OneLeader) -> list[Any]:
    role = SimpleNamespace(role=SimpleNamespace(value="leading"))
    return [SimpleNamespace(leader=one.leader, leadership=role, shard=0)]


async def _set_gauges(one: OneLeader, clock: TurnClock) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    instruments = Instruments(CollectorRegistry())
    clock.restart()
    await asyncio.sleep(0)
    instruments.observe(
        events.StatusCollected(status=daemon_status("bench", CLUSTER, _controllers(one)), now_seconds=time.monotonic())
    )
    await asyncio.sleep(0)


def _read_page(page: str) -> Drive:
    async def drive(one: OneLeader, clock: TurnClock) -> None:
        health = judge_health(
            HealthFacts(
                tick_age_seconds=0,
                zookeeper="connected",
                broker_connected=True,
                drain="ready",
                drain_reason="",
                shards=1,
                store_reachable=True,
                shards_led=1,
            )
        )
        server = HttpServer(
            "127.0.0.1",
            0,
            registry=CollectorRegistry(),
            health=lambda: health,
            status=lambda: described_status("bench", CLUSTER, _controllers(one)),
            backlogs=lambda topic: current_backlogs(_controllers(one), topic),
            observer=events.NoopObserver(),
        )
        async with server:
            await asyncio.sleep(SETTLE_SECONDS)
            clock.restart()
            await asyncio.to_thread(_fetch, f"http://{server.address}{page}")

    return drive


def _fetch(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - our own server
        return len(response.read())


BENCHMARK = Benchmark(
    unit="times a 64 KB batch", goal=240, better="lower", measure=measure, part_goals={"program_ms": 33}
)
