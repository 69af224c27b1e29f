"""The shards of one daemon: their controllers, and what ZooKeeper says about them.

The list of all numbers of shards is in ZooKeeper. A daemon that finds a longer one begins to contend for the new
shards, and its leaders store the list in their ledgers. No promise depends on when it does:
`shard.requests.topic_commands` decides by the ledgers. docs/decisions/shard-counts.md has the argument.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import structlog

from controller.leader.shard_controller import ShardController
from controller.leadership import election
from controller.leadership.policy.feature_levels import SHARDS_GROW, refusal
from controller.leadership.policy.transitions import Event, ShardLeaders
from headgate.errors import HeadgateError
from headgate.model.layout import ShardMap
from metrics import events
from metrics.label_values import ZooKeeperState

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

    def __init__(self, shards: ShardMap, registry: election.Registry, on_growth: Callable[[], None]) -> None:
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
                with suppress(election.ElectionsUnreachableError):
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


@dataclass(eq=False, repr=False)
class ElectionEvents:
    """Posts the events of the election service to the shards that they concern, and keeps its state."""

    controllers: Callable[[], Sequence[ShardController]]
    leaders: ShardLeaders
    patience_seconds: float
    """A loss of contact that lasts less is ignored."""
    _: KW_ONLY
    on_lost: Callable[[], None]
    """Called when the session has expired."""
    observer: events.Observer
    state: ZooKeeperState = "connecting"
    problem: str | None = None
    """What ZooKeeper refuses this daemon, and what to do."""
    _suspended: asyncio.TimerHandle | None = None

    def handle(self, event: election.ElectionEvent) -> None:
        match event:
            case election.LockEvent(shard, change):
                self.controllers()[shard].post(change)
            case election.HolderChanged(shard, instance):
                self.leaders.lock_held(shard, instance)
                for controller in self.controllers()[shard : shard + 1]:
                    controller.follower.wake()
            case election.Suspended():
                self._set_state("suspended")
                # Leaders yield once a contender may hold their lock.
                if self._suspended is None:
                    loop = asyncio.get_running_loop()
                    self._suspended = loop.call_later(self.patience_seconds, self._post_to_all, Event.CONTACT_LOST)
            case election.Connected():
                self._set_state("connected")
                if self._suspended is not None:
                    self._suspended.cancel()
                    self._suspended = None
                self._post_to_all(Event.CONTACT_REGAINED)
            case election.Lost():
                self._set_state("lost")
                self.on_lost()
            case election.Refused(problem):
                self.problem = problem
                self.observer.observe(events.ZooKeeperRefused(refused=problem is not None))
            case election.ForeignNodeFound():
                self.observer.observe(events.ForeignNodeFound())

    def _set_state(self, state: ZooKeeperState) -> None:
        if state != self.state:
            log.info("zookeeper.state", state=state)
        self.state = state
        self.observer.observe(events.ZooKeeperStateChanged(state=state))

    def _post_to_all(self, event: Event) -> None:
        for controller in self.controllers():
            controller.post(event)
