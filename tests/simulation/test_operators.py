"""Operators restart daemons as the promise of a rolling restart has it: in a calm world, never two at once."""

import asyncio
import random
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.operators import Operators
from tests.simulation.plan import plan_of
from tests.simulation.play import play
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import ClusterSimulation


class Daemon:
    """A daemon that takes a second to stop."""

    has_joined = True
    frozen = False

    def __init__(self, name: str, stopping: list[str]) -> None:
        self.name = name
        self._stopping = stopping

    async def stop(self) -> None:
        self._stopping.append(self.name)
        await asyncio.sleep(1)
        self._stopping.remove(self.name)


class World:
    """Three daemons, and who of them was stopping beside others."""

    def __init__(self, *, calm: bool) -> None:
        self.plan = SimpleNamespace(calm=calm)
        self.together: set[tuple[str, ...]] = set()
        self.restarted: list[str] = []
        self._stopping: list[str] = []
        self.daemons = [Daemon(name, self._stopping) for name in ("a", "b", "c")]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def log(self, name: str, _: str) -> None:
        self.restarted.append(name)
        if self._stopping:
            self.together.add((name, *self._stopping))

    def start_daemon(self, name: str) -> Daemon:
        self.daemons.append(Daemon(name, self._stopping))
        return self.daemons[-1]


async def restart_twice(world: World) -> None:
    operators = Operators(cast("ClusterSimulation", world))
    for delay in (0.0, 0.5):
        await asyncio.sleep(delay)
        await operators.rolling_restart(cast("Any", None), random.Random(1))
    await operators.finish()


@pytest.mark.parametrize("calm", [True, False])
def test_only_a_world_with_faults_restarts_two_daemons_at_once(calm: bool) -> None:
    world, loop = World(calm=calm), VirtualLoop()
    try:
        loop.run_until_complete(restart_twice(world))
    finally:
        loop.close()

    assert bool(world.together) is not calm
    if calm:
        assert world.restarted == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.simulation
def test_a_leader_and_its_successor_are_not_restarted_together_in_a_calm_world() -> None:
    plan = plan_of(3274299178)  # Its two rolling restarts overlapped, and a send took half a second.
    assert plan.calm

    play(plan)


@pytest.mark.simulation
def test_clients_learn_at_once_of_two_leaders_within_half_a_second() -> None:
    plan = plan_of(
        466541162
    )  # A drained daemon's shard was transferred again, and a send waited for the second question.
    assert plan.calm

    play(plan)
