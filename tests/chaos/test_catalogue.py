"""The faults of the catalogue, and the plan that follows from the options of a run."""

import asyncio
import random
import time
from unittest.mock import AsyncMock

import pytest

from chaos.__main__ import make_plan
from chaos.faults.catalogue import CATALOGUE
from chaos.faults.fault import Stage
from chaos.run import Options, Played, _play_fault, _watch
from chaos.schedule import PlannedFault
from headgate.process.background import end_tasks

OPTIONS = Options(
    minutes=12, seed=1, names=(), at_once=1, fault_seconds=None, rest_seconds=8.0, rate=200, with_spark=True
)


def options(**changes: object) -> Options:
    return Options(**{field: getattr(OPTIONS, field) for field in OPTIONS.__slots__} | changes)


def test_twelve_minutes_have_every_fault() -> None:
    made, reasons = make_plan(options(tls=True), has_shim=True)

    assert set(CATALOGUE) <= {fault.name for fault in made.faults}
    assert {} == reasons
    assert 720 == made.seconds


def test_a_short_run_and_a_machine_without_a_compiler_say_what_they_leave_out() -> None:
    made, reasons = make_plan(options(minutes=2, with_spark=False), has_shim=False)

    assert set(CATALOGUE) == {fault.name for fault in made.faults} | set(reasons)
    assert reasons["disk-full"] == "there is no C compiler (cc, gcc or clang)"
    assert [reasons[name][-7:] for name in ("spark-killed", "certificate-expired")] == ["t Spark", "out TLS"]
    assert "the run is too short" in reasons.values()


async def test_a_fault_that_waits_for_what_another_one_prevents_ends() -> None:
    """A daemon whose fsync fails is not ready, and the power was lost for the consumers."""
    cluster, played = AsyncMock(programs={"daemon-1": None}), Played()
    cluster.until_ready = lambda _: asyncio.Event().wait()

    stage = Stage(cluster, AsyncMock(), random.Random(1))
    await _play_fault(stage, PlannedFault("rolling-upgrade+consumer-killed", 0, 8), played)

    assert [] == played.notes
    assert played.faults[0].note.split("  ") == [" not done after 90 s", "no consumer runs"]
    assert 98 == asyncio.get_running_loop().time()
    cluster.restore.assert_awaited()


@pytest.mark.real_time
async def test_topics_are_not_blamed_for_a_standstill_of_the_run_itself() -> None:
    """All connections pass the proxies of its process."""
    cluster, played = AsyncMock(programs={"audit-1": None}), Played()
    cluster.restart_ended_daemons.return_value = []
    watching = asyncio.create_task(_watch(cluster, played))
    asyncio.get_running_loop().call_later(0.01, time.sleep, 1.4)

    await _play_fault(Stage(cluster, AsyncMock(), random.Random(1)), PlannedFault("consumer-killed", 0, 0.5), played)
    await end_tasks(watching)

    assert "The proxies got no processor for 1." in played.faults[0].note
    assert frozenset() == played.faults[0].continuing
