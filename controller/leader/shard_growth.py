"""More shards while the cluster runs: stores the number for an operator, and lets a daemon follow it.

The list of all numbers is in ZooKeeper. A daemon that finds a longer one begins to contend for the new shards, and its
leaders store the list in their ledgers. No promise depends on when it does: `shard.requests.topic_shard` decides by the
ledgers. docs/decisions/shard-counts.md has the argument.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from controller.leader.shard_controller import ShardController
from controller.leadership.election import ElectionsUnreachableError, Registry
from controller.leadership.policy.feature_levels import SHARDS_GROW, refusal
from headgate.errors import HeadgateError
from headgate.model.hashing import ShardMap

LOOK_SECONDS: Final = 2.0
"""Pause between two looks at the list in ZooKeeper."""

log = structlog.get_logger(__name__)


def grown(config: dict[str, Any], shards: int, before: int) -> dict[str, Any] | None:
    """Return what a command for ``shards`` in place of ``before`` makes of a cluster's configuration; pure.

    None: it is done already. A late copy finds another number than ``before``, so it needs no token. Raises
    HeadgateError: it is refused.
    """
    known = ShardMap.read(config.get("shards")) or ShardMap((0,))
    if known.counts[-2:] == (before, shards):
        return None
    later, problem = known.grown(shards), refusal(config, SHARDS_GROW)
    if before != known.shards:
        problem = f"the cluster has {known.shards} shards by now, and not {before}: look again"
    if later is None or problem:
        raise HeadgateError(problem or f"the cluster has {before} shards, and the number can only rise")
    return config | {"shards": list(later.counts)}


class ShardGrowth:
    """The shards that one daemon follows, and their controllers."""

    def __init__(self, shards: ShardMap, registry: Registry, on_growth: Callable[[], None]) -> None:
        """``on_growth`` publishes the description of the cluster. `create` and `start` come before `run`."""
        self.shards = shards
        self.controllers: list[ShardController] = []
        """The controller of each shard. New ones are added to this list."""
        self.running: list[asyncio.Task[None]] = []
        self._registry = registry
        self._on_growth = on_growth

    def create(self, new_controller: Callable[[int], ShardController]) -> list[ShardController]:
        self._new_controller = new_controller
        self.controllers.extend(map(new_controller, range(self.shards.shards)))
        return self.controllers

    def start(self, start: Callable[[ShardController], asyncio.Task[None]]) -> None:
        self._start = start
        self.running.extend(map(start, self.controllers))

    async def run(self) -> None:
        """Look for a longer list again and again, and store one of a ledger that ZooKeeper lacks."""
        while True:
            config = await self._registry.config()
            found = None if config is None else ShardMap.read(config.get("shards"))
            self.grow(found or self.shards)
            if found is not None and self.shards.extends(found.counts):
                with suppress(ElectionsUnreachableError):
                    await self._registry.change_config(self._added)
            await asyncio.sleep(LOOK_SECONDS)

    def _added(self, config: dict[str, Any]) -> dict[str, Any] | None:
        known = ShardMap.read(config.get("shards"))
        longer = known is not None and self.shards.extends(known.counts)
        return config | {"shards": list(self.shards.counts)} if longer else None

    def grow(self, shards: ShardMap) -> None:
        """Use a longer list, of ZooKeeper, or of a ledger if ZooKeeper has lost it."""
        if not shards.extends(self.shards.counts):
            return
        self.shards = shards
        log.info("cluster.grown", shards=shards.counts)
        for shard in range(len(self.controllers), shards.shards):
            self.controllers.append(self._new_controller(shard))
            self.running.append(self._start(self.controllers[-1]))
        for each in self.controllers:
            if each.leader is not None:
                each.leader.learn_shards(shards)
        self._on_growth()
