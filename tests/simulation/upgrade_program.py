"""Daemons of two versions beside each other: some simulated worlds begin at a feature level before the newest one.

Every daemon is first of the version before. They are replaced one by one, and some go back, while an operator tries to
raise the level, and others to do what it allows (`tests.simulation.growth_program`). Faults continue meanwhile.

1. The level does not rise while a daemon that does not support it is registered.
2. Below the level, neither ledger, snapshot nor ZooKeeper has what only the level allows. `InvariantChecker` looks at
   everything that is written.
3. A daemon that does not support the level ends: one that was cut off when it rose, and one that is started since.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from controller.leadership.policy.feature_levels import FIRST, LEVELS
from headgate import Admin
from headgate.errors import HeadgateError
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.queue_program import until_done

if TYPE_CHECKING:
    from tests.simulation.simulated_daemon import SimulatedDaemon
    from tests.simulation.world import ClusterSimulation

LAST: Final = max(LEVELS)
NEWEST: Final = FIRST, LAST
ENDED_SECONDS: Final = 60.0
"""Once faults have ended, no daemon of the version before runs for so long."""


class UpgradeProgram:
    def __init__(self, world: ClusterSimulation) -> None:
        """The version before is what ``world`` has installed."""
        self._world, self._before = world, world.installed
        self._ended = asyncio.Event()

    async def start(self, rng: random.Random) -> None:
        """Replace the daemons, and raise the level; then start one of the version before by mistake."""
        world = self._world
        async with world.client("upgrader") as client:
            await until_done(client.shard_map)
            async with Admin(client, timeout_seconds=5) as admin:
                while world.level < LAST:
                    await asyncio.sleep(rng.uniform(0.5, 15))
                    running = [each for each in world.daemons if not each.frozen]
                    old = [each for each in running if each.levels == self._before]
                    goes_back = len(old) < len(running) and rng.random() < 1 / 4
                    if old and not goes_back:
                        await self._replace(rng.choice(old), NEWEST)
                    elif goes_back:
                        await self._replace(rng.choice([each for each in running if each not in old]), self._before)
                    world.installed = self._before if old else NEWEST
                    if rng.random() < 1 / 2:
                        await self._raise(admin)
        world.installed = NEWEST
        await asyncio.sleep(rng.uniform(0, 20))
        world.start_daemon(levels=self._before)
        self._ended.set()

    async def _replace(self, daemon: SimulatedDaemon, levels: tuple[int, int]) -> None:
        self._world.log(daemon.name, f"is replaced by one of level {levels[1]}")
        self._world.daemons.remove(daemon)
        await daemon.stop()
        self._world.start_daemon(daemon.name, levels)

    async def _raise(self, admin: Admin) -> None:
        before, old = self._world.level, self._old()
        with suppress(HeadgateError):
            await admin.raise_feature_level(LAST)
        if before < self._world.level:
            self._world.log("operator", "the feature level is raised")
            if there := [each.name for each in self._old() if each in old]:
                raise BrokenPromiseError(f"the level is raised, and {there} do not support it")

    def _old(self) -> list[SimulatedDaemon]:
        """Return the daemons of the version before that are registered."""
        owners = {session for session, _ in self._world.zookeeper.service_state.instances.values()}
        old = (each for each in self._world.daemons if each.levels == self._before)
        return [each for each in old if each.zookeeper_client.session in owners]

    async def finish(self) -> None:
        """Wait for the end of `start`, once faults have ended, and check that no daemon of the version before runs."""
        await self._ended.wait()
        began = asyncio.get_running_loop().time()
        while any(each.levels == self._before for each in self._world.daemons):
            if asyncio.get_running_loop().time() - began > ENDED_SECONDS:
                raise BrokenPromiseError("a daemon runs in a cluster of a level that it does not support")
            await asyncio.sleep(1)
